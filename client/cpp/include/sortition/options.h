// Options of a client and of a sequence.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "sortition/receipts.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

class Connector;

// Makes the part of a client that samples in this process; InProcessEngine (in_process.h) returns one.
using InProcess = std::function<std::shared_ptr<Connector>()>;

// PEM texts, not file names. Empty: the system's roots, no certificate of our own.
struct TlsOptions {
  std::string root_certificates;
  std::string certificate_chain;
  std::string private_key;
  std::string server_name;  // expected in the certificate; empty: the target's host
};

// Pauses between rounds over all targets: doubled from `initial` to `max`, each cut by up to half at random, so that
// workers that lost a server at the same time do not return at the same time.
struct Backoff {
  absl::Duration initial = absl::Milliseconds(50);
  absl::Duration max = absl::Milliseconds(800);
};

// How messages travel to a target. Tokens do not depend on it.
enum class TransportKind {
  kAuto,  // a ring where the server offers one to this machine, otherwise gRPC
  kGrpc,  // a gRPC stream, over TCP ("host:port") or a Unix socket ("unix:path")
  kRing,  // message queues in memory shared with the server, for steps of microseconds; every target must be the path
          // of a memory socket, "unix:path"
};

// How the stream in use travels.
struct TransportInUse {
  TransportKind kind = TransportKind::kGrpc;  // never kAuto
  bool row_memory = false;                    // rows pass through memory shared with the server
  bool in_process = false;                    // rows are sampled in this process; the others say nothing then
  std::string note;                           // why it is nothing better; empty if it is the requested one
};

// The part of each row's vocabulary that this process has, as one of several tensor-parallel ranks, which each have a
// client of the same server. Shards cover the vocabulary and do not overlap. docs/data-plane.md has the rules for
// ranks.
struct VocabularyShard {
  uint32_t index = 0;            // this rank's; steps take masks, priorities and traces from rank 0
  uint32_t count = 0;            // of ranks, 2 to 256
  uint32_t first_token = 0;      // of this shard
  uint32_t tokens = 0;           // in this shard: elements of a row in this rank's batches
  uint32_t vocabulary_size = 0;  // a whole row's: every sequence's
};

// How the client and a server exchange messages and rows. Tokens do not depend on it.
struct TransportOptions {
  TransportKind kind = TransportKind::kAuto;
  std::optional<TlsOptions> tls = std::nullopt;  // absent: plain text
  // Shown to the server as a bearer token; printable ASCII without spaces. Empty: none. Without `tls` it travels in
  // plain text.
  std::string token = {};
  // HTTP/2 keepalive period; the ping timeout is 10 s. At least 10 s: servers close connections that ping more often.
  absl::Duration keepalive = absl::Seconds(20);
  // Size of the memory shared with a server on this machine for rows that the caller has elsewhere
  // (Client::AllocateRows allocates other memory). The server may give less. Rows that find no room travel within the
  // stream. 0 = no memory is shared with a server: all rows travel within the stream, and kAuto stays with gRPC. At
  // least 1 with kRing.
  uint64_t shared_memory_bytes = uint64_t{64} << 20;
  // Number of a user whose servers may share memory with this process, besides this process's user and root. The client
  // does not speak to a memory socket of any other user.
  std::optional<uint32_t> memory_server_user = std::nullopt;
  // Longest time for which a caller that waits for its step over a ring polls before it sleeps. It polls only if the
  // last answer came within this time. Polling keeps a core busy: up to the whole wait of each step. Zero = never
  // polls.
  absl::Duration ring_spin = absl::Milliseconds(1);
};

// The form in which rows travel to a server. Tokens do not depend on it (docs/rows.md).
struct RowFormOptions {
  enum class Form {
    kAuto,     // compact where rows would travel through a socket and are much longer than their compact form
    kFull,     // whole
    kCompact,  // compact, for servers that take it
  };
  Form form = Form::kAuto;
  // First tokens that a compact row lists; 1 of a greedy row that nothing edits or masks. At least 1, at most the
  // server's limit max_compact_tokens.
  uint32_t count = 256;

  // Reads "auto", "full", "compact" or "compact(COUNT)". Absent if the text is none of them.
  static std::optional<RowFormOptions> Parse(std::string_view text);
};

// When the client gives up a server, tries again, and comes back to it.
struct RetryOptions {
  // Longest time from the start of a stream to the server's welcome. The client also leaves a server that has sent
  // nothing for this long while two steps or opens in a row passed their deadlines.
  absl::Duration connect_timeout = absl::Seconds(5);
  Backoff backoff = {};
  // A server cannot take over the state that mirostat and adaptive-p have reached in this process. So all rows stay
  // here while a sequence with them is open that was stepped here, but at most for this time after a target is back;
  // such a sequence then fails with CHECKPOINT_REFUSED.
  absl::Duration fallback_stay = absl::Minutes(5);
};

// Sizes of messages.
struct LimitOptions {
  // A batch travels in messages of whole rows, each of at most this many bytes and tensor rows (but at least one row),
  // so that transfer overlaps with sampling. A row with drafts or scores has a tensor row for each position. For rows
  // in shared memory and in process only their number counts. The server's max_message_bytes, which its welcome names,
  // is a limit, too: a single row that is larger, with its drafts or scores, fails with TOO_MANY. message_rows is at
  // most the server's max_step_positions.
  uint64_t message_bytes = uint64_t{2} << 20;
  uint32_t message_rows = 256;
  // A longer history is replayed in pieces of this many tokens, or of fewer that fit a message of the stream.
  uint32_t history_piece_tokens = 8192;
  // Upper bound on the tokens of the histories that are sent but not answered, unless it is a single history. Other
  // histories wait, so that rows do not wait behind all of them.
  uint64_t history_window_tokens = 1u << 18;
};

// Most callers set `targets`, and `in_process` or `transport`.
struct ClientOptions {
  // "host:port" or "unix:path", tried in turn. May be empty with `in_process`: all rows are then sampled in this
  // process. The last one may be "in_process", which means the same as `in_process` and needs it.
  std::vector<std::string> targets = {};
  // Set: while no target can be reached, rows are sampled in this process, with the same tokens. Null: steps wait for a
  // target until their deadline.
  InProcess in_process = nullptr;
  // Timeout of a step or an open that names none.
  absl::Duration default_timeout = absl::Seconds(30);
  // Distinguishes workers that use the same request ids. 1 to 128 bytes; random if empty. Keep it across restarts only
  // if request ids are never used twice.
  std::string worker_session = {};
  std::string name = "sortition-cpp";  // for the server's logs; at most 128 bytes
  // Set: a server of an earlier release ignores the fields that it does not know, and Client::ignored_fields names
  // them. A sampler in such a field is then off. Not set: the server refuses the message or the row (UNKNOWN_FIELD).
  bool ignore_unknown_fields = false;
  // Set if this process steps shards of rows. Then there is one target, the same for all ranks; `worker_session` is
  // given, the same for all ranks, and request ids are used once in it; and rows are not sampled in this process.
  std::optional<VocabularyShard> shard = std::nullopt;

  TransportOptions transport = {};
  RowFormOptions rows = {};
  RetryOptions retry = {};
  LimitOptions limits = {};
};

// A ban of one token at one position of a text, which a rewind has left (SamplingParameters.banned_phrases).
struct BannedAt {
  uint32_t position = 0;
  uint32_t token = 0;
  auto operator<=>(const BannedAt&) const = default;
};

// The remains of a text's rewinds.
struct Rewound {
  uint32_t count = 0;               // of all its rewinds; the client adds it to the salts of its draws
  std::vector<BannedAt> bans = {};  // that hold in the text as it stands, sorted
  bool operator==(const Rewound&) const = default;
};

// The options of a sequence, fixed when it opens. The service checks their ranges.
struct SequenceOptions {
  std::string request_id;  // 1 to 128 bytes, unique among the open sequences of the client
  v1::SamplingParameters parameters;
  std::optional<uint64_t> seed;                  // absent: the service draws one; Sequence::seed() has it
  uint32_t choice_index = 0;                     // which of n parallel completions of one prompt
  uint32_t vocabulary_size = 0;                  // elements of a row
  std::optional<uint32_t> live_vocabulary_size;  // ids at or above are never drawn; absent: all are live
  std::string model;                             // for the server's logs
  std::vector<uint32_t> prompt;
  // Position of the first drawn token, for a sequence without state whose prompt the caller does not pass; `prompt` is
  // then empty. Refused if an option looks at the history.
  std::optional<uint32_t> start_position;
  // With ClientOptions::shard, if a rank continues a text in a new process: Sequence::turns() of the other ranks.
  uint32_t turns = 0;
  // For a process that continues another one's text with banned phrases: the other one's Sequence::rewound(). Without
  // it a phrase that was taken back may be drawn and taken back again, with used noise.
  Rewound rewound = {};
  // If a process continues a text that another one has begun under an operator's policy: Sequence::policy() of that
  // one. The text keeps its mark and its values, or is refused. Absent: the policy that is in force now holds.
  std::optional<v1::PolicyEffect> policy = std::nullopt;
  // The key of the operator's list that marks a new text, by name: completions of one prompt differ by their keys.
  // Empty: the newest one. Refused if no policy marks the text.
  std::string watermark_key_id = {};
  // Set: the service makes a receipt of each token, and the client puts them here (docs/receipts.md). One log a
  // sequence. Refused with ClientOptions::in_process, which makes none. With ClientOptions::shard the log is rank 0's.
  std::shared_ptr<ReceiptLog> receipts = nullptr;
};

}  // namespace sortition::client
