// A word of shared memory that a worker, or its device, sets once the data before it is written.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/check.h"
#include "service/memory/region_table.h"

namespace sortition::service {

// Keeps its region alive. Thread-safe, except assignment.
class SharedReadyWord {
 public:
  // `offset` is a multiple of 4, and the word lies within the region, which is host memory.
  SharedReadyWord(std::shared_ptr<const Region> region, uint64_t offset, uint32_t value)
      : region_(std::move(region)), offset_(offset), value_(value) {
    SORTITION_CHECK(region_->imported() == nullptr && offset_ % sizeof(uint32_t) == 0 &&
                    region_->bytes().size() - sizeof(uint32_t) >= offset_);
  }

  uint64_t region_id() const { return region_->id(); }
  uint64_t offset() const { return offset_; }
  uint32_t value() const { return value_; }
  // Returns the current value.
  uint32_t Read() const {
    const std::byte* const word = region_->bytes().data() + offset_;
    return std::atomic_ref(*reinterpret_cast<uint32_t*>(const_cast<std::byte*>(word))).load(std::memory_order_acquire);
  }
  // Returns true once the word has reached its value or passed it. Writes made before the word was raised are visible
  // then.
  bool IsSet() const { return static_cast<int32_t>(Read() - value_) >= 0; }

 private:
  std::shared_ptr<const Region> region_;
  uint64_t offset_;
  uint32_t value_;
};

}  // namespace sortition::service
