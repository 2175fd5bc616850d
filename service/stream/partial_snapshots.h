// Exported states that come back in several messages, until they are whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/stream/stream_memory.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Those of one stream; at most `max_message_bytes` of them all together, and within the stream's memory. Not
// thread-safe.
class PartialSnapshots {
 public:
  // `memory` is not owned and outlives this.
  PartialSnapshots(const Limits& limits, StreamMemory* memory) : limits_(limits), memory_(*memory) {}

  // Adds a piece. Returns the whole once it is complete. A refusal drops what has come so far.
  std::variant<std::optional<std::string>, Refusal> Add(const v1::ImportSequence& piece);

  // The import was refused, and has one answer: pieces of the same epoch that follow are not looked at.
  void Skip(const v1::OpenSequence& open);
  bool Skips(const v1::ImportSequence& piece);

  // Forgets what has come for `request_id`, if anything.
  void Drop(const std::string& request_id);

 private:
  struct Partial {
    uint64_t epoch = 0;
    bool skipped = false;
    std::string bytes;
    uint64_t held = 0;  // as last accounted
  };
  using Partials = absl::flat_hash_map<std::string, Partial>;

  void Erase(Partials::iterator partial);

  const Limits limits_;
  StreamMemory& memory_;
  Partials partials_;   // by request_id; at most stream_sequences
  uint64_t bytes_ = 0;  // of all partials together
};

}  // namespace sortition::service
