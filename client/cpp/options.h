// How a client reaches the service, and what it does when it cannot.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace sortition::client {

// PEM texts, not file names. Empty: the system's roots, no certificate of our own.
struct TlsOptions {
  std::string root_certificates;
  std::string certificate_chain;
  std::string private_key;
  std::string server_name;  // expected in the certificate, where it is not the target's host
};

// Waits between rounds over all targets: doubled from `initial` to `max`, each cut by up to half at random, so that
// workers that lost one server together do not come back together.
struct Backoff {
  absl::Duration initial = absl::Milliseconds(50);
  absl::Duration max = absl::Seconds(5);
};

enum class Fallback {
  kNone,       // without a reachable target steps wait until their deadline
  kInProcess,  // without a reachable target rows are sampled in this process, with the same tokens, until one is back
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
  std::string note;                           // why it is nothing better; empty if it is what was asked for
};

// Which slice of each row's vocabulary this process has: one of several tensor-parallel ranks, each with a client of
// its own to the same server. Slices cover the vocabulary, and do not overlap. docs/data-plane.md says what ranks have
// to keep to.
struct VocabularyShard {
  uint32_t index = 0;            // of this rank; rank 0 leads: masks, priorities and traces of steps are its own
  uint32_t count = 0;            // of ranks, 2 to 256
  uint32_t first_token = 0;      // of this slice
  uint32_t tokens = 0;           // in this slice: elements of a row in this rank's batches
  uint32_t vocabulary_size = 0;  // of a whole row: that of every sequence
};

struct ClientOptions {
  // "host:port" or "unix:path", tried in turn. May be empty with Fallback::kInProcess: everything is then sampled in
  // this process.
  std::vector<std::string> targets;
  TransportKind transport = TransportKind::kAuto;
  // Size of the memory shared with a server on this machine for rows that the caller has elsewhere
  // (Client::AllocateRows has memory of its own). The server may give less. Rows that find no room travel within the
  // stream. 0 = no memory is shared with a server: all rows travel within the stream, and kAuto stays with gRPC. At
  // least 1 with kRing.
  uint64_t shared_memory_bytes = uint64_t{64} << 20;
  // Whose process a server is that shares memory with this one, where that is neither this process's user nor root: a
  // user's number. What others have put at the place of a server's memory socket is not spoken to.
  std::optional<uint32_t> memory_server_user;
  // How long a caller that waits for its step over a ring looks for the answer before it sleeps, if the last answer
  // came that soon. Zero = never.
  absl::Duration ring_spin = absl::Microseconds(500);
  // Tells apart engines that number their requests alike. 1 to 128 bytes; random if empty. Keep it across restarts only
  // if request ids are never used twice.
  std::string worker_session;
  std::string name = "sortition-cpp";  // for the server's logs; at most 128 bytes
  std::optional<TlsOptions> tls;       // absent: plain text
  // Shown to the server as a bearer token; printable ASCII without spaces. Empty: none. Without `tls` whoever listens
  // on the way reads it.
  std::string token;
  // From the start of a stream to the server's welcome. A server from which nothing at all has come for so long, while
  // two steps or opens in a row passed their deadlines, is left, too.
  absl::Duration connect_timeout = absl::Seconds(5);
  // A connection on which nothing has moved for so long is asked for a sign of life, and given up if there is none for
  // 10 seconds. Not below the 10 seconds that a server suffers.
  absl::Duration keepalive = absl::Seconds(20);
  Backoff backoff;
  // Of a step or an open that names none.
  absl::Duration default_timeout = absl::Seconds(30);

  // This process steps slices of rows. Then there is one target, where all ranks meet; `worker_session` is given, the
  // same for all ranks, and request ids are used once in it; and there is no fallback.
  std::optional<VocabularyShard> shard;

  Fallback fallback = Fallback::kNone;
  uint32_t in_process_threads = 0;  // of the fallback's device; 0 = as many as the machine runs at once
  // What mirostat and adaptive-p have come to in this process no server takes over. While a sequence with them is open
  // that was stepped here, everything stays here, but after a target is back for at most so long; such a sequence then
  // fails with CHECKPOINT_REFUSED.
  absl::Duration fallback_stay = absl::Minutes(5);

  // A batch travels as messages of whole rows of at most this many bytes (at least one row) and rows; transfer overlaps
  // with sampling. Rows in shared memory, and in process, are cut by their number alone. A server's max_message_bytes,
  // which its welcome names, cuts them smaller; a row that is larger alone, with its drafts or scores, fails with
  // TOO_MANY. message_rows must stay below the server's max_step_rows.
  uint64_t message_bytes = uint64_t{2} << 20;
  uint32_t message_rows = 256;
  // A longer history is replayed in pieces of this many tokens.
  uint32_t history_piece_tokens = 8192;
  // Histories of so many tokens, or one, are under way at a time; the others wait their turn behind rows.
  uint64_t history_window_tokens = 1u << 18;
};

}  // namespace sortition::client
