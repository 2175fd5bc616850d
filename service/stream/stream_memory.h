// Counts the memory that a stream keeps for its tenant besides the table's sequences: the options of its open
// sequences, and histories that are still arriving. `max_state_bytes` bounds it together with the table.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "service/refusal.h"
#include "service/sequence/sequence_table.h"

namespace sortition::service {

// Releases everything when it is destroyed. Not thread-safe.
class StreamMemory {
 public:
  // `table` is not owned and outlives this.
  StreamMemory(SequenceTable* table, std::string tenant) : table_(*table), tenant_(std::move(tenant)) {}
  ~StreamMemory() { Shrink(bytes_); }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  // Adds `bytes`, for `field` of a message. A refusal changes nothing.
  std::optional<Refusal> Grow(uint64_t bytes, const char* field) {
    if (auto refusal = table_.Hold(tenant_, bytes, field)) return refusal;
    bytes_ += bytes;
    return std::nullopt;
  }
  void Shrink(uint64_t bytes) {
    table_.GiveBack(tenant_, bytes);
    bytes_ -= bytes;
  }
  // Changes a part of `before` bytes to `after` bytes. A refusal changes nothing.
  std::optional<Refusal> Resize(uint64_t before, uint64_t after, const char* field) {
    if (after > before) return Grow(after - before, field);
    Shrink(before - after);
    return std::nullopt;
  }

  // Shrinks by what an object had, and destroys it.
  void Destroy(std::shared_ptr<const void> object, uint64_t bytes) {
    table_.Destroy(std::move(object), bytes);
    Shrink(bytes);
  }

 private:
  SequenceTable& table_;
  const std::string tenant_;
  uint64_t bytes_ = 0;
};

}  // namespace sortition::service
