// State can be lost, tokens cannot: in five hundred worlds faults change no token.
#include "tests/simulation/simulation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/scale.h"

namespace sortition::simulation::simulation_test {
namespace {

TEST(SimulationTest, TokensEqualRunWithoutFaults) {
  Tally tally;
  // Fewer worlds would lack some of the events that are counted below.
  const uint64_t worlds = std::max<uint64_t>(100, testing::Scaled(500));
  for (uint64_t seed = 1; seed <= worlds; ++seed) {
    const std::vector<Fault> faults = FaultsOf(seed, Plant::kNone);
    const Outcome outcome = RunWorld(seed, Plant::kNone, faults);
    ASSERT_TRUE(outcome.ok()) << DescribeFailure(seed, Plant::kNone, Shrink(seed, Plant::kNone, faults));
    tally += outcome.tally;
  }
  RecordProperty("tally", tally.Describe());
  // Every kind of event must have happened, or it has not been tested.
  EXPECT_GT(tally.tokens, 20 * worlds);
  EXPECT_GT(tally.replayed_tokens, 20 * worlds);
  EXPECT_GT(tally.evicted_sequences, worlds);
  EXPECT_GT(tally.missed_deadlines, worlds / 4);
  EXPECT_GT(tally.silent_streams, worlds / 16);
  EXPECT_GT(tally.drained_streams, worlds / 2);
  EXPECT_GT(tally.lost_messages, worlds);
  EXPECT_GT(tally.late_requests, worlds / 4);
  EXPECT_GT(tally.repeated_answers, worlds / 8);
  EXPECT_GT(tally.superseded, worlds / 16);
  EXPECT_GT(tally.overloaded, worlds / 16);
  EXPECT_GT(tally.forks, worlds / 4);
  EXPECT_GT(tally.zombie_tokens, worlds / 16);
  EXPECT_GT(tally.accepted_drafts, worlds);
  EXPECT_GT(tally.scored_tokens, worlds);
  EXPECT_GT(tally.rewinds, worlds / 2);
  EXPECT_GT(tally.repetitions, worlds / 8);
  EXPECT_GT(tally.mask_uploads, worlds);
  EXPECT_GT(tally.checkpoints, 4 * worlds);
  EXPECT_GT(tally.rank_tokens, 10 * worlds);
  EXPECT_GT(tally.kept_answers, worlds / 2);
  EXPECT_GT(tally.brought_answers, worlds);
  EXPECT_GT(tally.freed_sequences, worlds / 4);
  EXPECT_GT(tally.missing_shards, worlds / 16);
  EXPECT_GT(tally.compact_rows, 5 * worlds);
  EXPECT_GT(tally.required_rows, worlds / 2);
  EXPECT_GT(tally.lost_required, worlds / 64);
  EXPECT_GT(tally.repeated_required, worlds / 64);
  EXPECT_GT(tally.marked_texts, worlds);
  EXPECT_GT(tally.bounded_texts, worlds);
  EXPECT_GT(tally.policy_changes, worlds);
  EXPECT_GT(tally.bad_policies, worlds / 16);
  EXPECT_GE(tally.late_starts, worlds / 500);
  EXPECT_GT(tally.ended_texts, worlds / 4);
  EXPECT_GT(tally.tested_drafts, worlds);
  EXPECT_GT(tally.block_drafts, worlds);
  EXPECT_GT(tally.banned_rows, 4 * worlds);
  EXPECT_GT(tally.phase_tokens, worlds);
  for (int kind = 0; kind < Fault::kKinds; ++kind) {
    EXPECT_GT(tally.faults[kind], worlds / 8) << NameOf(static_cast<Fault::Kind>(kind));
  }
}

TEST(SimulationTest, SeedDeterminesHistory) {
  for (const uint64_t seed : {4u, 7u, 8u, 9u}) {
    const Outcome first = RunWorld(seed, Plant::kNone, FaultsOf(seed, Plant::kNone), /*with_log=*/true);
    const Outcome second = RunWorld(seed, Plant::kNone, FaultsOf(seed, Plant::kNone), /*with_log=*/true);
    EXPECT_GT(first.log.size(), 100u);
    EXPECT_EQ(first.log, second.log);
  }
}

// A regression: both processes of a worker that was replaced in the microsecond of its start had the same epochs. Such
// a fault has no effect.
TEST(SimulationTest, NewWorkerIsNotReplacedAtItsStart) {
  const Fault first = {Fault::Kind::kRestart, absl::Milliseconds(3), absl::ZeroDuration(), 0};
  const Fault second = {Fault::Kind::kZombie, first.at + absl::Nanoseconds(500), absl::Milliseconds(50), 0};
  for (const uint64_t seed : {1u, 2u, 3u}) {
    const auto history = [&](const std::vector<Fault>& faults) {
      std::vector<std::string> log = RunWorld(seed, Plant::kNone, faults, /*with_log=*/true).log;
      std::erase_if(log, [](const std::string& line) { return line.find("FAULT") != std::string::npos; });
      return log;
    };
    EXPECT_EQ(history({first, second}), history({first}));
  }
}

// A regression: waiting workers computed without pause, and a world with long waits was reported as stuck.
TEST(SimulationTest, WaitingWorldsMakeProgress) {
  const uint64_t seed = 27494;
  const std::vector<Fault> faults = {{Fault::Kind::kCrash, absl::Microseconds(4880), absl::Microseconds(95548), 0}};
  const Outcome outcome = RunWorld(seed, Plant::kNone, faults);
  EXPECT_TRUE(outcome.ok()) << outcome.failure;
  EXPECT_LT(outcome.tally.steps, 100 * outcome.tally.tokens);
}

// A regression: ranks took the first step of a fork before the others had reached its start, and two batches waited for
// each other.
TEST(SimulationTest, RanksForkWhenAllHaveAnswerBefore) {
  using enum Fault::Kind;
  const auto at = [](Fault::Kind kind, int64_t time, int64_t length, uint32_t who) {
    return Fault{kind, absl::Microseconds(time), absl::Microseconds(length), who};
  };
  const Outcome outcome =
      RunWorld(123, Plant::kNone,
               {at(kZombie, 9216, 635, 2), at(kZombie, 15588, 7566, 0), at(kZombie, 16334, 14346, 2),
                at(kZombie, 40115, 3120, 0), at(kCrash, 45899, 3406, 0)});
  EXPECT_TRUE(outcome.ok()) << outcome.failure;
}

class PlantTest : public ::testing::TestWithParam<Plant> {};

TEST_P(PlantTest, IsFound) {
  uint64_t found = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    if (!RunWorld(seed, GetParam(), FaultsOf(seed, GetParam())).ok()) ++found;
  }
  EXPECT_GT(found, 5u);
}

INSTANTIATE_TEST_SUITE_P(All, PlantTest,
                         ::testing::Values(Plant::kSwappedRows, Plant::kForgottenRewrite, Plant::kShiftedPrompt,
                                           Plant::kOtherChoice, Plant::kLostCheckpoint, Plant::kCrossedShards,
                                           Plant::kLeftState, Plant::kForgottenKey, Plant::kOtherTest,
                                           Plant::kForgottenBan));

// A world is stuck if no rank brings an answer that the others lost with the server.
TEST(SimulationTest, AnswerNoRankBringsIsMissed) {
  constexpr Plant kPlant = Plant::kForgottenAnswer;
  constexpr uint64_t kSeed = 57;
  const std::vector<Fault> faults = FaultsOf(kSeed, kPlant);
  EXPECT_FALSE(RunWorld(kSeed, kPlant, faults).ok());
  EXPECT_TRUE(RunWorld(kSeed, Plant::kNone, faults).ok());
}

// A defect in replays shows only where a history is lost.
TEST(ShrinkTest, KeepsOnlyNeededFaults) {
  constexpr Plant kPlant = Plant::kShiftedPrompt;
  uint32_t shrunk = 0;
  for (uint64_t seed = 1; seed <= 200 && shrunk < 5; ++seed) {
    const std::vector<Fault> faults = FaultsOf(seed, kPlant);
    if (!RunWorld(seed, kPlant, {}).ok() || RunWorld(seed, kPlant, faults).ok()) continue;
    ++shrunk;
    const std::vector<Fault> fewest = Shrink(seed, kPlant, faults);
    EXPECT_GE(fewest.size(), 1u);
    EXPECT_LT(fewest.size(), faults.size());
    EXPECT_FALSE(RunWorld(seed, kPlant, fewest).ok());
    for (size_t i = 0; i < fewest.size(); ++i) {
      std::vector<Fault> fewer = fewest;
      fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(i));
      EXPECT_TRUE(RunWorld(seed, kPlant, fewer).ok()) << "seed " << seed << " does not need " << Describe(fewest[i]);
    }
    const std::string story = DescribeFailure(seed, kPlant, fewest);
    for (const Fault& fault : fewest) EXPECT_NE(story.find(Describe(fault)), std::string::npos) << story;
  }
  EXPECT_EQ(shrunk, 5u);
}

}  // namespace
}  // namespace sortition::simulation::simulation_test
