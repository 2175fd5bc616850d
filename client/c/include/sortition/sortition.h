// The C interface of Sortition: sampling in the caller's process, and the client of the sampling service. C99.
//
// Results. A function that can fail returns a sortition_code, SORTITION_OK on success, and has `error` as its last
// parameter. If `error` is not null, *error becomes null on success, and an error on failure, which the caller frees
// with sortition_error_free. Outputs that are pointers become null on failure. A call that fails has changed nothing,
// unless its comment says otherwise.
//
// Structs. Each begins with `struct_size`. A caller sets every other field to 0 and `struct_size` to the struct's
// sizeof: 0 is the default of every field. A struct of an older header is shorter, and the fields that it lacks have
// their defaults. A struct that is too short, or longer than this library's, is refused by name. Structs of the library
// have the library's struct_size, and only grow at their end. Structs and strings of the caller are not used after the
// call. Strings end with a 0 byte and are UTF-8; a null string is an empty one. An array with a count may be null if
// the count is 0. A function that copies a text to `buffer` copies at most `size` bytes with the 0 byte at its end, and
// stores the bytes of the whole text without the 0 byte in *length.
//
// Handles. sortition_parameters, sortition_receipts, sortition_sequence and sortition_client are handles. Their
// pointers lead to no memory and are never used twice. A handle that is null, closed or of another kind is refused
// (INVALID_ARGUMENT).
//
// Threads. Every function is thread-safe, unless its comment says otherwise. No function blocks for longer than a
// computation, unless its comment says otherwise. A child of fork() may not use what its parent opened.
//
// The library throws no exception and installs no signal handler. docs/c.md has examples.
#pragma once

#include <sortition/sortition_errors.h>
#include <stddef.h>
#include <stdint.h>

#define SORTITION_VERSION "0.1.0"  // the header's

// The version of the interface: the release's major number * 1000 + a number that each addition raises. Within a major
// number functions, fields at the end of structs, and values are added. Nothing that a header has goes or changes: no
// name, signature, place in a struct, value or default. So a library serves a program that was compiled with this
// header if SORTITION_ABI_FITS(sortition_abi_version()). A program checks this before any other call.
#define SORTITION_ABI_VERSION 1
#define SORTITION_ABI_FITS(library) \
  ((library) / 1000 == SORTITION_ABI_VERSION / 1000 && (library) >= SORTITION_ABI_VERSION)

#ifdef __cplusplus
extern "C" {
#endif

// ---- library

// Return the library's versions, which may be newer than the header's: of the release, of the interface, and of the
// law. Libraries and servers of one law version draw the same tokens.
SORTITION_API const char* sortition_version(void);
SORTITION_API uint32_t sortition_abi_version(void);
SORTITION_API uint32_t sortition_law_version(void);

// ---- sampling parameters

// The sampling parameters of a sequence: the fields of SamplingParameters in proto/sortition/v1/parameters.proto, which
// has their ranges. A field has its name there, a field of a message within it has a dot: "temperature",
// "mirostat.tau". A field that is not set is off. Ranges are checked where a sequence opens, with the other fields. The
// setters of one handle must not run at the same time as any other use of it.
typedef struct sortition_parameters sortition_parameters;

SORTITION_API sortition_code sortition_parameters_new(sortition_parameters** parameters, sortition_error** error);
SORTITION_API sortition_code sortition_parameters_copy(const sortition_parameters* from, sortition_parameters** copy,
                                                       sortition_error** error);
// Closes the handle. Sequences that were opened with it stay as they are.
SORTITION_API sortition_code sortition_parameters_close(sortition_parameters* parameters, sortition_error** error);

// Set one field, in place of its old value. Refuse a name that the contract lacks (UNKNOWN_FIELD), and a field of
// another type: the message names the function that sets it.
//
// A number with a fraction ("top_p"), rounded to the nearest float.
SORTITION_API sortition_code sortition_parameters_set_double(sortition_parameters* parameters, const char* name,
                                                             double value, sortition_error** error);
// A count ("top_k"), at most 2^32 - 1, or "watermark.key".
SORTITION_API sortition_code sortition_parameters_set_uint(sortition_parameters* parameters, const char* name,
                                                           uint64_t value, sortition_error** error);
// A switch ("entropy"): 0 = false, any other value = true.
SORTITION_API sortition_code sortition_parameters_set_bool(sortition_parameters* parameters, const char* name,
                                                           int32_t value, sortition_error** error);
// A name of the contract ("chain.preset" to "PRESET_HF").
SORTITION_API sortition_code sortition_parameters_set_text(sortition_parameters* parameters, const char* name,
                                                           const char* value, sortition_error** error);
// A list of tokens ("stop_token_ids", "allowed_token_ids", "banned_token_ids", "logprob_token_ids",
// "phases[0].begin").
SORTITION_API sortition_code sortition_parameters_set_tokens(sortition_parameters* parameters, const char* name,
                                                             const uint32_t* tokens, size_t count,
                                                             sortition_error** error);
// A value for each of some tokens ("logit_bias").
SORTITION_API sortition_code sortition_parameters_set_biases(sortition_parameters* parameters, const char* name,
                                                             const uint32_t* tokens, const float* biases, size_t count,
                                                             sortition_error** error);

// Add to a list of a field: a token sequence ("bad_words", "dry.sequence_breakers"), or a name
// ("chain.explicit.samplers"). Refuse as the setters do.
SORTITION_API sortition_code sortition_parameters_add_tokens(sortition_parameters* parameters, const char* name,
                                                             const uint32_t* tokens, size_t count,
                                                             sortition_error** error);
SORTITION_API sortition_code sortition_parameters_add_text(sortition_parameters* parameters, const char* name,
                                                           const char* value, sortition_error** error);

// Turns a field of any type off, also one that has fields ("mirostat").
SORTITION_API sortition_code sortition_parameters_clear(sortition_parameters* parameters, const char* name,
                                                        sortition_error** error);

// ---- receipts

// The log of a sequence's receipts: the service's records of how each token was drawn (docs/receipts.md). It grows by
// some 120 bytes and 8 a kept token with each token, until its records are taken. It may be closed before its sequence.
typedef struct sortition_receipts sortition_receipts;

// Makes a log for one sequence. `salt` hides the seed in the receipts: 16 bytes, or null for one that the service
// draws.
SORTITION_API sortition_code sortition_receipts_new(const uint8_t* salt, sortition_receipts** receipts,
                                                    sortition_error** error);

// Stores the size of the records that have come since they were last taken in *size. If `capacity` is as large, copies
// them to `records` and takes them out of the log; otherwise takes none. All of them in their order are a file of
// receipts.
SORTITION_API sortition_code sortition_receipts_take(sortition_receipts* receipts, uint8_t* records, size_t capacity,
                                                     size_t* size, sortition_error** error);

// Copies the line that opens the commitment to the seed, "SEED SALT", to `buffer`. It is a secret until it is
// published, and empty until the sequence is open.
SORTITION_API sortition_code sortition_receipts_get_seed_line(const sortition_receipts* receipts, char* buffer,
                                                              size_t size, size_t* length, sortition_error** error);

// Blocks until the last signature has come, which the service sends after the sequence is closed, at most `timeout_ns`.
// DEADLINE_EXCEEDED if it has not come: then the last receipts are not signed.
SORTITION_API sortition_code sortition_receipts_await_end(const sortition_receipts* receipts, uint64_t timeout_ns,
                                                          sortition_error** error);

// Closes the handle. A sequence that uses the log stays as it is.
SORTITION_API sortition_code sortition_receipts_close(sortition_receipts* receipts, sortition_error** error);

// ---- sequences

// One text. It advances by the tokens of each row that succeeds, and by nothing else but append, truncate and
// replace_last. A sequence is sampled in this process (sortition_local_open), or by a client's server
// (sortition_client_open). Tokens and bits are the same. Calls for one local sequence run one after the other.
typedef struct sortition_sequence sortition_sequence;

typedef struct sortition_sequence_options {
  size_t struct_size;
  const char* request_id;                  // 1 to 128 bytes; unique among the open sequences of a client
  const sortition_parameters* parameters;  // null: all off
  uint32_t vocabulary_size;                // elements of a row; 1 to 1048575
  uint32_t live_vocabulary_size;           // ids at or above are never drawn; 0: all are live
  const uint32_t* prompt;
  size_t prompt_count;
  uint64_t seed;                // the noise's, with has_seed; otherwise random
  uint32_t has_seed;            // 1: `seed` is given
  uint32_t choice_index;        // which of several completions of one prompt; 0 to 65535
  uint32_t start_position;      // position of the first token, if no option looks at the history and `prompt` is empty
  uint32_t has_start_position;  // 1: `start_position` is given
  const char* model;            // for the server's log; at most 128 bytes
  uint32_t turns;               // with a shard: sortition_sequence_info.turns of the other ranks
  uint32_t reserved;            // 0
  // Gets the receipts of the sequence's tokens; null: the sequence has none. The log of one sequence. Refused where no
  // service makes them: for local sequences, and clients with a fallback in process. With a shard the log is rank 0's.
  const sortition_receipts* receipts;
} sortition_sequence_options;

// Opens a sequence in this process. Options that a server would refuse are refused with the same error.
SORTITION_API sortition_code sortition_local_open(const sortition_sequence_options* options,
                                                  sortition_sequence** sequence, sortition_error** error);

// Opens a sequence that continues the first `position` tokens of `parent`; null: all. `options` has no prompt, and no
// start_position. A child of a local sequence is local; one of a client's sequence is the same client's. OUT_OF_RANGE
// if the parent has fewer tokens, FAILED_PRECONDITION if it has a step in flight or its client is closed,
// INVALID_ARGUMENT if an option of the child looks at a history that the parent does not keep. Blocks for a round trip
// with a client.
SORTITION_API sortition_code sortition_sequence_fork(const sortition_sequence* parent,
                                                     const sortition_sequence_options* options,
                                                     const uint32_t* position, sortition_sequence** child,
                                                     sortition_error** error);

// Copies a local sequence. The copy continues as the original would: unlike a fork it has the state of mirostat and
// adaptive-p. FAILED_PRECONDITION for a client's sequence.
SORTITION_API sortition_code sortition_sequence_clone(const sortition_sequence* sequence, sortition_sequence** clone,
                                                      sortition_error** error);

// Rewrites, between steps: append tokens, cut to `position` tokens, replace the last token. OUT_OF_RANGE if a token is
// not below the live vocabulary or there is nothing to cut. FAILED_PRECONDITION while a client's step is in flight.
SORTITION_API sortition_code sortition_sequence_append(sortition_sequence* sequence, const uint32_t* tokens,
                                                       size_t count, sortition_error** error);
SORTITION_API sortition_code sortition_sequence_truncate(sortition_sequence* sequence, uint32_t position,
                                                         sortition_error** error);
SORTITION_API sortition_code sortition_sequence_replace_last(sortition_sequence* sequence, uint32_t token,
                                                             sortition_error** error);

typedef struct sortition_sequence_info {
  size_t struct_size;
  uint64_t seed;             // the seed in use; a secret: seed and logits together determine the text
  uint32_t vocabulary_size;  // elements of a row
  uint32_t position;         // tokens of prompt and output so far
  uint32_t stateful;         // 1: an option looks at the history, so the tokens are kept
  uint32_t turns;            // number of cuts and scores of the text, with a shard; else 0
} sortition_sequence_info;

// Fills `info` as far as info->struct_size says.
SORTITION_API sortition_code sortition_sequence_get_info(const sortition_sequence* sequence,
                                                         sortition_sequence_info* info, sortition_error** error);

// Copies the first `capacity` tokens of prompt and output to `tokens`, and stores the number of all tokens in *count: 0
// if the sequence is not stateful.
SORTITION_API sortition_code sortition_sequence_get_tokens(const sortition_sequence* sequence, uint32_t* tokens,
                                                           size_t capacity, size_t* count, sortition_error** error);

// Closes the handle. A step in flight ends as it would have. A server then forgets the sequence.
SORTITION_API sortition_code sortition_sequence_close(sortition_sequence* sequence, sortition_error** error);

// ---- steps

enum { SORTITION_F32 = 1, SORTITION_F16 = 2, SORTITION_BF16 = 3 };  // types of elements, little-endian

// How drafts are accepted: while each is the token that would be drawn without speculation; while each is the first
// token in order (temperature 0); with probability min(1, p / q); likewise, but tested together, so that more are
// accepted (needs the drafter's probabilities).
enum { SORTITION_VERIFY_COUPLED = 0, SORTITION_VERIFY_GREEDY = 1 };
enum { SORTITION_VERIFY_REJECTION = 2, SORTITION_VERIFY_BLOCK = 3 };

// How the drafts of a tree that follow the same token were drawn from the drafter's distribution, in their order: each
// from the tokens that were not drawn before it, or each from all. In the second case a token that was drawn twice is
// named twice.
enum { SORTITION_DRAFTS_WITHOUT_REPLACEMENT = 1, SORTITION_DRAFTS_WITH_REPLACEMENT = 2 };

// A drafter's probabilities of some tokens; other tokens have 0.
typedef struct sortition_sparse_probabilities {
  size_t struct_size;
  const uint32_t* tokens;
  const float* probabilities;  // one for each token
  size_t count;
} sortition_sparse_probabilities;

// Drafts of the next tokens of a sequence, to be verified together.
typedef struct sortition_drafts {
  size_t struct_size;
  const uint32_t* tokens;
  size_t count;
  const int32_t* parents;         // of a tree: for each draft, its parent's index, or -1 for the root; null: a sequence
  int32_t mode;                   // SORTITION_VERIFY_*
  uint32_t return_probabilities;  // 1: returns the target's, after every filter
  // For drafts verified by rejection or by blocks: adjacent rows of vocabulary_size elements of the batch's
  // draft_dtype, or lists. A sequence has `count` of them. A tree has one for each place that drafts follow: the root,
  // if drafts follow it, then each such draft in order. Without both rejection takes every draft as certain.
  const void* probabilities;
  const sortition_sparse_probabilities* sparse_probabilities;
  int32_t sampling;  // of a tree with probabilities: SORTITION_DRAFTS_*; otherwise 0
} sortition_drafts;

// The logits of one sequence, and what to do with them: draw a token, verify drafts, or score tokens.
typedef struct sortition_row {
  size_t struct_size;
  sortition_sequence* sequence;
  // Adjacent rows of vocabulary_size elements: one to draw, one for each draft and one more to verify, one for each
  // token to score.
  const void* logits;
  // Tokens that may be drawn in this step: ceil(vocabulary_size / 32) words, least significant bit first, 1 = allowed.
  // With drafts one such mask for each of the rows, adjacent. Null: all.
  const uint32_t* allowed_bits;
  const sortition_drafts* drafts;  // null: none
  const uint32_t* scored;          // tokens that follow each other; null: none. The sequence stays as it is.
  size_t scored_count;
  // Selects another draw at the same position. Has no effect on a draw that a watermark marks. 0 to 65535. The client
  // adds the number of the sequence's rewinds, modulo 65536. Scores use only the caller's salt.
  uint32_t draw_salt;
  uint32_t reserved;  // 0
  // Tokens that cannot be drawn in this step, even if the mask allows them: with drafts at the first position, for
  // scored tokens at all of them. Null: none.
  const uint32_t* banned_tokens;
  size_t banned_count;
} sortition_row;

typedef struct sortition_batch {
  size_t struct_size;
  const sortition_row* rows;  // all with the same struct_size
  size_t row_count;           // at least 1
  uint32_t vocabulary_size;   // elements of a row: every sequence's vocabulary, or the client's shard_tokens
  int32_t dtype;              // of the logits: SORTITION_F32, ...
  int32_t draft_dtype;        // of drafters' probabilities; 0: SORTITION_F32
  // For logits that are still being written, with a client: they are complete when *ready_word is ready_value, or less
  // than 2^31 beyond. A multiple of 4. Null: they are complete.
  uint32_t ready_value;
  const uint32_t* ready_word;
} sortition_batch;

// The structs of results are the library's, and live until sortition_results_free.

// Log probabilities of one distribution, natural logarithms.
typedef struct sortition_logprobs {
  size_t struct_size;
  float logprob;               // of the position's token; -inf if it is not in the distribution
  uint32_t rank;               // of this token, 1 = first in order; 0 if it is not in the distribution
  const uint32_t* top_tokens;  // the requested alternatives, first in order
  const float* top_logprobs;
  size_t top_count;
  const float* requested_logprobs;  // of "logprob_token_ids", in their order
  const uint32_t* requested_ranks;
  size_t requested_count;
} sortition_logprobs;

// One token of a result.
typedef struct sortition_position {
  size_t struct_size;
  uint32_t token;
  float entropy;  // nats, with has_entropy
  uint32_t has_entropy;
  uint32_t kept_count;  // number of tokens that passed every filter, with has_kept_count
  uint32_t has_kept_count;
  uint32_t phase;                       // phase of the draw: 1 is the first of "phases"; 0: no phase
  const sortition_logprobs* raw;        // null unless "raw_logprobs" is set
  const sortition_logprobs* processed;  // null unless "processed_logprobs" is set
  const uint32_t* kept_tokens;          // ids, ascending, with "kept_set.tokens"
  size_t kept_token_count;
  const float* probabilities;  // of each token of the live vocabulary, with return_probabilities
  size_t probability_count;
  const sortition_logprobs* tempered;  // null unless "tempered_logprobs" is set
  float kept_log_mass;                 // of these tokens in the tempered distribution, with has_kept_log_mass
  uint32_t has_kept_log_mass;
} sortition_position;

enum { SORTITION_RESULT_ERROR = 0, SORTITION_RESULT_DRAW = 1, SORTITION_RESULT_VERIFY = 2, SORTITION_RESULT_SCORE = 3 };
enum { SORTITION_FINISH_NONE = 0, SORTITION_FINISH_STOP_TOKEN = 1, SORTITION_FINISH_REPETITION = 2 };

// The result of one row.
typedef struct sortition_result {
  size_t struct_size;
  int32_t kind;                  // SORTITION_RESULT_*
  int32_t finish_reason;         // SORTITION_FINISH_*
  const sortition_error* error;  // of SORTITION_RESULT_ERROR, else null; the sequence stays where it was
  // The drawn token; the accepted drafts and the token after them; the scored tokens.
  const sortition_position* const* positions;
  size_t position_count;
  uint32_t accepted;                // number of accepted drafts, to commit by
  uint32_t matched;                 // telemetry: drafts that passed at their own position
  const uint8_t* position_matched;  // telemetry: 1 or 0 for each draft
  size_t position_matched_count;
  const uint32_t* path;  // of a tree: the accepted drafts, by index
  size_t path_count;
  // The banned phrase ("banned_phrases") that the text has ended in, and its position. The sequence has been cut there.
  // Its next draw begins with another token, and later draws have fresh noise. Null: none.
  const uint32_t* rewind_tokens;
  size_t rewind_count;
  uint32_t rewind_position;
  uint32_t reserved;
} sortition_result;

// The results of a batch, in the order of its rows.
typedef struct sortition_results {
  size_t struct_size;
  const sortition_result* const* rows;
  size_t row_count;
} sortition_results;

// Frees results and the data that they name; null is allowed.
SORTITION_API void sortition_results_free(sortition_results* results);

// Steps rows of local sequences on the calling thread, in turn. Each row succeeds or fails alone. Blocks for the time
// of the computation. The call fails if the batch itself is invalid; then nothing has happened. If memory runs out
// (RESOURCE_EXHAUSTED) some rows may have been sampled already.
SORTITION_API sortition_code sortition_local_step(const sortition_batch* batch, sortition_results** results,
                                                  sortition_error** error);

// ---- client

// The client of the sampling service. It keeps a stream, tries several targets, reconnects, replays histories and
// repeats steps that got lost (docs/client.md). Tokens do not depend on any of this. It owns its threads and
// connections.
typedef struct sortition_client sortition_client;

#define SORTITION_NEVER UINT64_MAX  // turns a field of sortition_client_options off

enum { SORTITION_TRANSPORT_AUTO = 0, SORTITION_TRANSPORT_GRPC = 1, SORTITION_TRANSPORT_RING = 2 };
enum { SORTITION_FALLBACK_NONE = 0, SORTITION_FALLBACK_IN_PROCESS = 1 };

// Times are in nanoseconds. client/cpp/include/sortition/options.h describes each field at length.
typedef struct sortition_client_options {
  size_t struct_size;
  const char* const* targets;      // "host:port" or "unix:path", tried in turn
  size_t target_count;             // 0: all rows are sampled in this process, with SORTITION_FALLBACK_IN_PROCESS
  int32_t transport;               // SORTITION_TRANSPORT_*
  int32_t fallback;                // while no target can be reached; SORTITION_FALLBACK_*
  const char* worker_session;      // tells apart workers with the same request ids; at most 128 bytes; null: random
  const char* name;                // for the server's log; at most 128 bytes; null: "sortition-c"
  const char* token;               // bearer token; printable ASCII without spaces; null: none
  uint64_t default_timeout_ns;     // of a step or an open; 0: 30 s
  uint64_t connect_timeout_ns;     // until a stream's welcome; 0: 5 s
  uint64_t keepalive_ns;           // HTTP/2 keepalive, at least 10 s; 0: 20 s
  uint64_t backoff_initial_ns;     // pause between rounds over all targets, doubled from this; 0: 50 ms
  uint64_t backoff_max_ns;         // to this; 0: 0.8 s
  uint64_t fallback_stay_ns;       // SORTITION_NEVER: does not stay; 0: 5 min
  uint64_t shared_memory_bytes;    // shared with a server on this machine; SORTITION_NEVER: none; 0: 64 MiB
  uint64_t ring_spin_ns;           // polling before a caller sleeps, on a ring; SORTITION_NEVER: none; 0: 1 ms
  uint64_t message_bytes;          // of a message, at most; 0: 2 MiB
  uint64_t history_window_tokens;  // of histories that are sent but not answered; 0: 262144
  uint32_t message_rows;           // of a message, at most; 0: 256
  uint32_t history_piece_tokens;   // of a piece of a history; 0: 8192
  uint32_t in_process_threads;     // of the fallback; 0: one for each hardware thread
  uint32_t memory_server_user;     // a user whose servers may share memory, with has_memory_server_user
  uint32_t has_memory_server_user;
  uint32_t use_tls;                   // 1: TLS, with the four texts below
  const char* tls_root_certificates;  // PEM texts, not file names; null: the system's roots
  const char* tls_certificate_chain;  // null: no certificate is shown
  const char* tls_private_key;
  const char* tls_server_name;  // expected in the certificate; null: the target's host
  // A tensor-parallel rank has a part of the vocabulary (docs/client.md).
  uint32_t shard_index;
  uint32_t shard_count;  // of ranks; 0: rows are whole
  uint32_t shard_first_token;
  uint32_t shard_tokens;
  uint32_t shard_vocabulary_size;
  // 1: a server of an earlier release ignores the fields that it does not know, which
  // sortition_client_get_ignored_fields names; 0: it refuses them
  uint32_t ignore_unknown_fields;
  // The form in which rows travel: "auto", "full", "compact" or "compact(COUNT)" (docs/rows.md); null: "auto"
  const char* rows;
} sortition_client_options;

// Blocks until a target or the fallback has welcomed a stream. After each target has failed twice, returns UNAVAILABLE,
// or the code of the last one's refusal. INVALID_ARGUMENT if an option is out of range.
SORTITION_API sortition_code sortition_client_connect(const sortition_client_options* options,
                                                      sortition_client** client, sortition_error** error);

// Closes the handle. Blocks until calls of other threads have returned. Then ends steps in flight with STEP_CANCELLED,
// and blocks until their callbacks have returned. FAILED_PRECONDITION within a callback. The client's sequences are
// closed separately.
SORTITION_API sortition_code sortition_client_close(sortition_client* client, sortition_error** error);

// Makes a sequence known to the service. Blocks for a round trip, at most default_timeout_ns. ALREADY_EXISTS if the
// client has a sequence with this request id; otherwise the service's refusal.
SORTITION_API sortition_code sortition_client_open(sortition_client* client, const sortition_sequence_options* options,
                                                   sortition_sequence** sequence, sortition_error** error);

typedef struct sortition_step_options {
  size_t struct_size;
  uint64_t timeout_ns;      // of the whole step, retries included; 0: the client's default_timeout_ns
  const char* traceparent;  // W3C trace context, for the server's log; null: none
  int32_t priority;         // -100 to 100; higher starts first
  uint32_t reserved;        // 0
} sortition_step_options;

// Steps rows of the client's sequences. Blocks until every row has a result. Each row succeeds or fails alone. The call
// fails if the batch itself is invalid; then nothing has happened. `options` may be null. The memory that rows name
// (logits, masks, drafts, scored tokens) must stay unchanged until the call returns.
SORTITION_API sortition_code sortition_client_step(sortition_client* client, const sortition_batch* batch,
                                                   const sortition_step_options* options, sortition_results** results,
                                                   sortition_error** error);

// Receives the results of a step and owns them. Null if there was no memory for them. Called on a client's thread, or
// on a thread that is in sortition_client_step. Must not block. May start steps.
typedef void (*sortition_step_done)(void* user_data, sortition_results* results);

// Does the same without blocking. Calls `done` exactly once if it returns SORTITION_OK, maybe before it returns;
// otherwise never. The memory that rows name must stay unchanged until then.
SORTITION_API sortition_code sortition_client_step_async(sortition_client* client, const sortition_batch* batch,
                                                         const sortition_step_options* options,
                                                         sortition_step_done done, void* user_data,
                                                         sortition_error** error);

// Memory for logits that need no copy, and for ready words. A struct of the library.
typedef struct sortition_memory {
  size_t struct_size;
  void* data;  // aligned to a page
  uint64_t bytes;
  uint32_t shared;  // 1: shared with the server; 0: memory of this process
  uint32_t reserved;
} sortition_memory;

// Allocates such memory, `bytes` of at least 1. It stays valid when the stream or the client ends. RESOURCE_EXHAUSTED
// if the server gives no more. Blocks for a round trip.
SORTITION_API sortition_code sortition_client_allocate(sortition_client* client, uint64_t bytes,
                                                       sortition_memory** memory, sortition_error** error);
// Frees the memory; null is allowed. No step may be using it. May block for a round trip.
SORTITION_API void sortition_memory_free(sortition_memory* memory);

// How the client's rows travel now. `note` is the caller's buffer for the reason why nothing better is in use.
typedef struct sortition_transport_in_use {
  size_t struct_size;
  int32_t transport;    // SORTITION_TRANSPORT_GRPC or SORTITION_TRANSPORT_RING
  uint32_t row_memory;  // 1: rows pass through memory shared with the server
  uint32_t in_process;  // 1: rows are sampled in this process; the fields above say nothing then
  uint32_t reserved;
  char* note;          // in: a buffer, or null
  size_t note_size;    // in: bytes of the buffer; a longer note is cut, and ends with a 0 byte
  size_t note_length;  // out: bytes of the whole note without the 0 byte
} sortition_transport_in_use;

// Fills `use` as far as use->struct_size says.
SORTITION_API sortition_code sortition_client_get_transport(sortition_client* client, sortition_transport_in_use* use,
                                                            sortition_error** error);

// Copies the fields that servers have ignored since the client began to `buffer`, each once, a line feed after each.
SORTITION_API sortition_code sortition_client_get_ignored_fields(sortition_client* client, char* buffer, size_t size,
                                                                 size_t* length, sortition_error** error);

// Copies the worker session to `buffer`.
SORTITION_API sortition_code sortition_client_get_worker_session(sortition_client* client, char* buffer, size_t size,
                                                                 size_t* length, sortition_error** error);

#ifdef __cplusplus
}
#endif
