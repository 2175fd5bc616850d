// Orders accesses by the times of barriers, and by the knowledge that fences and atomic operations pass on.
#include "tests/ptx/shadow.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace sortition::testing::ptx {
namespace {

void Join(const Known& other, Known* known) {
  known->before = std::max(known->before, other.before);
  if (other.thread_until > known->thread_until) {
    known->thread = other.thread;
    known->thread_until = other.thread_until;
  }
}
void Join(const Knowledge& other, Knowledge* knowledge) {
  for (const auto& [block, known] : other) Join(known, &(*knowledge)[block]);
}

bool IsKnown(const Knowledge& knowledge, uint32_t block, uint32_t thread, Time time) {
  const auto found = knowledge.find(block);
  if (found == knowledge.end()) return false;
  const Known& known = found->second;
  return time < known.before || (known.thread == thread && time <= known.thread_until);
}

// True if the other thread's access in the same block is ordered before this one.
bool IsBeforeInBlock(const Accessor& accessor, uint32_t thread, Time time) {
  return thread == accessor.thread || time < accessor.block_barrier ||
         (thread / 32 == accessor.thread / 32 && time < accessor.warp_barrier);
}

std::string Conflict(const char* now, const char* before, uint32_t block, uint32_t thread) {
  return std::string(now) + " is not ordered after " + before + " of block " + std::to_string(block) + ", thread " +
         std::to_string(thread);
}

bool IsRead(AccessKind kind) { return kind == AccessKind::kRead || kind == AccessKind::kStrongRead; }

// Compares the access with the last ones, ordered by `is_before(block, thread, time)`, and notes it.
template <typename IsBefore>
std::string Note(const Accessor& accessor, ByteShadows* shadows, uint64_t at, uint32_t bytes, AccessKind kind,
                 const IsBefore& is_before) {
  std::string conflict;
  shadows->Change(at, bytes, [&](ByteShadow* shadow) {
    ByteShadow& cell = *shadow;
    const bool may_meet_writes = kind == AccessKind::kSameWrite ||
                                 (cell.is_atomic && (kind == AccessKind::kAtomic || kind == AccessKind::kStrongRead));
    if (cell.written != 0 && !may_meet_writes && conflict.empty() &&
        !is_before(cell.writing_block, cell.writer, cell.written)) {
      conflict = Conflict(IsRead(kind) ? "a read" : "a write", "a write", cell.writing_block, cell.writer);
    }
    if (kind == AccessKind::kRead && cell.earlier != 0 && conflict.empty() &&
        !is_before(cell.earlier_block, cell.earlier_writer, cell.earlier)) {
      conflict = Conflict("a read", "an atomic operation", cell.earlier_block, cell.earlier_writer);
    }
    const bool may_meet_reads = IsRead(kind) || (kind == AccessKind::kAtomic && cell.is_read_strong);
    if (cell.read != 0 && !may_meet_reads && conflict.empty()) {
      // With several readers, the reader may be any other thread.
      const uint32_t reader = cell.is_read_by_several && cell.reader == accessor.thread ? ~0u : cell.reader;
      if (!is_before(cell.reading_block, reader, cell.read)) {
        conflict = Conflict("a write", "a read", cell.reading_block, cell.reader);
      }
    }
    if (IsRead(kind)) {
      const bool is_same_time = cell.read == accessor.now && cell.reading_block == accessor.block;
      cell.is_read_strong = kind == AccessKind::kStrongRead && (!is_same_time || cell.is_read_strong);
      cell.is_read_by_several = is_same_time && (cell.is_read_by_several || cell.reader != accessor.thread);
      cell.read = accessor.now;
      cell.reader = uint16_t(accessor.thread);
      cell.reading_block = uint16_t(accessor.block);
    } else {
      if (kind != AccessKind::kAtomic) {
        cell.earlier = 0;
      } else if (cell.is_atomic && cell.written != 0 && cell.writing_block != accessor.block) {
        cell.earlier = cell.written;
        cell.earlier_writer = cell.writer;
        cell.earlier_block = cell.writing_block;
      }
      cell.written = accessor.now;
      cell.writer = uint16_t(accessor.thread);
      cell.writing_block = uint16_t(accessor.block);
      cell.is_atomic = kind == AccessKind::kAtomic;
    }
  });
  return conflict;
}

}  // namespace

const char* NameOf(Finding finding) {
  switch (finding) {
    case Finding::kRace:
      return "race";
    case Finding::kUnwritten:
      return "unwritten";
    case Finding::kOutOfBounds:
      return "out of bounds";
    case Finding::kReadOnly:
      return "read-only";
    case Finding::kMisaligned:
      return "misaligned";
    case Finding::kMask:
      return "mask";
    case Finding::kBarrier:
      return "barrier";
    case Finding::kStuck:
      return "stuck";
  }
  return "?";
}

std::string Report::text() const {
  return std::string(NameOf(finding)) + " at line " + std::to_string(line) + " of " + function + ", block " +
         std::to_string(block) + ", thread " + std::to_string(thread) + ", address " + std::to_string(address) + ": " +
         detail;
}

void BlockShadow::Begin(GlobalShadow* global, uint32_t block, uint32_t threads, uint32_t shared_bytes) {
  global_ = global;
  block_ = block;
  now_ = barrier_ = began_ = global->Tick();
  warp_barriers_.assign(threads / 32, now_);
  if (shared_.bytes() < shared_bytes) shared_ = ByteShadows(shared_bytes);
  threads_.clear();
  known_.clear();
}

void BlockShadow::PassBarrier() {
  now_ = barrier_ = global_->Tick();
  for (auto& [thread, state] : threads_) Join(std::exchange(state.acquired, {}), &known_);
}

void BlockShadow::PassWarpBarrier(uint32_t warp) { now_ = warp_barriers_[warp] = global_->Tick(); }

void BlockShadow::Fence(uint32_t thread) {
  ThreadState& state = threads_[thread];
  state.fenced_before = barrier_;
  state.fenced_until = now_;
  Join(std::exchange(state.taken, {}), &state.acquired);
}

void BlockShadow::Synchronize(uint32_t thread, uint64_t address) {
  ThreadState& state = threads_[thread];
  Knowledge& left = global_->released()[address];
  Knowledge taken = left;
  if (state.fenced_before != 0) {
    Join(known_, &left);
    Join(state.acquired, &left);
    Join(Known{state.fenced_before, uint16_t(thread), state.fenced_until}, &left[block_]);
  }
  Join(taken, &state.taken);
}

Accessor BlockShadow::AccessorOf(uint32_t thread) const {
  return {block_, thread, now_, barrier_, warp_barriers_[thread / 32]};
}

bool BlockShadow::Knows(uint32_t thread, uint32_t other_block, uint32_t other_thread, Time time) const {
  if (IsKnown(known_, other_block, other_thread, time)) return true;
  const auto state = threads_.find(thread);
  return state != threads_.end() && IsKnown(state->second.acquired, other_block, other_thread, time);
}

std::string BlockShadow::AccessShared(uint32_t thread, uint32_t address, uint32_t bytes, AccessKind kind,
                                      Finding* finding) {
  const Accessor accessor = AccessorOf(thread);
  const auto is_before = [&](uint32_t, uint32_t other, Time time) { return IsBeforeInBlock(accessor, other, time); };
  const auto is_unwritten = [this](const ByteShadow& cell) { return cell.written < began_; };
  if ((IsRead(kind) || kind == AccessKind::kAtomic) && shared_.Any(address, bytes, is_unwritten)) {
    *finding = Finding::kUnwritten;
    return "shared memory that the block has not written";
  }
  *finding = Finding::kRace;
  return Note(accessor, &shared_, address, bytes, kind, is_before);
}

void GlobalShadow::BeginLaunch() {
  launched_ = Tick();
  released_.clear();
}

std::string GlobalShadow::Access(const BlockShadow& block, const Accessor& accessor, ByteShadows* shadows, uint64_t at,
                                 uint32_t bytes, AccessKind kind) const {
  const auto is_before = [&](uint32_t other_block, uint32_t other, Time time) {
    if (time < launched_) return true;
    if (other_block == accessor.block) return IsBeforeInBlock(accessor, other, time);
    return block.Knows(accessor.thread, other_block, other, time);
  };
  return Note(accessor, shadows, at, bytes, kind, is_before);
}

}  // namespace sortition::testing::ptx
