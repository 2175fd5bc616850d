// Every named maximum of the service in one place. Published by InformationService; set by flags of the same names.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/time/time.h"

namespace sortition::service {

struct Limits {
  // Messages and streams.
  uint64_t max_message_bytes = 16u << 20;
  uint32_t max_streams = 1024;
  uint64_t stream_unanswered_bytes = 64u << 20;  // beyond it the stream is not read
  uint32_t stream_unanswered_rows = 4096;
  uint32_t stream_sequences = 65536;                     // sequences open on one stream
  absl::Duration stalled_write = absl::Seconds(30);      // a client that reads nothing for this long loses its stream
  absl::Duration max_stream_age = absl::ZeroDuration();  // zero = unbounded

  // Steps.
  uint32_t max_step_positions = 1024;  // of a step's rows together, and rows of each of its tensors
  uint32_t max_queued_rows = 16384;    // positions that wait for a device, each one row there; all streams together
  uint32_t max_vocabulary = (1u << 20) - 1;
  uint32_t max_compact_tokens = 4096;     // of one compact row
  uint64_t max_compact_bytes = 4u << 20;  // tokens and logits of a step's compact rows together; bounds a step's time
  // A step that other rows would keep waiting for longer than this is refused; zero = unbounded.
  absl::Duration max_queue_time = absl::Milliseconds(250);
  absl::Duration shard_wait = absl::Seconds(10);  // the longest wait of a step in shards for its last shard
  absl::Duration ready_wait = absl::Seconds(10);  // the longest wait of a step sent early for its logits
  uint32_t max_unready_steps = 4096;              // steps that wait for their logits, all streams together
  // Bytes of answers of rows in shards, kept for ranks that lost theirs. Beyond it the client with the most loses its
  // own.
  uint64_t max_shard_answer_bytes = uint64_t{256} << 20;

  // Masks.
  uint32_t stream_masks = 4096;                 // masks uploaded on one stream
  uint64_t stream_mask_bytes = 64u << 20;       // bytes of these
  uint64_t max_mask_bytes = uint64_t{1} << 29;  // bytes of uploaded masks, all streams together

  // Shared memory.
  uint32_t max_memory_connections = 64;                  // connections to the memory socket
  uint32_t max_rings = 64;                               // streams over rings; each has a thread
  uint64_t max_memory_bytes = uint64_t{1} << 30;         // bytes of regions, all connections together
  uint64_t connection_memory_bytes = uint64_t{1} << 28;  // bytes of one connection's regions
  uint64_t connection_device_bytes = 0;  // bytes of devices' memory of one connection; 0 = none is accepted
  uint32_t connection_regions = 64;      // regions of one connection

  // Limits on one client, which is one identity; 0 = no bound on one client.
  uint32_t max_clients = 4096;  // clients that hold anything at once
  uint32_t client_streams = 0;
  uint64_t client_rows_per_second = 0;
  uint64_t client_bytes_per_second = 0;
  uint32_t client_sequences = 0;  // with state; beyond it the client's idle ones are forgotten
  uint32_t client_regions = 0;
  uint64_t client_memory_bytes = 0;

  // Sequences.
  uint32_t max_sequences = 200000;               // sequences with state
  uint64_t max_state_bytes = uint64_t{2} << 30;  // of states, options, and histories in transfer
  absl::Duration sequence_ttl = absl::Hours(1);  // an idle sequence is forgotten after this time
  uint64_t replay_tokens_per_second = 16u
                                      << 20;  // of replayed histories, all streams together; a quarter while rows wait
  // A history that was sent is kept for its first step for this long.
  absl::Duration replay_guard = absl::Seconds(1);
  uint32_t max_history = (1u << 22);   // tokens of prompt and output
  uint32_t kept_history = 4096;        // tokens back to which a sequence can be truncated without a replay
  uint32_t max_listed_tokens = 65536;  // of one list of a sequence: bias, allowed, banned, stop, bad words, ...
};

// Bounds that follow from the wire or the law and cannot be set.
inline constexpr uint32_t kMaxNameBytes = 128;  // request_id, worker_session, model, client
inline constexpr uint32_t kMaxTraceStateBytes = 512;
inline constexpr uint32_t kMaxChoiceIndex = 65535;  // 16 bits of the noise's stream word
inline constexpr uint32_t kMaxDrawSalt = 65535;     // the other 16 bits
inline constexpr uint32_t kMaxDraftTokens = 64;     // of one draft sequence or tree
inline constexpr uint32_t kMaxScoreTokens = 128;    // of one row
inline constexpr int32_t kMaxPriority = 100;
inline constexpr uint32_t kMaxStringTokens = 1024;      // of a bad word, a sequence breaker, an n-gram
inline constexpr uint32_t kMaxPhases = 8;               // of a sequence
inline constexpr uint32_t kMaxTagTokens = 32;           // of what begins or ends a phase; compared at every token
inline constexpr uint32_t kMaxMessageParts = 1u << 18;  // messages and strings within one message; bounds its memory
// The highest max_step_positions: a row has up to 6 parts.
inline constexpr uint32_t kMostStepPositions = kMaxMessageParts / 8;
inline constexpr uint32_t kMostListedTokens =
    kMaxMessageParts / 2;                     // the highest max_listed_tokens: an entry is a part
inline constexpr uint32_t kMaxShards = 256;   // shards of a row
inline constexpr uint32_t kMaxPayloads = 16;  // of one message; no message of the contract refers to more than four

struct LimitDescription {
  std::string_view name;
  uint64_t value;
  std::string_view unit;  // "bytes", "rows", "tokens", "milliseconds", ...
  std::string_view description;
};

// Lists all limits, for people and clients.
std::vector<LimitDescription> DescribeLimits(const Limits& limits);

}  // namespace sortition::service
