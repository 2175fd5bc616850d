// Fibers and their scheduler.
#include "tests/cuda/emulator/emulator.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "kernels/check.h"
#include "tests/cuda/emulator/fiber.h"

namespace sortition::testing::emulator {
namespace {

constexpr uint32_t kWarpSize = 32;

struct Block;

enum class Status { kReady, kAtBarrier, kAtWarp, kEnded };

struct Thread {
  Place place;
  Block* block = nullptr;
  Status status = Status::kReady;
  std::source_location where;  // it waits, if it does
  std::unique_ptr<Fiber> fiber;
};

// The meeting point of a warp's lanes.
struct Meeting {
  uint32_t mask = 0;  // 0: no lane waits
  uint32_t arrived = 0;
  WarpFunction function = nullptr;
  std::source_location where;
  Lane lanes[kWarpSize];
};

struct Block {
  std::vector<Thread*> threads;
  std::vector<Meeting> meetings;
  std::vector<uint64_t> memory;
  uint32_t at_barrier = 0;
  uint32_t ended = 0;
};

bool IsSame(const std::source_location& a, const std::source_location& b) {
  return a.line() == b.line() && a.column() == b.column() && std::string_view(a.file_name()) == b.file_name();
}

class Scheduler {
 public:
  Scheduler(const LaunchOptions& options, const std::function<void()>& kernel)
      : options_(options), kernel_(kernel), random_(options.seed) {
    SORTITION_CHECK(options.threads % kWarpSize == 0 && options.threads != 0 && options.resident_blocks != 0);
    const uint32_t blocks = options.blocks_x * options.blocks_y;
    for (uint32_t i = 0; i < blocks; ++i) waiting_.push_back(i);
    const uint32_t resident = std::min(options.resident_blocks, blocks);
    threads_.resize(size_t{resident} * options.threads);
    blocks_.resize(resident);
    for (uint32_t i = 0; i < resident; ++i) StartBlock(i);
  }

  void Run() {
    while (!ready_.empty()) {
      const size_t pick = random_() % ready_.size();
      current_ = ready_[pick];
      ready_[pick] = ready_.back();
      ready_.pop_back();
      current_->fiber->Resume();
      if (current_->status == Status::kEnded) End(current_);
    }
    for (Thread& thread : threads_) {
      if (thread.status != Status::kEnded) Fail("waits for ever", thread.where);
    }
  }

  Thread& current() { return *current_; }
  std::mt19937_64& random() { return random_; }

  void Wake(Thread* thread) {
    thread->status = Status::kReady;
    ready_.push_back(thread);
  }

  void Yield() {
    if (current_->status == Status::kReady) ready_.push_back(current_);
    current_->fiber->Suspend();
  }

 private:
  void StartBlock(uint32_t slot) {
    const size_t pick = random_() % waiting_.size();
    const uint32_t index = waiting_[pick];
    waiting_[pick] = waiting_.back();
    waiting_.pop_back();
    Block& block = blocks_[slot];
    block = Block();
    block.meetings.resize(options_.threads / kWarpSize);
    for (uint32_t i = 0; i < options_.threads; ++i) {
      Thread& thread = threads_[size_t{slot} * options_.threads + i];
      thread.place = {i, index % options_.blocks_x, index / options_.blocks_x};
      thread.block = &block;
      if (thread.fiber == nullptr) {
        thread.fiber = std::make_unique<Fiber>([this, &thread] {
          kernel_();
          thread.status = Status::kEnded;
        });
      }
      block.threads.push_back(&thread);
      Wake(&thread);
    }
  }

  void End(Thread* thread) {
    Block& block = *thread->block;
    ++block.ended;
    if (block.at_barrier != 0) Fail("a thread has ended while others wait for it", block.threads[0]->where);
    if (block.ended == options_.threads && !waiting_.empty()) StartBlock(uint32_t(&block - blocks_.data()));
  }

  const LaunchOptions options_;
  const std::function<void()>& kernel_;
  std::mt19937_64 random_;
  std::vector<uint32_t> waiting_;  // blocks that have not begun
  std::vector<Thread> threads_;
  std::vector<Block> blocks_;
  std::vector<Thread*> ready_;
  Thread* current_ = nullptr;
};

Scheduler* scheduler = nullptr;

}  // namespace

void Fail(const char* what, const std::source_location& where) {
  const Place& here = Here();
  std::fprintf(stderr, "%s:%u: thread %u of block (%u, %u): %s\n", where.file_name(), uint32_t(where.line()),
               here.thread, here.block_x, here.block_y, what);
  std::abort();
}

void Launch(const LaunchOptions& options, const std::function<void()>& kernel) {
  SORTITION_CHECK(scheduler == nullptr);
  Scheduler launch(options, kernel);
  scheduler = &launch;
  launch.Run();
  scheduler = nullptr;
}

const Place& Here() { return scheduler->current().place; }

void* BlockMemory(size_t bytes) {
  Block& block = *scheduler->current().block;
  if (block.memory.empty()) {
    block.memory.resize((bytes + 7) / 8);
    for (uint64_t& word : block.memory) word = scheduler->random()();
  }
  SORTITION_CHECK(block.memory.size() == (bytes + 7) / 8);
  return block.memory.data();
}

void BlockBarrier(const std::source_location& where) {
  Thread& thread = scheduler->current();
  Block& block = *thread.block;
  if (block.ended != 0) Fail("a barrier that some threads of the block have ended without", where);
  thread.where = where;
  if (++block.at_barrier < block.threads.size()) {
    thread.status = Status::kAtBarrier;
    scheduler->Yield();
    return;
  }
  block.at_barrier = 0;
  for (Thread* const other : block.threads) {
    if (!IsSame(other->where, where)) Fail("threads of the block wait at different barriers", other->where);
    if (other != &thread) scheduler->Wake(other);
  }
  scheduler->Yield();
}

uint64_t MeetWarp(uint32_t mask, Lane lane, WarpFunction function, const std::source_location& where) {
  Thread& thread = scheduler->current();
  const uint32_t own = thread.place.thread % kWarpSize;
  const uint32_t first = thread.place.thread - own;
  Meeting& meeting = thread.block->meetings[first / kWarpSize];
  if ((mask >> own & 1) == 0) Fail("a lane that is not in its own mask", where);
  if (lane.source != own && (mask >> lane.source & 1) == 0) Fail("a value of a lane that is not in the mask", where);
  if (meeting.mask == 0) {
    meeting.mask = mask;
    meeting.arrived = 0;
    meeting.function = function;
    meeting.where = where;
  } else if (meeting.mask != mask || meeting.function != function || !IsSame(meeting.where, where)) {
    Fail("lanes of a warp meet at different places", where);
  }
  meeting.lanes[own] = lane;
  meeting.arrived |= 1u << own;
  thread.where = where;
  if (meeting.arrived != mask) {
    thread.status = Status::kAtWarp;
    scheduler->Yield();
    return meeting.lanes[own].value;
  }
  function(meeting.lanes, mask);
  meeting.mask = 0;
  for (uint32_t i = 0; i < kWarpSize; ++i) {
    if (i != own && (mask >> i & 1) != 0) scheduler->Wake(thread.block->threads[first + i]);
  }
  return meeting.lanes[own].value;
}

void MaySwitch() {
  if (scheduler->random()() % 8 == 0) scheduler->Yield();
}

}  // namespace sortition::testing::emulator
