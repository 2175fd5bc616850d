// The pool of threads and callers that samples rows in process.
#include "client/local/work_pool.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace sortition::client::work_pool_test {
namespace {

class FunctionJob final : public WorkPool::Job {
 public:
  FunctionJob(std::function<void(uint32_t)> run, uint64_t id = 1) : Job(nullptr, id), run_(std::move(run)) {}
  void Run(uint32_t piece) override { run_(piece); }

 private:
  const std::function<void(uint32_t)> run_;
};

void Add(WorkPool* pool, uint32_t pieces, int32_t priority, std::function<void(uint32_t)> run, uint64_t id = 1) {
  pool->Add(std::make_shared<FunctionJob>(std::move(run), id), pieces, priority);
}

TEST(WorkPoolTest, CallerWorksAloneInPriorityOrder) {
  std::vector<int> order;
  const auto self = std::this_thread::get_id();
  WorkPool pool(1);
  for (const int priority : {0, 5, 0, -1}) {
    Add(&pool, 2, priority, [&, priority](uint32_t piece) {
      EXPECT_EQ(std::this_thread::get_id(), self);
      order.push_back(priority * 10 + static_cast<int>(piece));
    });
  }
  pool.Help([] { return false; });
  EXPECT_EQ(order, (std::vector<int>{50, 51, 0, 1, 0, 1, -10, -9}));
}

TEST(WorkPoolTest, CallerLeavesWhenItsWorkIsDone) {
  std::atomic<int> runs = 0;
  absl::Notification last;
  WorkPool pool(1);
  Add(&pool, 3, 0, [&](uint32_t piece) {
    ++runs;
    if (piece == 2) last.Notify();
  });
  pool.Help([&] { return runs.load() == 1; });
  last.WaitForNotification();  // a thread of the pool takes the rest
  EXPECT_EQ(runs, 3);
}

TEST(WorkPoolTest, RemovedPiecesDoNotRun) {
  std::vector<uint64_t> runs;
  WorkPool pool(1);
  for (const uint64_t id : {1, 2, 3})
    Add(
        &pool, 1, 0, [&runs, id](uint32_t) { runs.push_back(id); }, id);
  pool.Remove(nullptr, 2);
  pool.Help([] { return false; });
  EXPECT_EQ(runs, (std::vector<uint64_t>{1, 3}));
  for (const uint64_t id : {1, 2, 3})
    Add(
        &pool, 1, 0, [](uint32_t) { FAIL() << "was removed"; }, id);
  pool.Remove(nullptr, std::nullopt);
  pool.Help([] { return false; });
}

TEST(WorkPoolTest, EveryPieceRunsOnceOnBoundedThreads) {
  constexpr uint32_t kPieces = 64;
  for (const uint32_t threads : {1, 2, 3}) {
    std::vector<std::atomic<int>> runs(kPieces);
    std::atomic<uint32_t> busy = 0;
    std::atomic<uint32_t> most = 0;
    {
      WorkPool pool(threads);
      std::vector<std::thread> callers;
      for (int caller = 0; caller < 4; ++caller) {
        callers.emplace_back([&] {
          std::atomic<uint32_t> left = kPieces;
          absl::Notification over;
          Add(&pool, kPieces, 0, [&](uint32_t piece) {
            const uint32_t now = ++busy;
            for (uint32_t seen = most; seen < now && !most.compare_exchange_weak(seen, now);) continue;
            ++runs[piece];
            --busy;
            if (--left == 0) over.Notify();
          });
          pool.Help([&] { return over.HasBeenNotified(); });
          over.WaitForNotification();
        });
      }
      for (std::thread& caller : callers) caller.join();
    }
    EXPECT_LE(most, threads);
    EXPECT_TRUE(std::ranges::all_of(runs, [](const std::atomic<int>& count) { return count == 4; }));
  }
}

TEST(WorkPoolTest, StopRunsWhatIsLeft) {
  std::atomic<int> runs = 0;
  WorkPool pool(2);
  Add(&pool, 5, 0, [&](uint32_t) { ++runs; });
  pool.Stop();
  EXPECT_EQ(runs, 5);
  pool.Help([] { return false; });
  pool.Stop();
}

}  // namespace
}  // namespace sortition::client::work_pool_test
