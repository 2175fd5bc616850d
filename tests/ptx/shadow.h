// Shadow memory: which thread wrote and read each byte last, and whether that was ordered.
//
// Two accesses conflict if different threads make them, one writes, not both are atomic, and neither is known to come
// first. Order comes from the barrier of a block, the barrier of a whole warp, the order of launches, and, between
// blocks, from a fence before an atomic operation and a fence after another one at the same address. Other warp-wide
// functions order no memory. Two writes of the same value do not conflict, and a volatile read does not conflict with
// an atomic operation. Only the last reader and the last writer of a byte are known. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sortition::testing::ptx {

enum class Finding : uint8_t {
  kRace,
  kUnwritten,    // a read of bytes that were never written
  kOutOfBounds,  // bytes of no variable and no memory
  kReadOnly,     // a write to memory that is read-only, or constant for the launch
  kMisaligned,
  kMask,     // a lane meets others but is not in the mask, or a named lane never comes
  kBarrier,  // threads of a block wait at different barriers, or some have ended
  kStuck,    // threads wait for ever, or run for ever
};
inline constexpr size_t kFindings = 8;
const char* NameOf(Finding finding);

struct Report {
  Finding finding;
  std::string function;
  uint32_t line = 0;  // of the PTX
  uint32_t block = 0;
  uint32_t thread = 0;
  uint64_t address = 0;
  std::string detail;
  std::string text() const;
};

// Times are ticks of one clock, which barriers and launches advance.
using Time = uint32_t;

// Each aligned group of four bytes shares the first byte's shadow until a byte is accessed alone.
struct ByteShadow {
  Time written = 0;  // 0: not yet
  Time read = 0;
  uint16_t writer = 0, reader = 0;  // thread numbers
  uint16_t writing_block = 0, reading_block = 0;
  bool is_atomic = false;  // the write
  // While the last writes are atomic: the latest one that is not by the last writer's block.
  uint16_t earlier_writer = 0, earlier_block = 0;
  Time earlier = 0;
  bool is_read_by_several = false;  // several threads of the block have read since `read`
  bool is_read_strong = false;      // every read since `read` was volatile
  bool is_split = false;            // in the first of four bytes: each has its own shadow
};

// The shadows of memory, by byte. Not thread-safe.
class ByteShadows {
 public:
  ByteShadows() = default;
  explicit ByteShadows(uint64_t bytes) : cells_((bytes + kWord - 1) / kWord * kWord) {}
  uint64_t bytes() const { return cells_.size(); }

  // Calls see(shadow) for each shadow of the bytes, until it returns true; returns whether it has.
  template <typename See>
  bool Any(uint64_t at, uint32_t bytes, const See& see) const {
    for (uint64_t i = at; i < at + bytes;) {
      const ByteShadow& first = cells_[i / kWord * kWord];
      if (see(first.is_split ? cells_[i] : first)) return true;
      i = first.is_split ? i + 1 : (i / kWord + 1) * kWord;
    }
    return false;
  }

  // Calls change(shadow) for each shadow of the bytes. Afterwards no other byte shares it.
  template <typename ChangeOne>
  void Change(uint64_t at, uint32_t bytes, const ChangeOne& change) {
    for (uint64_t i = at; i < at + bytes;) {
      const uint64_t word = i / kWord * kWord;
      const bool is_whole = i == word && i + kWord <= at + bytes;
      if (!cells_[word].is_split && !is_whole) {
        cells_[word].is_split = true;
        std::fill_n(&cells_[word + 1], kWord - 1, cells_[word]);
      }
      const bool is_split = cells_[word].is_split;
      change(&cells_[i]);
      i += is_split ? 1 : kWord;
    }
  }

 private:
  static constexpr uint64_t kWord = 4;
  std::vector<ByteShadow> cells_;
};

enum class AccessKind : uint8_t { kRead, kStrongRead, kWrite, kSameWrite, kAtomic };

// A thread that accesses memory, with the times of the barriers that it has passed.
struct Accessor {
  uint32_t block = 0;
  uint32_t thread = 0;
  Time now = 0;            // stamps the access
  Time block_barrier = 0;  // accesses of its block before that time are ordered
  Time warp_barrier = 0;   // accesses of its warp before that time are ordered
};

// One block's knowledge about another's accesses.
struct Known {
  Time before = 0;  // accesses of the block before that time are known
  uint16_t thread = 0;
  Time thread_until = 0;  // accesses of its thread up to this time are known too
};
using Knowledge = std::map<uint32_t, Known>;  // by block

class GlobalShadow;

// A block's part: its barriers, and its shared memory.
class BlockShadow {
 public:
  void Begin(GlobalShadow* global, uint32_t block, uint32_t threads, uint32_t shared_bytes);
  // Called when the whole block, or all lanes of a warp, have met.
  void PassBarrier();
  void PassWarpBarrier(uint32_t warp);
  void Fence(uint32_t thread);
  // Called at an atomic operation on global memory: takes the knowledge that others left at the address, and leaves the
  // thread's fenced knowledge.
  void Synchronize(uint32_t thread, uint64_t address);
  Accessor AccessorOf(uint32_t thread) const;
  // Returns a description of the conflict, or of the missing write; empty if there is none.
  std::string AccessShared(uint32_t thread, uint32_t address, uint32_t bytes, AccessKind kind, Finding* finding);
  bool Knows(uint32_t thread, uint32_t other_block, uint32_t other_thread, Time time) const;

 private:
  struct ThreadState {
    Time fenced_before = 0;  // 0: no fence since the thread began
    Time fenced_until = 0;
    Knowledge taken;     // by atomic operations, not yet fenced
    Knowledge acquired;  // known to this thread, and to the block after its next barrier
  };
  GlobalShadow* global_ = nullptr;
  uint32_t block_ = 0;
  Time now_ = 0;
  Time barrier_ = 0;
  std::vector<Time> warp_barriers_;
  ByteShadows shared_;  // kept from earlier blocks: times before this block's beginning do not count
  Time began_ = 0;
  std::map<uint32_t, ThreadState> threads_;  // threads that have fenced or synchronised
  Knowledge known_;
};

// A launch's part: the clock, and global memory.
class GlobalShadow {
 public:
  void BeginLaunch();
  Time Tick() { return ++clock_; }
  // Checks an access to bytes that have shadows.
  std::string Access(const BlockShadow& block, const Accessor& accessor, ByteShadows* shadows, uint64_t at,
                     uint32_t bytes, AccessKind kind) const;
  Time launched() const { return launched_; }
  std::map<uint64_t, Knowledge>& released() { return released_; }

 private:
  // One for all machines of the process: launches of several modules share memory.
  inline static Time clock_ = 0;
  Time launched_ = 0;
  std::map<uint64_t, Knowledge> released_;  // by address of an atomic operation
};

}  // namespace sortition::testing::ptx
