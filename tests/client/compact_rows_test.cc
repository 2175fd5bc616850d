// Compact rows of the client: when rows travel like this, and how a refused one follows.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/state_harness.h"

namespace sortition::testing::compact_rows_test {
namespace {

using client::RowFormOptions;
using ::testing::ElementsAre;

class CompactRowsTest : public ::testing::Test {
 protected:
  CompactRowsTest() {
    harness.Welcome(harness.stream(0));
    for (uint32_t id = 0; id < StateHarness::kVocabulary; ++id) harness.logits[id] = static_cast<float>(id);
    harness.compact_count = 3;
  }

  v1::RequiredLogits& Require(v1::RequiredLogits::Cause cause) {
    refusal.Clear();
    refusal = StateHarness::MakeError(absl::StatusCode::kFailedPrecondition, v1::ROW_REQUIRED);
    refusal.add_required()->set_cause(cause);
    return *refusal.mutable_required(0);
  }
  // Takes the next step and returns its row's compact form, with its tokens in `ids`; absent if it is whole.
  std::optional<v1::CompactRow> TakeCompact() {
    const SentMessage message = harness.Take(harness.last_stream(), v1::StreamRequest::kStep);
    step = message.message.step();
    ids.clear();
    if (step.rows(0).compact().empty()) {
      EXPECT_TRUE(step.logits().has_source());
      EXPECT_FALSE(step.logits().has_pairs());
      return std::nullopt;
    }
    EXPECT_FALSE(step.logits().has_source());
    const v1::CompactRow& row = step.rows(0).compact(0);
    std::string pairs;
    for (const auto& segment : message.payloads.at(step.logits().pairs().inline_().payload()).segments) {
      pairs.append(reinterpret_cast<const char*>(segment.data), segment.size);
    }
    ids.resize(row.first() + row.others());
    EXPECT_EQ(pairs.size(), ids.size() * 8);
    std::memcpy(ids.data(), pairs.data(), ids.size() * sizeof(uint32_t));
    for (size_t i = 0; i < ids.size(); ++i) {
      float logit;
      std::memcpy(&logit, pairs.data() + ids.size() * 4 + i * 4, sizeof(logit));
      EXPECT_EQ(logit, static_cast<float>(ids[i]));
    }
    return row;
  }

  StateHarness harness{HarnessOptions()};
  v1::Error refusal;
  v1::Step step;
  std::vector<uint32_t> ids;
};

TEST_F(CompactRowsTest, FirstTokensTravelInPlaceOfLogits) {
  const auto record = harness.OpenOn(harness.stream(0), "r", true);
  const auto results = harness.Submit({record});
  const auto row = TakeCompact();
  ASSERT_TRUE(row.has_value());
  EXPECT_THAT(ids, ElementsAre(7, 6, 5));
  EXPECT_FALSE(row->is_whole());
  EXPECT_FALSE(row->has_unit_sum());
  EXPECT_FALSE(row->has_sum());
  harness.AnswerRow(harness.stream(0), step, 0, 5);
  EXPECT_EQ(results->times, 1);
  EXPECT_EQ(StateHarness::Position(*record), 3);
}

TEST_F(CompactRowsTest, RequiredTokensFollowUnderSameStep) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  const auto results = harness.Submit({record});
  ASSERT_TRUE(TakeCompact());
  const uint64_t step_id = step.rows(0).step_id();
  v1::RequiredLogits& required = Require(v1::RequiredLogits::CAUSE_TOKENS);
  for (const uint32_t token : {1u, 4u, 6u}) required.add_tokens(token);
  harness.RefuseRow(harness.stream(0), step, 0, refusal);
  const auto row = TakeCompact();
  ASSERT_TRUE(row.has_value());
  EXPECT_EQ(step.rows(0).step_id(), step_id);
  EXPECT_THAT(ids, ElementsAre(7, 6, 5, 1, 4));
  EXPECT_EQ(row->others(), 2u);
  // A late repetition of the refusal belongs to a step that is answered.
  harness.AnswerRow(harness.stream(0), step, 0, 5);
  harness.RefuseRow(harness.stream(0), step, 0, refusal);
  EXPECT_EQ(results->times, 1);
}

TEST_F(CompactRowsTest, OtherCausesGetWholeRow) {
  for (const auto cause :
       {v1::RequiredLogits::CAUSE_CUT, v1::RequiredLogits::CAUSE_ROW, v1::RequiredLogits::CAUSE_UNSPECIFIED}) {
    const auto record = harness.OpenOn(harness.stream(0), absl::StrCat("r", int{cause}), false);
    const auto results = harness.Submit({record});
    ASSERT_TRUE(TakeCompact());
    Require(cause);
    harness.RefuseRow(harness.stream(0), step, 0, refusal);
    EXPECT_FALSE(TakeCompact());
    harness.AnswerRow(harness.stream(0), step, 0, 5);
    EXPECT_EQ(results->times, 1);
  }
}

// A server that requests nonsense gets the whole row, once.
TEST_F(CompactRowsTest, StrangeRefusalsEndWithWholeRow) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  const auto results = harness.Submit({record});
  ASSERT_TRUE(TakeCompact());
  Require(v1::RequiredLogits::CAUSE_TOKENS).add_tokens(StateHarness::kVocabulary);
  refusal.mutable_required(0)->set_position(3);
  harness.RefuseRow(harness.stream(0), step, 0, refusal);
  EXPECT_FALSE(TakeCompact());
  harness.RefuseRow(harness.stream(0), step, 0, refusal);
  ASSERT_EQ(results->times, 1);
  EXPECT_EQ(ErrorOfRow(results->rows[0])->reason, v1::ROW_REQUIRED);
}

TEST_F(CompactRowsTest, LackingSumsAreStatedFromThenOn) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  auto results = harness.Submit({record});
  ASSERT_TRUE(TakeCompact());
  Require(v1::RequiredLogits::CAUSE_SUMS);
  harness.RefuseRow(harness.stream(0), step, 0, refusal);
  EXPECT_FALSE(TakeCompact());
  harness.AnswerRow(harness.stream(0), step, 0, 5);
  results = harness.Submit({record});
  const auto row = TakeCompact();
  ASSERT_TRUE(row.has_value());
  EXPECT_TRUE(row->has_unit_sum());
  EXPECT_TRUE(row->has_sum());
}

// The service takes no sum at the row's temperature where the phase decides which one that is.
TEST_F(CompactRowsTest, PhasesOfOtherHeatStateUnitSumAlone) {
  client::SequenceOptions options;
  options.request_id = "r";
  options.prompt = {1, 2};
  options.parameters.mutable_tempered_logprobs()->set_top(1);
  options.parameters.mutable_raw_logprobs()->set_top(1);
  v1::Phase& phase = *options.parameters.add_phases();
  phase.set_max_tokens(3);
  phase.add_then(4);
  phase.mutable_parameters()->set_temperature(0.5f);
  const auto opened = harness.Open(std::move(options));
  harness.AcceptOpen(harness.stream(0), harness.TakeOpen(harness.stream(0)), true);
  ASSERT_TRUE(opened.status->ok()) << *opened.status;
  harness.Submit({opened.record});
  const auto row = TakeCompact();
  ASSERT_TRUE(row.has_value());
  EXPECT_TRUE(row->has_unit_sum());
  EXPECT_FALSE(row->has_sum());
}

TEST_F(CompactRowsTest, GreedyRowsListTheirFirstTokenAlone) {
  client::SequenceOptions options;
  options.request_id = "r";
  options.prompt = {1, 2};
  options.parameters.set_temperature(0);
  const auto opened = harness.Open(std::move(options));
  harness.AcceptOpen(harness.stream(0), harness.TakeOpen(harness.stream(0)), false);
  ASSERT_TRUE(opened.status->ok()) << *opened.status;
  harness.Submit({opened.record});
  ASSERT_TRUE(TakeCompact());
  EXPECT_THAT(ids, ElementsAre(7));
  // A policy of the server may ban it: the sequence lists more from then on.
  Require(v1::RequiredLogits::CAUSE_CUT);
  harness.RefuseRow(harness.stream(0), step, 0, refusal);
  EXPECT_FALSE(TakeCompact());
  harness.AnswerRow(harness.stream(0), step, 0, 5);
  harness.Submit({opened.record});
  ASSERT_TRUE(TakeCompact());
  EXPECT_THAT(ids, ElementsAre(7, 6, 5));
}

TEST_F(CompactRowsTest, GreedyRowsThatAreEditedListMore) {
  client::SequenceOptions options;
  options.parameters.set_temperature(0);
  const auto takes_first = [&] { return client::SequenceRecord(options).takes_first; };
  options.vocabulary_size = StateHarness::kVocabulary;
  EXPECT_TRUE(takes_first());
  for (const auto change : {+[](v1::SamplingParameters* to) { to->add_banned_token_ids(1); },
                            +[](v1::SamplingParameters* to) { to->add_allowed_token_ids(1); },
                            +[](v1::SamplingParameters* to) { to->set_presence_penalty(1); },
                            +[](v1::SamplingParameters* to) { to->mutable_raw_logprobs()->set_top(2); },
                            +[](v1::SamplingParameters* to) { to->set_temperature(1); }}) {
    options.parameters.Clear();
    options.parameters.set_temperature(0);
    change(&options.parameters);
    EXPECT_FALSE(takes_first()) << options.parameters.ShortDebugString();
  }
}

// 1, 3, 7, ... rows go whole after refusals in a row; a decided one starts anew.
TEST_F(CompactRowsTest, SequenceThatNeedsWholeRowsSendsThem) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  const auto whole_rows_before_compact = [&] {
    for (int rows = 0;; ++rows) {
      harness.Submit({record});
      if (TakeCompact()) return rows;
      harness.AnswerRow(harness.stream(0), step, 0, 5);
    }
  };
  Require(v1::RequiredLogits::CAUSE_ROW);
  for (const int expected : {0, 1, 3, 7}) {
    EXPECT_EQ(whole_rows_before_compact(), expected);
    harness.RefuseRow(harness.stream(0), step, 0, refusal);
    EXPECT_FALSE(TakeCompact());
    harness.AnswerRow(harness.stream(0), step, 0, 5);
  }
  EXPECT_EQ(whole_rows_before_compact(), 15);
  harness.AnswerRow(harness.stream(0), step, 0, 5);
  EXPECT_EQ(whole_rows_before_compact(), 0);
  harness.RefuseRow(harness.stream(0), step, 0, refusal);
  EXPECT_FALSE(TakeCompact());
  harness.AnswerRow(harness.stream(0), step, 0, 5);
  EXPECT_EQ(whole_rows_before_compact(), 1);
}

// A batch of one row, stated as a client states it.
class ForeseenRow {
 public:
  static constexpr uint32_t kVocabulary = 4000;
  static constexpr uint32_t kCount = 64;

  explicit ForeseenRow(v1::SamplingParameters parameters) {
    client::SequenceOptions options;
    options.parameters = std::move(parameters);
    options.vocabulary_size = kVocabulary;
    record_ = std::make_shared<client::SequenceRecord>(std::move(options));
    for (uint32_t id = 0; id < kVocabulary; ++id) logits[id] = -0.05f * static_cast<float>(id);
  }

  // Returns the form of the sequence's next row; absent if it goes whole.
  std::optional<v1::CompactRow> State(const uint32_t* allowed_bits = nullptr) {
    client::PendingBatch batch;
    batch.vocabulary_size = kVocabulary;
    batch.row_bytes = sizeof(float) * kVocabulary;
    client::PendingRow& row = batch.rows.emplace_back();
    row.record = record_;
    row.row.logits = logits.data();
    row.row.allowed_bits = allowed_bits;
    client::StateRow(batch, kCount, &row);
    if (row.compact.empty()) return std::nullopt;
    std::string pairs;
    v1::CompactRow form;
    row.compact[0].AppendTo(&pairs, &form);
    return form;
  }

  std::vector<float> logits = std::vector<float>(kVocabulary);

 private:
  std::shared_ptr<client::SequenceRecord> record_;
};

TEST_F(CompactRowsTest, DrawWithoutFiltersGoesWholeAtOnce) {
  ForeseenRow row({});
  const std::vector<uint32_t> all(ForeseenRow::kVocabulary / 32, ~0u);
  EXPECT_FALSE(row.State());
  EXPECT_FALSE(row.State());
  EXPECT_TRUE(row.State(all.data())) << "a mask may leave few tokens";
  std::fill(row.logits.begin() + 10, row.logits.end(), -INFINITY);
  const auto masked = row.State();
  ASSERT_TRUE(masked.has_value());
  EXPECT_TRUE(masked->is_whole());
}

TEST_F(CompactRowsTest, RowThatItsStatementDecidesStaysCompact) {
  v1::SamplingParameters parameters;
  parameters.set_top_k(ForeseenRow::kCount);
  const auto decided = ForeseenRow(parameters).State();
  ASSERT_TRUE(decided.has_value());
  EXPECT_FALSE(decided->has_unit_sum());
  parameters.set_top_k(ForeseenRow::kCount + 1);
  EXPECT_FALSE(ForeseenRow(parameters).State()) << "the cut lies behind the listed tokens";
}

TEST_F(CompactRowsTest, SumsThatTopPNeedsAreStatedAtOnce) {
  v1::SamplingParameters parameters;
  parameters.set_top_p(0.9f);  // keeps 46 tokens
  const auto decided = ForeseenRow(parameters).State();
  ASSERT_TRUE(decided.has_value());
  EXPECT_TRUE(decided->has_unit_sum());
  parameters.set_top_p(0.99f);  // keeps 92
  EXPECT_FALSE(ForeseenRow(parameters).State());
}

TEST_F(CompactRowsTest, ServerWithoutThemGetsWholeRows) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  const auto results = harness.Submit({record});
  ASSERT_TRUE(TakeCompact());
  harness.max_compact_tokens = 0;
  harness.End(harness.stream(0));
  harness.Welcome(harness.last_stream());
  harness.AcceptOpen(harness.last_stream(), harness.TakeOpen(harness.last_stream()), false);
  EXPECT_FALSE(TakeCompact());
  harness.AnswerRow(harness.last_stream(), step, 0, 5);
  EXPECT_EQ(results->times, 1);
}

// Portions of a batch are sent as they are stated.
TEST_F(CompactRowsTest, RowsFollowAsTheyAreStated) {
  const auto first = harness.OpenOn(harness.stream(0), "a", false);
  const auto second = harness.OpenOn(harness.stream(0), "b", false);
  std::copy_n(harness.logits, StateHarness::kVocabulary, harness.logits + StateHarness::kVocabulary);
  harness.stating_from = 1;
  const auto results = harness.Submit({first, second});
  ASSERT_TRUE(TakeCompact());
  EXPECT_EQ(step.rows_size(), 1);
  harness.AnswerRow(harness.stream(0), step, 0, 5);
  EXPECT_EQ(results->times, 0);
  harness.EndStating();
  ASSERT_TRUE(TakeCompact());
  EXPECT_EQ(step.rows(0).request_id(), "b");
  harness.AnswerRow(harness.stream(0), step, 0, 6);
  ASSERT_EQ(results->times, 1);
}

// The caller's memory is read until the last row is stated, so that its results wait for that.
TEST_F(CompactRowsTest, DeadlineWaitsForTheRowsThatAreStating) {
  const auto first = harness.OpenOn(harness.stream(0), "a", false);
  const auto second = harness.OpenOn(harness.stream(0), "b", false);
  harness.stating_from = 1;
  const auto results = harness.Submit({first, second}, absl::Seconds(2));
  harness.MoveBy(absl::Seconds(3));
  EXPECT_EQ(results->times, 0);
  harness.EndStating();
  ASSERT_EQ(results->times, 1);
  EXPECT_EQ(ErrorOfRow(results->rows[1])->reason, v1::DEADLINE_PASSED);
}

TEST_F(CompactRowsTest, RowsWithoutCompactFormGoWhole) {
  const auto record = harness.OpenOn(harness.stream(0), "r", false);
  harness.logits[2] = 70000;
  harness.Submit({record});
  EXPECT_FALSE(TakeCompact());
  harness.AnswerRow(harness.stream(0), step, 0, 5);
  for (uint32_t id = 0; id < StateHarness::kVocabulary; ++id) harness.logits[id] = -INFINITY;
  harness.Submit({record});
  EXPECT_FALSE(TakeCompact());
}

TEST_F(CompactRowsTest, AutoTakesThemWhereASocketIsInUse) {
  const auto count_of = [](RowFormOptions rows, uint64_t row_bytes) {
    client::ClientOptions options = HarnessOptions();
    options.rows = rows;
    StateHarness made(std::move(options));
    EXPECT_EQ(made.state.CompactCount(row_bytes, 2), 0u) << "before the welcome";
    made.max_compact_tokens = 300;
    made.Welcome(made.stream(0));
    return made.state.CompactCount(row_bytes, 2);
  };
  EXPECT_EQ(count_of({RowFormOptions::Form::kAuto}, 256'512), 256u);
  EXPECT_EQ(count_of({RowFormOptions::Form::kAuto}, 256 * 6 * 8), 256u);
  EXPECT_EQ(count_of({RowFormOptions::Form::kAuto}, 256 * 6 * 8 - 2), 0u) << "hardly shorter";
  EXPECT_EQ(count_of({RowFormOptions::Form::kFull}, 256'512), 0u);
  EXPECT_EQ(count_of({RowFormOptions::Form::kCompact, 20}, 100), 20u);
  EXPECT_EQ(count_of({RowFormOptions::Form::kCompact, 4000}, 256'512), 300u) << "the server's limit";
}

TEST_F(CompactRowsTest, OptionsAreReadFromText) {
  EXPECT_EQ(RowFormOptions().form, RowFormOptions::Form::kAuto);
  EXPECT_EQ(RowFormOptions::Parse("auto")->form, RowFormOptions::Form::kAuto);
  EXPECT_EQ(RowFormOptions::Parse("full")->form, RowFormOptions::Form::kFull);
  EXPECT_EQ(RowFormOptions::Parse("compact")->count, 256u);
  EXPECT_EQ(RowFormOptions::Parse("compact(17)")->count, 17u);
  EXPECT_EQ(RowFormOptions::Parse("compact(17)")->form, RowFormOptions::Form::kCompact);
  for (const char* text : {"", "Auto", "compact(", "compact()", "compact(x)", "compact(-1)", "compact(1"}) {
    EXPECT_FALSE(RowFormOptions::Parse(text)) << text;
  }
}

}  // namespace
}  // namespace sortition::testing::compact_rows_test
