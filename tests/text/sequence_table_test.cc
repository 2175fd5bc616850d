// Bounds, eviction and ownership in the table of sequences.
#include "service/sequence/sequence_table.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/expect_error.h"

namespace sortition::service::sequence_table_test {
namespace {

class FakeClock : public Clock {
 public:
  absl::Time Now() const override { return now; }
  absl::Time now = absl::FromUnixSeconds(1'000'000);
};

class CountingObserver : public NullObserver {
 public:
  void Count(Counter counter, uint64_t count) override { counts[counter] += count; }
  std::map<Counter, uint64_t> counts;
};

std::shared_ptr<SequenceSpec> Spec() {
  auto spec = std::make_shared<SequenceSpec>();
  spec->law_version = 1;
  spec->vocabulary = spec->live_vocabulary = 100'000;
  spec->presence_penalty = 1;
  return spec;
}

class SequenceTableTest : public ::testing::Test {
 protected:
  SequenceTableTest() { limits_.replay_guard = absl::ZeroDuration(); }

  SequenceKey Key(int i, const std::string& tenant = "default") {
    return {tenant, "worker", absl::StrCat("request-", i)};
  }

  std::variant<SequenceTable::Opened, Refusal> Open(int i, uint32_t tokens = 10,
                                                    const std::string& tenant = "default") {
    std::vector<uint32_t> history(tokens);
    std::iota(history.begin(), history.end(), 0);
    return table().Open(Key(i, tenant), {1, 1}, Spec(), Text::Build(Spec(), history, tokens, limits_.kept_history));
  }
  bool Known(int i, const std::string& tenant = "default") {
    return std::holds_alternative<SequenceTable::Opened>(table().Open(Key(i, tenant), {1, 1}, Spec(), nullptr));
  }
  // Opens sequences of a tenant, some after others. Returns the number of refused opens.
  int OpenMany(const std::string& tenant, int count, uint32_t tokens = 10) {
    int refused = 0;
    for (int i = 0; i < count; ++i) refused += std::holds_alternative<Refusal>(Open(i, tokens, tenant));
    return refused;
  }
  // Returns the number of sequences of the tenant in the table.
  uint32_t Kept(const std::string& tenant) {
    for (const auto& [name, use] : table().tenant_uses()) {
      if (name == tenant) return use.sequences;
    }
    return 0;
  }
  SequenceTable& table() {
    if (!table_) table_ = std::make_unique<SequenceTable>(limits_, &clock_, &observer_);
    return *table_;
  }

  Limits limits_;
  FakeClock clock_;
  CountingObserver observer_;
  std::unique_ptr<SequenceTable> table_;
};

TEST_F(SequenceTableTest, CountBoundEvictsLeastRecentlyUsed) {
  limits_.max_sequences = 3;
  for (int i = 0; i < 3; ++i) Open(i);
  ASSERT_TRUE(Known(0));  // used again: now 1 is the least recently used
  Open(3);
  EXPECT_EQ(table().live_sequences(), 3u);
  EXPECT_FALSE(Known(1));
  EXPECT_TRUE(Known(0));
  EXPECT_EQ(observer_.counts[Counter::kEvictedByCount], 1u);
}

// A deletion may take long, so other threads use the table meanwhile.
TEST_F(SequenceTableTest, EvictedSequenceIsDeletedOutsideTheLock) {
  limits_.max_sequences = 1;
  uint32_t deleted = 0;
  const auto deletes = [&](const SequenceSpec* spec) {
    deleted += table().live_sequences();  // takes the table's lock
    delete spec;
  };
  {
    const std::shared_ptr<const SequenceSpec> spec(new SequenceSpec(*Spec()), deletes);
    table().Open(Key(1), {1, 1}, spec, Text::Build(spec, std::vector<uint32_t>{1}, 1, limits_.kept_history));
  }
  EXPECT_EQ(deleted, 0u);
  Open(2);
  EXPECT_EQ(deleted, 1u);
}

TEST_F(SequenceTableTest, SweepWaitsForNoSequence) {
  bool swept = false;
  {
    // Deleted under the lock of the sequence, by the second Open. The state has another specification.
    const std::shared_ptr<const SequenceSpec> spec(new SequenceSpec(*Spec()), [&](const SequenceSpec* its) {
      delete its;
      table().Sweep();
      swept = true;
    });
    table().Open(Key(0), {1, 1}, spec, Text::Build(Spec(), {}, 0, limits_.kept_history));
  }
  clock_.now += limits_.sequence_ttl + absl::Seconds(1);
  Open(0);
  EXPECT_TRUE(swept);
  EXPECT_TRUE(Known(0)) << "a sequence that a thread works on is not idle";
}

TEST_F(SequenceTableTest, ByteBoundHoldsForAnyOpen) {
  limits_.max_state_bytes = 1 << 20;
  for (int i = 0; i < 200; ++i) {
    Open(i, 2000);
    ASSERT_LE(table().state_bytes(), limits_.max_state_bytes);
  }
  EXPECT_GT(observer_.counts[Counter::kEvictedByBytes], 100u);
  EXPECT_GT(table().live_sequences(), 5u);
}

// Memory that a step's positions need counts while the step is in flight, and idle sequences are evicted for it.
TEST_F(SequenceTableTest, StepLookaheadHasRoomOrIsRefused) {
  limits_.max_state_bytes = 1 << 20;
  for (int i = 0; i < 15; ++i) Open(i, 2000);
  const auto opened = std::get<SequenceTable::Opened>(Open(15, 2000));
  const uint64_t idle = table().state_bytes();
  StepIntent intent;
  intent.step_id = 1;
  intent.position = 2000;
  const auto begin = [&](uint32_t drafts) {
    intent.history_hash = opened.at.history_hash;
    std::vector<uint32_t> tokens(drafts);  // each changes the edits
    std::iota(tokens.begin(), tokens.end(), 0);
    const TokenTree ahead = TokenTree::Chain(std::move(tokens));
    return std::get<StepGrant>(opened.sequence->Begin({1, 1}, intent, ahead)).ticket;
  };
  uint64_t ticket = begin(20);
  EXPECT_EQ(table().MakeRoomAhead(Key(15), opened.sequence.get()), std::nullopt);
  EXPECT_GT(table().state_bytes(), 20 * 2000 * sizeof(kernels::LogitEdit));
  EXPECT_LE(table().state_bytes(), limits_.max_state_bytes);
  EXPECT_GT(observer_.counts[Counter::kEvictedByBytes], 0u);
  opened.sequence->Abort(ticket);
  table().Touch(Key(15), opened.sequence.get());
  EXPECT_LT(table().state_bytes(), idle);
  ticket = begin(40);
  const auto refusal = table().MakeRoomAhead(Key(15), opened.sequence.get());
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->reason, Reason::kOverloaded);
  EXPECT_EQ(refusal->limit, absl::StrCat("max_state_bytes ", 1 << 20));
  opened.sequence->Abort(ticket);
}

// Workers that replay must not evict each other's histories before the steps that they were sent for.
TEST_F(SequenceTableTest, SentHistoryIsSparedUntilFirstStep) {
  limits_.max_sequences = 2;
  limits_.replay_guard = absl::Seconds(1);
  Open(0);
  const auto second = Open(1);
  EXPECT_GT(ExpectRefusal(Open(2), Reason::kOverloaded).retry_after, absl::ZeroDuration());
  table().Touch(Key(1), std::get<SequenceTable::Opened>(second).sequence.get());
  EXPECT_TRUE(std::holds_alternative<SequenceTable::Opened>(Open(2)));
  EXPECT_FALSE(Known(1));
  clock_.now += absl::Seconds(1);
  EXPECT_TRUE(std::holds_alternative<SequenceTable::Opened>(Open(3)));
}

TEST_F(SequenceTableTest, RefusedOpenKeepsOwnersGuard) {
  limits_.max_sequences = 1;
  limits_.replay_guard = absl::Seconds(1);
  Open(0);
  ExpectRefusal(table().Open(Key(0), {0, 2}, Spec(), nullptr), Reason::kSuperseded);
  ASSERT_TRUE(std::holds_alternative<Refusal>(Open(1))) << "the owner's first step is on its way";
  clock_.now += absl::Seconds(1);
  EXPECT_TRUE(std::holds_alternative<SequenceTable::Opened>(Open(1)));
}

TEST_F(SequenceTableTest, HistoryLargerThanEvictableIsRefused) {
  limits_.max_state_bytes = 1 << 20;
  limits_.replay_guard = absl::Seconds(1);
  int opened = 0;
  while (std::holds_alternative<SequenceTable::Opened>(Open(opened, 1000))) ++opened;
  EXPECT_GT(opened, 10);
  EXPECT_LE(table().state_bytes(), limits_.max_state_bytes);
  EXPECT_EQ(table().live_sequences(), static_cast<uint32_t>(opened));
}

TEST_F(SequenceTableTest, IdleSequencesExpire) {
  limits_.sequence_ttl = absl::Minutes(10);
  Open(0);
  clock_.now += absl::Minutes(9);
  Open(1);
  clock_.now += absl::Minutes(2);
  Open(2);
  EXPECT_EQ(table().live_sequences(), 2u);
  EXPECT_FALSE(Known(0));
  EXPECT_EQ(observer_.counts[Counter::kEvictedIdle], 1u);
}

// A regression: a server without new opens kept idle sequences for ever.
TEST_F(SequenceTableTest, IdleSequencesExpireWithoutOpen) {
  limits_.sequence_ttl = absl::Minutes(10);
  Open(0);
  clock_.now += absl::Minutes(9);
  table().Sweep();
  EXPECT_EQ(table().live_sequences(), 1u);
  clock_.now += absl::Minutes(2);
  table().Sweep();
  EXPECT_EQ(table().live_sequences(), 0u);
  EXPECT_EQ(table().state_bytes(), 0u);
}

TEST_F(SequenceTableTest, SequenceWithStepInFlightIsNeverEvicted) {
  limits_.max_sequences = 1;
  auto opened = std::get<SequenceTable::Opened>(Open(0));
  StepIntent intent;
  intent.step_id = 1;
  intent.position = opened.at.position;
  intent.history_hash = opened.at.history_hash;
  auto begun = opened.sequence->Begin({1, 1}, intent);
  ASSERT_TRUE(std::holds_alternative<StepGrant>(begun));
  EXPECT_GT(ExpectRefusal(Open(1), Reason::kOverloaded).retry_after, absl::ZeroDuration());
  opened.sequence->Abort(std::get<StepGrant>(begun).ticket);
  EXPECT_TRUE(std::holds_alternative<SequenceTable::Opened>(Open(1)));
}

TEST_F(SequenceTableTest, EvictedSequenceHeldByStreamAsksReplay) {
  limits_.max_sequences = 1;
  auto opened = std::get<SequenceTable::Opened>(Open(0));
  Open(1);
  StepIntent intent;
  intent.step_id = 1;
  intent.position = opened.at.position;
  intent.history_hash = opened.at.history_hash;
  ExpectRefusal(opened.sequence->Begin({1, 1}, intent), Reason::kHistoryRequired);
}

TEST_F(SequenceTableTest, ReplayRestoresEvictedSequence) {
  limits_.max_sequences = 1;
  const auto before = std::get<SequenceTable::Opened>(Open(0)).at;
  Open(1);
  const auto after = std::get<SequenceTable::Opened>(Open(0)).at;
  EXPECT_EQ(after.position, before.position);
  EXPECT_EQ(after.history_hash, before.history_hash);
}

// Opens, steps, evicts and closes from several threads. Run under ThreadSanitizer; all counts must return to zero.
TEST_F(SequenceTableTest, CountsHoldUnderThreads) {
  limits_.max_sequences = 8;
  table();
  std::vector<std::thread> threads;
  for (uint64_t worker = 0; worker < 4; ++worker) {
    threads.emplace_back([this, worker] {
      std::mt19937 random(static_cast<uint32_t>(worker));
      const std::vector<uint32_t> history = {1, 2, 3};
      for (int i = 0; i < 2000; ++i) {
        const SequenceKey key = Key(static_cast<int>(random() % 16));
        const SequenceOwner owner{static_cast<uint64_t>(i), worker};
        auto opened = table().Open(key, owner, Spec(), Text::Build(Spec(), history, 3, 4096));
        if (!std::holds_alternative<SequenceTable::Opened>(opened)) continue;
        Sequence& sequence = *std::get<SequenceTable::Opened>(opened).sequence;
        StepIntent intent;
        intent.step_id = 1;
        intent.position = 3;
        intent.history_hash = std::get<SequenceTable::Opened>(opened).at.history_hash;
        auto begun = sequence.Begin(owner, intent);
        if (auto* grant = std::get_if<StepGrant>(&begun)) {
          kernels::RowOutput answer;
          answer.token = random() % 100;
          sequence.Commit(grant->ticket, RowResult::Drawn(answer));
        }
        table().Touch(key, &sequence);
        if (random() % 4 == 0) table().Close(key, owner.epoch);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(table().live_sequences(), 8u);
  for (int i = 0; i < 16; ++i) {
    const SequenceOwner last{1'000'000, 99};
    auto state = Text::Build(Spec(), std::vector<uint32_t>{1}, 1, 4096);
    ASSERT_TRUE(std::holds_alternative<SequenceTable::Opened>(table().Open(Key(i), last, Spec(), std::move(state))));
    table().Close(Key(i), last.epoch);
  }
  EXPECT_EQ(table().live_sequences(), 0u);
  EXPECT_EQ(table().state_bytes(), 0u);
}

TEST_F(SequenceTableTest, LowerEpochClosesNothing) {
  Open(0);
  EXPECT_EQ(ExpectRefusal(table().Close(Key(0), 0), Reason::kSuperseded).limit, ">= 1");
  EXPECT_EQ(table().live_sequences(), 1u);
  EXPECT_GE(std::get<uint64_t>(table().Close(Key(0), 1)), sizeof(Sequence));
  EXPECT_EQ(std::get<uint64_t>(table().Close(Key(0), 1)), 0u);
  EXPECT_EQ(table().live_sequences(), 0u);
  EXPECT_EQ(table().state_bytes(), 0u);
}

// A regression: 444 forks of one client pushed out all idle sequences of another, by either bound.
TEST_F(SequenceTableTest, TenantWithinItsShareLosesNothing) {
  for (const bool by_count : {true, false}) {
    table_.reset();
    limits_.max_sequences = by_count ? 400 : 100'000;
    EXPECT_EQ(OpenMany("quiet", 200, 500), 0);
    if (!by_count) {
      limits_.max_state_bytes = 2 * table().state_bytes();
      table_.reset();
      EXPECT_EQ(OpenMany("quiet", 200, 500), 0);
    }
    EXPECT_EQ(OpenMany("busy", 444, 500), 0) << "it loses its own";
    EXPECT_EQ(Kept("quiet"), 200u);
    EXPECT_TRUE(Known(0, "quiet"));
    EXPECT_FALSE(Known(0, "busy"));
    EXPECT_TRUE(Known(443, "busy"));
  }
}

TEST_F(SequenceTableTest, TenantBelowItsShareGetsItFromTheLargest) {
  limits_.max_sequences = 90;
  EXPECT_EQ(OpenMany("large", 70), 0);
  EXPECT_EQ(OpenMany("small", 20), 0);
  EXPECT_EQ(OpenMany("new", 40), 0);
  EXPECT_EQ(Kept("large") + Kept("small") + Kept("new"), 90u);
  EXPECT_EQ(Kept("small"), 20u);
  EXPECT_EQ(Kept("new"), 35u);  // the number that the largest has then
  EXPECT_TRUE(Known(69, "large"));
  EXPECT_FALSE(Known(0, "large"));
}

// Sequences beyond the share that are in use cannot be forgotten, and idle ones within it are not.
TEST_F(SequenceTableTest, BusyTenantMakesNoRoomByTheShareOfAnother) {
  limits_.max_sequences = 4;
  limits_.replay_guard = absl::Seconds(1);
  EXPECT_EQ(OpenMany("quiet", 2), 0);
  clock_.now += absl::Seconds(1);
  EXPECT_EQ(OpenMany("busy", 4), 2) << "its first steps are on their way";
  EXPECT_EQ(Kept("quiet"), 2u);
  clock_.now += absl::Seconds(1);
  EXPECT_TRUE(std::holds_alternative<SequenceTable::Opened>(Open(4, 10, "busy")));
  EXPECT_EQ(Kept("quiet"), 2u);
}

TEST_F(SequenceTableTest, ReservationsCountWithTheirTenantsUse) {
  limits_.max_state_bytes = 1 << 20;
  int others = 0;
  while (table().state_bytes() < limits_.max_state_bytes * 2 / 5) Open(others++, 2000, "other");
  ASSERT_FALSE(table().Hold("holder", limits_.max_state_bytes / 2, "open"));
  EXPECT_EQ(OpenMany("holder", 30, 2000), 0) << "it loses its own";
  EXPECT_EQ(Kept("other"), static_cast<uint32_t>(others));
  EXPECT_LE(table().state_bytes(), limits_.max_state_bytes);
  table().GiveBack("holder", limits_.max_state_bytes / 2);
  table().ForgetAll("holder");
  EXPECT_EQ(table().tenant_uses().size(), 1u);
}

TEST_F(SequenceTableTest, TenantsAndWorkerSessionsAreApart) {
  Open(0);
  for (const SequenceKey& other :
       {SequenceKey{"another", "worker", "request-0"}, SequenceKey{"default", "other", "request-0"}}) {
    ExpectRefusal(table().Open(other, {1, 1}, Spec(), nullptr), Reason::kHistoryRequired);
  }
}

// A state of millions of tokens takes 40 milliseconds, in which its stream's thread once served no other stream.
TEST_F(SequenceTableTest, LargeStateIsDestroyedOnAnotherThread) {
  std::thread::id destroyed_by;
  const auto destroy = [&](uint64_t bytes) {
    const auto note = [&](int* state) {
      destroyed_by = std::this_thread::get_id();
      delete state;
    };
    table().Destroy(std::shared_ptr<int>(new int, note), bytes);
  };
  destroy(1000);
  EXPECT_EQ(destroyed_by, std::this_thread::get_id());
  destroy(10 << 20);
  table_.reset();  // joins the thread
  EXPECT_NE(destroyed_by, std::this_thread::get_id());
}

TEST_F(SequenceTableTest, OpenNamesTheStateThatItReplaces) {
  const auto replaced = [](const auto& opened) { return std::get<SequenceTable::Opened>(opened).replaced_bytes; };
  EXPECT_EQ(replaced(Open(1, 50'000)), 0u);
  const uint64_t bytes = replaced(Open(1));
  EXPECT_GT(bytes, 50'000 * sizeof(uint32_t));
  EXPECT_LT(replaced(Open(1)), bytes);
}

}  // namespace
}  // namespace sortition::service::sequence_table_test
