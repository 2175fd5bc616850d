// A row's way from its plan to its result, without messages, streams and devices.
#include <gtest/gtest.h>

#include <utility>

#include "service/clock.h"
#include "service/observer.h"
#include "service/sequence/granted_row.h"
#include "tests/support/expect_error.h"

namespace sortition::service::row_test {
namespace {

constexpr uint32_t kVocabulary = 100;
constexpr uint32_t kStop = 99;

kernels::RowOutput OutputOf(uint32_t token) {
  kernels::RowOutput output;
  output.token = token;
  return output;
}

class RowTest : public ::testing::Test {
 protected:
  RowTest() {
    auto spec = std::make_shared<SequenceSpec>();
    spec->law_version = 1;
    spec->vocabulary = spec->live_vocabulary = kVocabulary;
    spec->presence_penalty = 1;
    spec->stop_tokens = {kStop};
    sequence_.spec = spec;
    sequence_.owner = {1, 1};
    sequence_.key = std::make_shared<const SequenceKey>(SequenceKey{"tenant", "worker", "a"});
    sequence_.table = &table_;
    auto opened = table_.Open(*sequence_.key, sequence_.owner, spec,
                              Text::Build(spec, std::vector<uint32_t>{5, 6}, 2, Limits().kept_history));
    sequence_.state = std::get<SequenceTable::Opened>(opened).sequence;
    hash_ = std::get<SequenceTable::Opened>(opened).at.history_hash;
  }

  // A draw, or the verification of a draft sequence.
  RowPlan Plan(uint64_t step_id, std::vector<uint32_t> drafts = {}) const {
    RowPlan plan;
    plan.row = 3;
    plan.intent.step_id = step_id;
    plan.intent.position = 2;
    plan.intent.history_hash = hash_;
    plan.intent.options_digest = drafts.size();
    if (!drafts.empty()) plan.kind = RowPlan::Kind::kCompare;
    plan.ahead = TokenTree::Chain(std::move(drafts));
    return plan;
  }
  SequenceRow Granted(const RowPlan& plan) {
    auto granted = GrantRow(sequence_, plan, nullptr);
    EXPECT_TRUE(std::holds_alternative<StepGrant>(granted));
    return SequenceRow({sequence_, plan, {}, std::move(std::get<StepGrant>(granted))});
  }

  SteadyClock clock_;
  NullObserver observer_;
  SequenceTable table_{Limits(), &clock_, &observer_};
  RowSequence sequence_;
  uint64_t hash_ = 0;
};

TEST_F(RowTest, DrawAdvancesItsSequenceOnce) {
  const RowPlan plan = Plan(1);
  SequenceRow run = Granted(plan);
  const kernels::RowRequest request = run.RequestAt(0, kernels::DType::kF32, nullptr, kernels::DType::kF32);
  EXPECT_EQ(request.noise.position, 2u);
  ASSERT_EQ(request.edits.size(), 2u) << "the history's tokens are penalised";
  EXPECT_EQ(request.edits[0].token, 5u);
  EXPECT_TRUE(run.Take(0, OutputOf(42)).is_complete);
  const auto committed = run.Commit();
  const RowResult& result = std::get<RowResult>(committed);
  EXPECT_EQ(result.outputs.at(0).token, 42u);
  EXPECT_NE(result.history_hash, hash_);

  const auto again = GrantRow(sequence_, plan, nullptr);
  ASSERT_TRUE(std::holds_alternative<RepeatedResult>(again)) << "a retry gets the same result";
  EXPECT_EQ(std::get<RepeatedResult>(again).result->history_hash, result.history_hash);
}

TEST_F(RowTest, GrantedRowHoldsItsSequence) {
  SequenceRow run = Granted(Plan(1));
  EXPECT_EQ(ExpectRefusal(GrantRow(sequence_, Plan(2), nullptr), Reason::kStepInFlight).field, "step.rows[3].step_id");
  run.Abort();
  Granted(Plan(2)).Abort();
}

TEST_F(RowTest, DraftsAreAcceptedUpToTheFirstRejected) {
  SequenceRow run = Granted(Plan(1, {7, 8, 9}));
  ASSERT_EQ(run.first_positions(), 4u);
  // Outputs may come in any order, and those behind the rejected draft do not matter.
  EXPECT_FALSE(run.Take(3, Refusal{Reason::kDeadlinePassed, "", "", ""}).is_complete);
  EXPECT_FALSE(run.Take(2, OutputOf(9)).is_complete);
  EXPECT_FALSE(run.Take(1, OutputOf(30)).is_complete);
  EXPECT_TRUE(run.Take(0, OutputOf(7)).is_complete);
  const auto committed = run.Commit();
  const RowResult& result = std::get<RowResult>(committed);
  EXPECT_EQ(result.path, std::vector<uint32_t>{0});
  EXPECT_EQ(result.matched, (std::vector<bool>{true, false, true}));
  ASSERT_EQ(result.outputs.size(), 2u);
  EXPECT_EQ(result.outputs[1].token, 30u);
}

TEST_F(RowTest, AcceptedStopTokenEndsTheText) {
  SequenceRow run = Granted(Plan(1, {kStop, 8}));
  run.Take(0, OutputOf(kStop));
  run.Take(1, OutputOf(8));
  run.Take(2, OutputOf(1));
  const auto committed = run.Commit();
  EXPECT_EQ(std::get<RowResult>(committed).outputs.size(), 1u);
}

TEST_F(RowTest, FailedPositionLeavesSequenceAsItWas) {
  SequenceRow run = Granted(Plan(1));
  kernels::RowOutput failed;
  failed.error = kernels::RowFault::kNaN;
  run.Take(0, std::move(failed));
  const auto refused = run.Commit();
  ASSERT_TRUE(std::holds_alternative<Refusal>(refused));
  EXPECT_EQ(std::get<Refusal>(refused).field, "step.rows[3]");
  Granted(Plan(1)).Abort();
}

TEST_F(RowTest, PlainDrawLeavesNothingToTheNextRow) {
  RowRun run(sequence_.spec);
  run.parts().plan = Plan(1);
  run.Begin();
  EXPECT_TRUE(run.Take(0, OutputOf(42)).is_complete);
  EXPECT_FALSE(run.Finish().has_value());
  run.result().history_hash = 1;
  run.result().end.repeats = true;
  ASSERT_TRUE(run.plan().is_plain_draw());
  run.Begin();
  EXPECT_EQ(run.result().history_hash, std::nullopt);
  EXPECT_EQ(run.result().end, TextEnd());
  EXPECT_TRUE(run.Take(0, OutputOf(43)).is_complete);
  EXPECT_FALSE(run.Finish().has_value());
  ASSERT_EQ(run.result().outputs.size(), 1u);
  EXPECT_EQ(run.result().outputs[0].token, 43u);
}

TEST_F(RowTest, ClearedOutputEqualsANewOne) {
  const kernels::Distribution full = {1, 2, {3, 4}, 5, {{6, 7}}, {{8, 9}}};
  kernels::RowOutput output = {
      kernels::RowFault::kNaN, 1, 2, true, 3, 4, full, full, full, {5, 6}, {7, 8}, {9, 10}, {{1, 2}}, 11, 12};
  output.Clear();
  EXPECT_EQ(output, kernels::RowOutput());
}

TEST_F(RowTest, RowInOrderEndsAtARefusedPosition) {
  auto spec = std::make_shared<SequenceSpec>(*sequence_.spec);
  spec->parameters.chain = {{.kind = kernels::StageKind::kMirostat2}};
  RowRun run(spec);
  run.parts().plan = Plan(1, {7, 8});
  run.Begin();
  ASSERT_TRUE(run.runs_in_order());
  EXPECT_EQ(run.Take(0, OutputOf(7)).next->index, 1u);
  EXPECT_TRUE(run.Take(1, Refusal{Reason::kDeadlinePassed, "", "", ""}).is_complete);
  const auto refused = run.Finish();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->reason, Reason::kDeadlinePassed);
}

TEST_F(RowTest, SequenceWithoutStateNeedsNoGrant) {
  sequence_.state = nullptr;
  SequenceRow run = Granted(Plan(1));
  run.Take(0, OutputOf(42));
  const auto committed = run.Commit();
  EXPECT_EQ(std::get<RowResult>(committed).history_hash, std::nullopt);
}

}  // namespace
}  // namespace sortition::service::row_test
