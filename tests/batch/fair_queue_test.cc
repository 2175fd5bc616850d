// Shares of clients, to the row: the order by work, by tenant and after a pause.
#include "service/batch/fair_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/scale.h"

namespace sortition::service::fair_queue_test {
namespace {

class FairQueueTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kSmall = 1000;                         // tokens of a row
  static constexpr uint32_t kTwice = 2 * kSmall + (32 << 10) / 4;  // tokens of a row with twice the work

  void Add(QueueOwner owner, uint32_t count, uint32_t vocabulary = kSmall) {
    for (uint32_t i = 0; i < count; ++i) queue_.Add(Row(owner, vocabulary));
  }
  WaitingRow Row(QueueOwner owner, uint32_t vocabulary) {
    WaitingRow row;
    row.its = std::make_shared<Submission>();
    row.its->owner = owner;
    row.row = &row.its->rows.emplace_back();
    row.number = next_number_++;
    row.row->row.request.dtype = kernels::DType::kF32;
    row.row->row.request.live_vocabulary = vocabulary;
    return row;
  }
  // Takes rows and returns their streams, a letter each: 'a' is stream 0.
  std::string Take(uint32_t count) {
    std::string taken;
    for (uint32_t i = 0; i < count; ++i) taken += char('a' + queue_.Take().its->owner.stream);
    return taken;
  }

  FairQueue queue_;
  uint64_t next_number_ = 0;
};

TEST_F(FairQueueTest, OneStreamIsAQueue) {
  Add({0, 0}, 4);
  for (uint64_t number = 0; number < 4; ++number) {
    EXPECT_EQ(queue_.front().number, number);
    EXPECT_EQ(queue_.Take().number, number);
  }
  EXPECT_TRUE(queue_.empty());
}

TEST_F(FairQueueTest, StreamsTakeTurns) {
  Add({0, 0}, 5);
  Add({0, 1}, 3);
  Add({0, 2}, 1);
  EXPECT_EQ(Take(9), "abcababaa");
}

TEST_F(FairQueueTest, SharesCountWork) {
  Add({0, 0}, 3, kTwice);
  Add({0, 1}, 6);
  ASSERT_EQ(WorkOf(Row({}, kTwice).row->row), 2 * WorkOf(Row({}, kSmall).row->row));
  EXPECT_EQ(Take(9), "abbabbabb");
}

TEST_F(FairQueueTest, TenantsShareEquallyAtAnyStreamCount) {
  Add({0, 0}, 6);
  for (const uint64_t stream : {1, 2, 3}) Add({1, stream}, 2);
  EXPECT_EQ(Take(12), "abacadabacad");
}

TEST_F(FairQueueTest, NewcomerIsOwedNothingWaitsOneTurn) {
  Add({0, 0}, 100);
  Take(50);
  Add({0, 1}, 10);
  EXPECT_EQ(Take(8), "abababab");
}

// One stream has one cheap row at a time, another always more rows: both get the same work, not alternate turns.
TEST_F(FairQueueTest, ShortPauseKeepsUsage) {
  Add({0, 1}, 10, kTwice);
  std::string taken;
  for (int i = 0; i < 9; ++i) {
    if (i == 0 || taken.back() == 'a') Add({0, 0}, 1);
    taken += Take(1);
  }
  EXPECT_EQ(taken, "baabaabaa");
}

TEST_F(FairQueueTest, LongPauseResetsUsage) {
  Add({0, 0}, 1, 100 * kSmall);
  Add({0, 1}, 200);
  Take(150);
  Add({0, 0}, 4);
  EXPECT_EQ(Take(8), "abababab");
}

TEST_F(FairQueueTest, ReturnedRowsGoFirstUncharged) {
  Add({0, 0}, 4);
  Add({0, 1}, 4);
  std::vector<WaitingRow> failed;
  for (int i = 0; i < 3; ++i) failed.push_back(queue_.Take());
  EXPECT_EQ(failed[1].its->owner.stream, 1u);
  for (auto row = failed.rbegin(); row != failed.rend(); ++row) {
    row->attempts = 1;
    queue_.Add(std::move(*row));
  }
  EXPECT_EQ(queue_.rows(), 8u);
  EXPECT_EQ(queue_.front().number, 0u);
  EXPECT_EQ(Take(3), "aab") << "by age";
  EXPECT_EQ(Take(5), "babab") << "as if nothing had happened";
}

TEST_F(FairQueueTest, RowsAreRemovedAnywhere) {
  Add({0, 0}, 3);
  Add({1, 1}, 3);
  Add({1, 2}, 3);
  queue_.EraseIf([](WaitingRow& row) { return row.its->owner.stream == 1 || row.number == 0; });
  EXPECT_EQ(queue_.rows(), 5u);
  EXPECT_EQ(Take(5), "acacc");
  EXPECT_TRUE(queue_.empty());
  Add({0, 3}, 1);
  queue_.EraseIf([](WaitingRow&) { return true; });
  EXPECT_TRUE(queue_.empty());
}

// Work is counted in rows here.
TEST_F(FairQueueTest, WorkAheadCountsOwnAndEqualShares) {
  const double row = double(WorkOf(Row({}, kSmall).row->row));
  const auto ahead = [&](QueueOwner owner) { return queue_.StandingOf(owner).WorkAhead() / row; };
  Add({0, 0}, 900);
  EXPECT_EQ(ahead({0, 0}), 900);
  EXPECT_EQ(ahead({0, 1}), 0);
  EXPECT_EQ(ahead({1, 0}), 0);
  Take(500);
  EXPECT_NEAR(ahead({0, 0}), 400, 5);
  Add({0, 1}, 200);
  Add({1, 2}, 300);
  Take(400);
  EXPECT_NEAR(ahead({0, 0}), 4 * 300, 80) << "a turn of four is the stream's";
  EXPECT_NEAR(ahead({0, 1}), 4 * 100, 30);
  EXPECT_NEAR(ahead({1, 2}), 2 * 100, 5);
}

TEST_F(FairQueueTest, LightStreamsCountForLittle) {
  const double row = double(WorkOf(Row({}, kSmall).row->row));
  Add({0, 0}, 1000);
  for (uint64_t i = 0; i < 80; ++i) {
    Add({0, 1 + i % 8}, 1);
    Take(10);
  }
  EXPECT_NEAR(queue_.StandingOf({0, 0}).WorkAhead() / row, 280 / 0.9, 10);
}

// Two streams that both wait during an interval get the same work in it, give or take a row each.
TEST_F(FairQueueTest, BackloggedStreamsGetEqualWork) {
  for (uint64_t seed = 0; seed < testing::Scaled(200); ++seed) {
    std::mt19937_64 random(seed);
    FairQueue queue;
    std::map<uint64_t, uint32_t> waiting;                    // rows of each stream
    std::map<std::pair<uint64_t, uint64_t>, int64_t> ahead;  // lead of the first, in work, since both wait
    const auto largest = int64_t(WorkOf(Row({}, 4 * kSmall).row->row));
    for (int event = 0; event < 400; ++event) {
      const uint64_t stream = random() % 5;
      if (random() % 2 == 0) {
        queue.Add(Row({0, stream}, kSmall * uint32_t(1 + random() % 4)));
        ++waiting[stream];
        continue;
      }
      if (queue.empty()) continue;
      const WaitingRow row = queue.Take();
      const uint64_t taken = row.its->owner.stream;
      for (uint64_t other = 0; other < 5; ++other) {
        if (other == taken || waiting[other] == 0) continue;
        ahead[{taken, other}] += int64_t(WorkOf(row.row->row));
        ahead[{other, taken}] -= int64_t(WorkOf(row.row->row));
        ASSERT_LE(ahead[std::make_pair(taken, other)], 2 * largest) << "seed " << seed;
      }
      if (--waiting[taken] != 0) continue;
      for (uint64_t other = 0; other < 5; ++other) ahead[{taken, other}] = ahead[{other, taken}] = 0;
    }
  }
}

}  // namespace
}  // namespace sortition::service::fair_queue_test
