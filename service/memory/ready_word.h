// A word of shared memory by which a worker, or its device, says that what comes before is there.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "kernels/check.h"
#include "service/memory/region_table.h"

namespace sortition::service {

// Keeps its region alive. Thread-safe but for assignment.
class ReadyWord {
 public:
  // `offset`, a multiple of 4, and the word lie within the region, which is the host's memory.
  ReadyWord(std::shared_ptr<const Region> region, uint64_t offset, uint32_t value)
      : region_(std::move(region)), offset_(offset), value_(value) {
    SORTITION_CHECK(region_->imported() == nullptr && offset_ % sizeof(uint32_t) == 0 &&
                    region_->bytes().size() - sizeof(uint32_t) >= offset_);
  }

  uint64_t region_id() const { return region_->id(); }
  uint64_t offset() const { return offset_; }
  uint32_t value() const { return value_; }
  // What it says now.
  uint32_t Read() const {
    const std::byte* const word = region_->bytes().data() + offset_;
    return std::atomic_ref(*reinterpret_cast<uint32_t*>(const_cast<std::byte*>(word))).load(std::memory_order_acquire);
  }
  // Whether it has come to its value, or gone beyond it. What was written before is seen from then on.
  bool IsSet() const { return static_cast<int32_t>(Read() - value_) >= 0; }

 private:
  std::shared_ptr<const Region> region_;
  uint64_t offset_;
  uint32_t value_;
};

}  // namespace sortition::service
