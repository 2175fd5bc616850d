// Memory that a stream keeps for its client beside the sequences of the table: options of its open sequences, histories
// and snapshots that are still arriving. It counts in the same bound as the table's, `max_state_bytes`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "service/refusal.h"
#include "service/sequence/sequence_table.h"

namespace sortition::service {

// Given back as a whole at its end. Not thread-safe.
class StreamMemory {
 public:
  // `table` is not owned and outlives this.
  StreamMemory(SequenceTable* table, std::string tenant) : table_(*table), tenant_(std::move(tenant)) {}
  ~StreamMemory() { Shrink(bytes_); }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  // `bytes` more, for `field` of a message. A refusal changes nothing.
  std::optional<Refusal> Grow(uint64_t bytes, const char* field) {
    if (auto refusal = table_.Hold(tenant_, bytes, field)) return refusal;
    bytes_ += bytes;
    return std::nullopt;
  }
  void Shrink(uint64_t bytes) {
    table_.GiveBack(tenant_, bytes);
    bytes_ -= bytes;
  }
  // What was `before` bytes is `after` bytes now.
  std::optional<Refusal> Resize(uint64_t before, uint64_t after, const char* field) {
    if (after > before) return Grow(after - before, field);
    Shrink(before - after);
    return std::nullopt;
  }

 private:
  SequenceTable& table_;
  const std::string tenant_;
  uint64_t bytes_ = 0;
};

}  // namespace sortition::service
