// Joins exported states that come in several messages.
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

// The unfinished states of one stream: at most `max_message_bytes` together, and within the stream's memory. Not
// thread-safe.
class PartialSnapshots {
 public:
  // `memory` is not owned and outlives this.
  PartialSnapshots(const Limits& limits, StreamMemory* memory) : limits_(limits), memory_(*memory) {}

  // Adds a piece. Returns the whole state once it is complete. A refusal drops the pieces that have come.
  std::variant<std::optional<std::string>, Refusal> Add(const v1::ImportSequence& piece);

  // Takes note that the import was refused. Pieces of the same epoch that follow are ignored, since it has one answer.
  void Skip(const v1::OpenSequence& open);
  bool Skips(const v1::ImportSequence& piece);

  // Forgets the pieces that have come for `request_id` with at most this epoch. Returns false if there are none.
  bool Drop(const std::string& request_id, uint64_t epoch = UINT64_MAX);

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
  uint64_t bytes_ = 0;  // of all partials
};

}  // namespace sortition::service
