// The interface of ABI version 1, frozen: header_test.py compares it with sortition.h.
#pragma once
#define SORTITION_API __attribute__((visibility("default")))
typedef int32_t sortition_code;
enum {
  SORTITION_OK = 0,
  SORTITION_CANCELLED = 1,
  SORTITION_UNKNOWN = 2,
  SORTITION_INVALID_ARGUMENT = 3,
  SORTITION_DEADLINE_EXCEEDED = 4,
  SORTITION_NOT_FOUND = 5,
  SORTITION_ALREADY_EXISTS = 6,
  SORTITION_PERMISSION_DENIED = 7,
  SORTITION_RESOURCE_EXHAUSTED = 8,
  SORTITION_FAILED_PRECONDITION = 9,
  SORTITION_ABORTED = 10,
  SORTITION_OUT_OF_RANGE = 11,
  SORTITION_UNIMPLEMENTED = 12,
  SORTITION_INTERNAL = 13,
  SORTITION_UNAVAILABLE = 14,
  SORTITION_DATA_LOSS = 15,
  SORTITION_UNAUTHENTICATED = 16
};
enum { SORTITION_REASON_NONE = 0, SORTITION_REASON_MALFORMED_MESSAGE = 1, SORTITION_REASON_UNKNOWN_FIELD = 2 };
enum { SORTITION_REASON_UNKNOWN_ENUM_VALUE = 3, SORTITION_REASON_MISSING_FIELD = 4, SORTITION_REASON_OUT_OF_RANGE = 5 };
enum { SORTITION_REASON_TOO_MANY = 6, SORTITION_REASON_NOT_IMPLEMENTED = 7, SORTITION_REASON_CONTRADICTION = 8 };
enum { SORTITION_REASON_SIZE_MISMATCH = 9, SORTITION_REASON_VOCABULARY_MISMATCH = 10 };
enum { SORTITION_REASON_DUPLICATE_ROW = 11, SORTITION_REASON_UNSUPPORTED_LAW_VERSION = 12 };
enum { SORTITION_REASON_PROTOCOL_VIOLATION = 13, SORTITION_REASON_UNKNOWN_REGION = 14 };
enum { SORTITION_REASON_UNKNOWN_MASK = 15, SORTITION_REASON_CHECKPOINT_REFUSED = 16 };
enum { SORTITION_REASON_UNAUTHENTICATED = 17, SORTITION_REASON_PERMISSION_DENIED = 18 };
enum { SORTITION_REASON_LOGIT_NAN = 20, SORTITION_REASON_LOGIT_TOO_LARGE = 21, SORTITION_REASON_NO_LIVE_TOKEN = 22 };
enum { SORTITION_REASON_HISTORY_REQUIRED = 30, SORTITION_REASON_STALE_STEP = 31, SORTITION_REASON_SUPERSEDED = 32 };
enum { SORTITION_REASON_STEP_IN_FLIGHT = 33, SORTITION_REASON_UNKNOWN_SEQUENCE = 34 };
enum { SORTITION_REASON_STEP_CONFLICT = 35, SORTITION_REASON_ROW_REQUIRED = 36 };
enum { SORTITION_REASON_OVERLOADED = 40, SORTITION_REASON_DEADLINE_PASSED = 41 };
enum { SORTITION_REASON_STEP_CANCELLED = 42, SORTITION_REASON_DRAINING = 43, SORTITION_REASON_DEVICE_FAILED = 44 };
enum { SORTITION_REASON_CLIENT_LIMIT = 45, SORTITION_REASON_RECEIPTS_NOT_WRITTEN = 46 };
typedef struct sortition_error {
  size_t struct_size;
  sortition_code code;
  int32_t reason;
  const char* reason_name;
  const char* field;
  const char* limit;
  const char* message;
  uint64_t retry_after_ns;
} sortition_error;
SORTITION_API void sortition_error_free(sortition_error* error);
#define SORTITION_VERSION "0.1.0"
#define SORTITION_ABI_VERSION 1
#define SORTITION_ABI_FITS(library) \
  ((library) / 1000 == SORTITION_ABI_VERSION / 1000 && (library) >= SORTITION_ABI_VERSION)
SORTITION_API const char* sortition_version(void);
SORTITION_API uint32_t sortition_abi_version(void);
SORTITION_API uint32_t sortition_law_version(void);
typedef struct sortition_parameters sortition_parameters;
SORTITION_API sortition_code sortition_parameters_new(sortition_parameters** parameters, sortition_error** error);
SORTITION_API sortition_code sortition_parameters_copy(const sortition_parameters* from, sortition_parameters** copy,
                                                       sortition_error** error);
SORTITION_API sortition_code sortition_parameters_close(sortition_parameters* parameters, sortition_error** error);
SORTITION_API sortition_code sortition_parameters_set_double(sortition_parameters* parameters, const char* name,
                                                             double value, sortition_error** error);
SORTITION_API sortition_code sortition_parameters_set_uint(sortition_parameters* parameters, const char* name,
                                                           uint64_t value, sortition_error** error);
SORTITION_API sortition_code sortition_parameters_set_bool(sortition_parameters* parameters, const char* name,
                                                           int32_t value, sortition_error** error);
SORTITION_API sortition_code sortition_parameters_set_text(sortition_parameters* parameters, const char* name,
                                                           const char* value, sortition_error** error);
SORTITION_API sortition_code sortition_parameters_set_tokens(sortition_parameters* parameters, const char* name,
                                                             const uint32_t* tokens, size_t count,
                                                             sortition_error** error);
SORTITION_API sortition_code sortition_parameters_set_biases(sortition_parameters* parameters, const char* name,
                                                             const uint32_t* tokens, const float* biases, size_t count,
                                                             sortition_error** error);
SORTITION_API sortition_code sortition_parameters_add_tokens(sortition_parameters* parameters, const char* name,
                                                             const uint32_t* tokens, size_t count,
                                                             sortition_error** error);
SORTITION_API sortition_code sortition_parameters_add_text(sortition_parameters* parameters, const char* name,
                                                           const char* value, sortition_error** error);
SORTITION_API sortition_code sortition_parameters_clear(sortition_parameters* parameters, const char* name,
                                                        sortition_error** error);
typedef struct sortition_receipts sortition_receipts;
SORTITION_API sortition_code sortition_receipts_new(const uint8_t* salt, sortition_receipts** receipts,
                                                    sortition_error** error);
SORTITION_API sortition_code sortition_receipts_take(sortition_receipts* receipts, uint8_t* records, size_t capacity,
                                                     size_t* size, sortition_error** error);
SORTITION_API sortition_code sortition_receipts_get_seed_line(const sortition_receipts* receipts, char* buffer,
                                                              size_t size, size_t* length, sortition_error** error);
SORTITION_API sortition_code sortition_receipts_await_end(const sortition_receipts* receipts, uint64_t timeout_ns,
                                                          sortition_error** error);
SORTITION_API sortition_code sortition_receipts_close(sortition_receipts* receipts, sortition_error** error);
typedef struct sortition_sequence sortition_sequence;
typedef struct sortition_sequence_options {
  size_t struct_size;
  const char* request_id;
  const sortition_parameters* parameters;
  uint32_t vocabulary_size;
  uint32_t live_vocabulary_size;
  const uint32_t* prompt;
  size_t prompt_count;
  uint64_t seed;
  uint32_t has_seed;
  uint32_t choice_index;
  uint32_t start_position;
  uint32_t has_start_position;
  const char* model;
  uint32_t turns;
  uint32_t reserved;
  const sortition_receipts* receipts;
} sortition_sequence_options;
SORTITION_API sortition_code sortition_local_open(const sortition_sequence_options* options,
                                                  sortition_sequence** sequence, sortition_error** error);
SORTITION_API sortition_code sortition_sequence_fork(const sortition_sequence* parent,
                                                     const sortition_sequence_options* options,
                                                     const uint32_t* position, sortition_sequence** child,
                                                     sortition_error** error);
SORTITION_API sortition_code sortition_sequence_clone(const sortition_sequence* sequence, sortition_sequence** clone,
                                                      sortition_error** error);
SORTITION_API sortition_code sortition_sequence_append(sortition_sequence* sequence, const uint32_t* tokens,
                                                       size_t count, sortition_error** error);
SORTITION_API sortition_code sortition_sequence_truncate(sortition_sequence* sequence, uint32_t position,
                                                         sortition_error** error);
SORTITION_API sortition_code sortition_sequence_replace_last(sortition_sequence* sequence, uint32_t token,
                                                             sortition_error** error);
typedef struct sortition_sequence_info {
  size_t struct_size;
  uint64_t seed;
  uint32_t vocabulary_size;
  uint32_t position;
  uint32_t stateful;
  uint32_t turns;
} sortition_sequence_info;
SORTITION_API sortition_code sortition_sequence_get_info(const sortition_sequence* sequence,
                                                         sortition_sequence_info* info, sortition_error** error);
SORTITION_API sortition_code sortition_sequence_get_tokens(const sortition_sequence* sequence, uint32_t* tokens,
                                                           size_t capacity, size_t* count, sortition_error** error);
SORTITION_API sortition_code sortition_sequence_close(sortition_sequence* sequence, sortition_error** error);
enum { SORTITION_F32 = 1, SORTITION_F16 = 2, SORTITION_BF16 = 3 };
enum { SORTITION_VERIFY_COUPLED = 0, SORTITION_VERIFY_GREEDY = 1 };
enum { SORTITION_VERIFY_REJECTION = 2, SORTITION_VERIFY_BLOCK = 3 };
enum { SORTITION_DRAFTS_WITHOUT_REPLACEMENT = 1, SORTITION_DRAFTS_WITH_REPLACEMENT = 2 };
typedef struct sortition_sparse_probabilities {
  size_t struct_size;
  const uint32_t* tokens;
  const float* probabilities;
  size_t count;
} sortition_sparse_probabilities;
typedef struct sortition_drafts {
  size_t struct_size;
  const uint32_t* tokens;
  size_t count;
  const int32_t* parents;
  int32_t mode;
  uint32_t return_probabilities;
  const void* probabilities;
  const sortition_sparse_probabilities* sparse_probabilities;
  int32_t sampling;
} sortition_drafts;
typedef struct sortition_row {
  size_t struct_size;
  sortition_sequence* sequence;
  const void* logits;
  const uint32_t* allowed_bits;
  const sortition_drafts* drafts;
  const uint32_t* scored;
  size_t scored_count;
  uint32_t draw_salt;
  uint32_t reserved;
  const uint32_t* banned_tokens;
  size_t banned_count;
} sortition_row;
typedef struct sortition_batch {
  size_t struct_size;
  const sortition_row* rows;
  size_t row_count;
  uint32_t vocabulary_size;
  int32_t dtype;
  int32_t draft_dtype;
  uint32_t ready_value;
  const uint32_t* ready_word;
} sortition_batch;
typedef struct sortition_logprobs {
  size_t struct_size;
  float logprob;
  uint32_t rank;
  const uint32_t* top_tokens;
  const float* top_logprobs;
  size_t top_count;
  const float* requested_logprobs;
  const uint32_t* requested_ranks;
  size_t requested_count;
} sortition_logprobs;
typedef struct sortition_position {
  size_t struct_size;
  uint32_t token;
  float entropy;
  uint32_t has_entropy;
  uint32_t kept_count;
  uint32_t has_kept_count;
  uint32_t phase;
  const sortition_logprobs* raw;
  const sortition_logprobs* processed;
  const uint32_t* kept_tokens;
  size_t kept_token_count;
  const float* probabilities;
  size_t probability_count;
  const sortition_logprobs* tempered;
  float kept_log_mass;
  uint32_t has_kept_log_mass;
} sortition_position;
enum { SORTITION_RESULT_ERROR = 0, SORTITION_RESULT_DRAW = 1, SORTITION_RESULT_VERIFY = 2, SORTITION_RESULT_SCORE = 3 };
enum { SORTITION_FINISH_NONE = 0, SORTITION_FINISH_STOP_TOKEN = 1, SORTITION_FINISH_REPETITION = 2 };
typedef struct sortition_result {
  size_t struct_size;
  int32_t kind;
  int32_t finish_reason;
  const sortition_error* error;
  const sortition_position* const* positions;
  size_t position_count;
  uint32_t accepted;
  uint32_t matched;
  const uint8_t* position_matched;
  size_t position_matched_count;
  const uint32_t* path;
  size_t path_count;
  const uint32_t* rewind_tokens;
  size_t rewind_count;
  uint32_t rewind_position;
  uint32_t reserved;
} sortition_result;
typedef struct sortition_results {
  size_t struct_size;
  const sortition_result* const* rows;
  size_t row_count;
} sortition_results;
SORTITION_API void sortition_results_free(sortition_results* results);
SORTITION_API sortition_code sortition_local_step(const sortition_batch* batch, sortition_results** results,
                                                  sortition_error** error);
typedef struct sortition_client sortition_client;
#define SORTITION_NEVER UINT64_MAX
enum { SORTITION_TRANSPORT_AUTO = 0, SORTITION_TRANSPORT_GRPC = 1, SORTITION_TRANSPORT_RING = 2 };
enum { SORTITION_FALLBACK_NONE = 0, SORTITION_FALLBACK_IN_PROCESS = 1 };
typedef struct sortition_client_options {
  size_t struct_size;
  const char* const* targets;
  size_t target_count;
  int32_t transport;
  int32_t fallback;
  const char* worker_session;
  const char* name;
  const char* token;
  uint64_t default_timeout_ns;
  uint64_t connect_timeout_ns;
  uint64_t keepalive_ns;
  uint64_t backoff_initial_ns;
  uint64_t backoff_max_ns;
  uint64_t fallback_stay_ns;
  uint64_t shared_memory_bytes;
  uint64_t ring_spin_ns;
  uint64_t message_bytes;
  uint64_t history_window_tokens;
  uint32_t message_rows;
  uint32_t history_piece_tokens;
  uint32_t in_process_threads;
  uint32_t memory_server_user;
  uint32_t has_memory_server_user;
  uint32_t use_tls;
  const char* tls_root_certificates;
  const char* tls_certificate_chain;
  const char* tls_private_key;
  const char* tls_server_name;
  uint32_t shard_index;
  uint32_t shard_count;
  uint32_t shard_first_token;
  uint32_t shard_tokens;
  uint32_t shard_vocabulary_size;
  uint32_t ignore_unknown_fields;
  const char* rows;
} sortition_client_options;
SORTITION_API sortition_code sortition_client_connect(const sortition_client_options* options,
                                                      sortition_client** client, sortition_error** error);
SORTITION_API sortition_code sortition_client_close(sortition_client* client, sortition_error** error);
SORTITION_API sortition_code sortition_client_open(sortition_client* client, const sortition_sequence_options* options,
                                                   sortition_sequence** sequence, sortition_error** error);
typedef struct sortition_step_options {
  size_t struct_size;
  uint64_t timeout_ns;
  const char* traceparent;
  int32_t priority;
  uint32_t reserved;
} sortition_step_options;
SORTITION_API sortition_code sortition_client_step(sortition_client* client, const sortition_batch* batch,
                                                   const sortition_step_options* options, sortition_results** results,
                                                   sortition_error** error);
typedef void (*sortition_step_done)(void* user_data, sortition_results* results);
SORTITION_API sortition_code sortition_client_step_async(sortition_client* client, const sortition_batch* batch,
                                                         const sortition_step_options* options,
                                                         sortition_step_done done, void* user_data,
                                                         sortition_error** error);
typedef struct sortition_memory {
  size_t struct_size;
  void* data;
  uint64_t bytes;
  uint32_t shared;
  uint32_t reserved;
} sortition_memory;
SORTITION_API sortition_code sortition_client_allocate(sortition_client* client, uint64_t bytes,
                                                       sortition_memory** memory, sortition_error** error);
SORTITION_API void sortition_memory_free(sortition_memory* memory);
typedef struct sortition_transport_in_use {
  size_t struct_size;
  int32_t transport;
  uint32_t row_memory;
  uint32_t in_process;
  uint32_t reserved;
  char* note;
  size_t note_size;
  size_t note_length;
} sortition_transport_in_use;
SORTITION_API sortition_code sortition_client_get_transport(sortition_client* client, sortition_transport_in_use* use,
                                                            sortition_error** error);
SORTITION_API sortition_code sortition_client_get_ignored_fields(sortition_client* client, char* buffer, size_t size,
                                                                 size_t* length, sortition_error** error);
SORTITION_API sortition_code sortition_client_get_worker_session(sortition_client* client, char* buffer, size_t size,
                                                                 size_t* length, sortition_error** error);
