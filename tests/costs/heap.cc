// Replaces operator new and delete but for those of larger alignments, which are not counted. A header before each
// block has its size if it counts.
#include "tests/costs/heap.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

constexpr size_t kHeader = 16;

std::atomic<int64_t> held = 0;
std::atomic<int64_t> peak = 0;
thread_local bool is_counted = false;

void* Allocate(size_t bytes) noexcept {
  auto* const block = static_cast<char*>(std::malloc(bytes + kHeader));
  if (block == nullptr) return nullptr;
  const int64_t counted = is_counted ? static_cast<int64_t>(bytes) : 0;
  *reinterpret_cast<int64_t*>(block) = counted;
  if (counted > 0) {
    const int64_t now = held.fetch_add(counted, std::memory_order_relaxed) + counted;
    if (now > peak.load(std::memory_order_relaxed)) peak.store(now, std::memory_order_relaxed);
  }
  return block + kHeader;
}

void* MustAllocate(size_t bytes) {
  if (void* const memory = Allocate(bytes)) return memory;
  throw std::bad_alloc();
}

void Free(void* memory) noexcept {
  if (memory == nullptr) return;
  char* const block = static_cast<char*>(memory) - kHeader;
  const int64_t counted = *reinterpret_cast<int64_t*>(block);
  if (counted > 0) held.fetch_sub(counted, std::memory_order_relaxed);
  std::free(block);
}

}  // namespace

void* operator new(size_t bytes) { return MustAllocate(bytes); }
void* operator new[](size_t bytes) { return MustAllocate(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes); }
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { Free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { Free(memory); }

namespace sortition::costs {

void CountHeapOfThisThread() { is_counted = true; }
int64_t HeapHeld() { return held.load(); }
int64_t HeapPeak() { return peak.load(); }
void ResetHeapPeak() { peak.store(held.load()); }

}  // namespace sortition::costs
