// Compact rows that are not decided, unsound, too many or misplaced: each is refused by name, and harms no other row.

#include <cstring>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "service/text/cost.h"
#include "tests/memory/memory_fixture.h"
#include "tests/stream/compact_fixture.h"

namespace sortition::service::session_compact_refusal_test {
namespace {

constexpr uint32_t kVocabulary = 60;

class SessionCompactRefusal : public CompactFixture {
 protected:
  // A row with logits 0, 1, ... for a sequence "a" without state, in compact forms that a test damages.
  struct Damaged {
    std::string pairs;
    v1::StreamRequest message;
    v1::CompactRow& row() { return *message.mutable_step()->mutable_rows(0)->mutable_compact(0); }
  };
  Damaged Stated(uint32_t count) {
    std::vector<float> logits(kVocabulary);
    for (uint32_t id = 0; id < kVocabulary; ++id) logits[id] = static_cast<float>(id);
    StepBuilder step(++batch_, kVocabulary);
    step.AddRow("a", batch_, 0, F32Bytes(logits));
    const std::optional<CompactChoice> choices[] = {CompactChoice{PlainRowParameters({}), kVocabulary, count}};
    Damaged damaged;
    damaged.message = WithCompactRows(step.Build(), choices);
    damaged.pairs = damaged.message.payloads(0);
    return damaged;
  }
};

// Each position that is not decided is named, with the tokens that it lacks.
TEST_F(SessionCompactRefusal, EveryUndecidedPositionIsNamed) {
  v1::OpenSequence open = MakeOpen("a", 1, kVocabulary);
  open.mutable_parameters()->set_temperature(0);
  open.mutable_parameters()->mutable_raw_logprobs();
  AddBias(0, 1, open.mutable_parameters());
  compact_.MustOpen(open);
  Damaged step = Stated(10);
  v1::StepRow& row = *step.message.mutable_step()->mutable_rows(0);
  row.mutable_score()->add_tokens(59);
  row.mutable_score()->add_tokens(59);
  row.mutable_compact(0)->clear_sum();
  *row.add_compact() = row.compact(0);
  const v1::RowResult result = RunOne(step.message);
  ExpectError(result, Reason::kRowRequired, "step.rows[0].compact[0]");
  ASSERT_EQ(result.error().required_size(), 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(result.error().required(i).position(), static_cast<uint32_t>(i));
    EXPECT_EQ(result.error().required(i).cause(), v1::RequiredLogits::CAUSE_TOKENS);
    EXPECT_EQ(result.error().required(i).tokens_size(), 1);
    EXPECT_EQ(result.error().required(i).tokens(0), 0u);
  }
}

// A few bytes of a step once named every edited token at every position, megabytes of them.
TEST_F(SessionCompactRefusal, NamedTokensOfARowAreBounded) {
  constexpr uint32_t kWide = 10'000;
  constexpr uint32_t kBiased = 9'000;
  constexpr uint32_t kPositions = 20;
  v1::OpenSequence open = MakeOpen("a", 1, kWide);
  for (uint32_t id = 0; id < kBiased; ++id) AddBias(id, 1, open.mutable_parameters());
  compact_.MustOpen(open);
  std::vector<float> logits(kWide);
  for (uint32_t id = 0; id < kWide; ++id) logits[id] = static_cast<float>(id) / kWide;
  StepBuilder builder(1, kWide);
  v1::Score& score = *builder.AddRow("a", 1, 0, F32Bytes(logits)).mutable_score();
  const std::optional<CompactChoice> choices[] = {CompactChoice{PlainRowParameters({}), kWide, 10}};
  score.add_tokens(kWide - 1);
  v1::StreamRequest message = WithCompactRows(builder.Build(), choices);
  v1::StepRow& row = *message.mutable_step()->mutable_rows(0);
  for (uint32_t i = 1; i < kPositions; ++i) {
    row.mutable_score()->add_tokens(kWide - 1);
    *row.add_compact() = row.compact(0);
  }
  // A longer message may have a longer answer.
  for (const size_t padding : {size_t{0}, size_t{kMaxRequiredTokens}}) {
    message.mutable_payloads(0)->append(padding, '\0');
    const uint64_t before = engine_->ledger().work();
    const v1::RowResult result = RunOne(message);
    ExpectError(result, Reason::kRowRequired, "step.rows[0].compact[0]");
    ASSERT_EQ(result.error().required_size(), static_cast<int>(kPositions));
    for (uint32_t i = 0; i < kPositions; ++i) {
      const bool is_named = (i + 1) * kBiased <= std::min<uint64_t>(kMaxRequiredTokens, 16 * message.ByteSizeLong());
      EXPECT_EQ(result.error().required(static_cast<int>(i)).position(), i);
      EXPECT_EQ(result.error().required(static_cast<int>(i)).tokens_size(), is_named ? static_cast<int>(kBiased) : 0);
    }
    EXPECT_GE(engine_->ledger().work() - before, kPositions * kBiased * price::kNamedToken);
  }
}

TEST_F(SessionCompactRefusal, UnsoundRowsFailAloneByName) {
  compact_.MustOpen(MakeOpen("a", 1, kVocabulary));
  const std::string at = "step.rows[0].compact[0]";
  const auto set_id = [](Damaged* row, size_t i, uint32_t id) { std::memcpy(&row->pairs[i * 4], &id, 4); };
  const auto set_logit = [](Damaged* row, size_t i, float logit) {
    std::memcpy(&row->pairs[10 * 4 + i * 4], &logit, 4);
  };
  // The last token of the list as one of the others: it must come after the list, and not be in it.
  const auto set_other = [](Damaged* row) {
    row->row().set_first(9);
    row->row().set_others(1);
  };
  std::vector<std::tuple<Reason, std::string, std::function<void(Damaged*)>>> cases = {
      {Reason::kOutOfRange, at + ".first", [&](auto* row) { set_logit(row, 3, 1000); }},
      {Reason::kOutOfRange, at + ".first", [&](auto* row) { set_id(row, 3, 59); }},
      {Reason::kOutOfRange, at + ".first", [&](auto* row) { set_id(row, 3, kVocabulary); }},
      {Reason::kOutOfRange, at + ".first",
       [&](auto* row) { set_logit(row, 9, -std::numeric_limits<float>::infinity()); }},
      {Reason::kLogitTooLarge, at, [&](auto* row) { set_logit(row, 0, 70000); }},
      {Reason::kLogitNan, at, [&](auto* row) { set_logit(row, 5, std::numeric_limits<float>::quiet_NaN()); }},
      {Reason::kOutOfRange, at + ".others", [&](auto* row) { set_other(row), set_id(row, 9, 59); }},
      {Reason::kOutOfRange, at + ".others", [&](auto* row) { set_other(row), set_logit(row, 9, 1000); }},
      {Reason::kOutOfRange, at + ".others", [&](auto* row) { set_other(row), row->row().set_is_whole(true); }},
      {Reason::kMissingField, at + ".first", [](auto* row) { row->row().set_first(0), row->row().set_others(10); }},
      {Reason::kOutOfRange, at + ".offset", [](auto* row) { row->row().set_offset(1); }},
      {Reason::kOutOfRange, at + ".offset", [](auto* row) { row->row().set_offset(~uint64_t{0}); }},
      {Reason::kOutOfRange, "step.rows[0].compact",
       [](auto* row) { row->message.mutable_step()->mutable_rows(0)->add_compact(); }},
      {Reason::kContradiction, "step.rows[0].tensor_row",
       [](auto* row) { row->message.mutable_step()->mutable_rows(0)->set_tensor_row(0); }},
  };
  for (const uint64_t sum : {uint64_t{0}, Stated(10).row().unit_sum() - (uint64_t{1} << 43), ~uint64_t{0}}) {
    cases.emplace_back(Reason::kOutOfRange, at + ".unit_sum", [=](auto* row) { row->row().set_unit_sum(sum); });
    cases.emplace_back(Reason::kOutOfRange, at + ".sum", [=](auto* row) { row->row().set_sum(sum); });
  }
  for (const auto& [reason, field, damage] : cases) {
    Damaged row = Stated(10);
    damage(&row);
    row.message.set_payloads(0, row.pairs);
    ExpectError(RunOne(row.message), reason, field);
  }
  EXPECT_EQ(RunOne(Stated(kVocabulary).message).draw().token(), 59u) << "a sound one";
}

// The rule looks at the temperature alone, and not at how the other options compile.
TEST_F(SessionCompactRefusal, SumIsRefusedWithoutOneTemperature) {
  uint64_t epoch = 0;
  const auto run = [&](const char* parameters, bool has_unit_sum, int64_t more) {
    v1::OpenSequence open = MakeOpen("a", ++epoch, kVocabulary);
    *open.mutable_parameters() = ParametersOf(parameters);
    compact_.MustOpen(open);
    Damaged step = Stated(10);
    step.row().set_sum(step.row().unit_sum() + static_cast<uint64_t>(more));
    if (!has_unit_sum) step.row().clear_unit_sum();
    return RunOne(step.message);
  };
  const std::string sum = "step.rows[0].compact[0].sum";
  for (const char* parameters : {"top_k: 5", "top_k: 5 top_n_sigma: 3 top_a: 0.1", "temperature: 0"}) {
    for (const bool has_unit_sum : {false, true}) {
      EXPECT_NE(run(parameters, has_unit_sum, 0).error().reason(), v1::OUT_OF_RANGE);
      // A sum that the listed tokens do not allow.
      ExpectError(run(parameters, has_unit_sum, -(int64_t{1} << 43)), Reason::kOutOfRange, sum);
    }
    // Two statements of one sum.
    ExpectError(run(parameters, true, 1), Reason::kOutOfRange, sum);
  }
  // A sum in place of unit_sum decides a row that needs one.
  const char* const cutoff = "epsilon_cutoff: 0.9";
  EXPECT_EQ(run(cutoff, true, 0).draw().token(), 59u);
  EXPECT_EQ(run(cutoff, false, 0).draw().token(), 59u);
  v1::OpenSequence open = MakeOpen("a", ++epoch, kVocabulary);
  *open.mutable_parameters() = ParametersOf(cutoff);
  compact_.MustOpen(open);
  Damaged without_sums = Stated(10);
  without_sums.row().clear_unit_sum();
  without_sums.row().clear_sum();
  ExpectError(RunOne(without_sums.message), Reason::kRowRequired, "step.rows[0].compact[0]");
  ExpectError(run("dynamic_temperature { range: 0.5 }", true, 0), Reason::kContradiction, sum);
}

TEST_F(SessionCompactRefusal, LimitsHoldForRowAndStep) {
  TestEngine engine = TestEngine::OnCpu({.max_compact_tokens = 20, .max_compact_bytes = 25 * 8});
  StreamWorker worker(engine.get());
  worker.MustOpen(MakeOpen("a", 1, kVocabulary));
  worker.MustOpen(MakeOpen("b", 1, kVocabulary));
  const v1::RowResult refused = worker.Run(Stated(21).message).at(0);
  ExpectError(refused, Reason::kTooMany, "step.rows[0].compact[0].first");
  EXPECT_EQ(refused.error().limit(), "max_compact_tokens 20");
  v1::StreamRequest both = Stated(20).message;
  v1::StepRow& row = *both.mutable_step()->add_rows();
  row = both.step().rows(0);
  row.set_request_id("b");
  row.mutable_compact(0)->set_first(6);
  // The rows share their tokens; the bytes that they list count.
  worker.Send(both);
  const v1::Error error = worker.StepError(both.step().batch_id());
  ExpectError(error, Reason::kTooMany, "step.rows");
  EXPECT_EQ(error.limit(), "max_compact_bytes 200");
}

TEST_F(SessionCompactRefusal, MessageNeedsWhatItsRowsNeed) {
  compact_.MustOpen(MakeOpen("a", 1, kVocabulary));
  const std::tuple<Reason, const char*, void (*)(v1::Step*)> cases[] = {
      {Reason::kMissingField, "step.logits.pairs", [](auto* step) { step->mutable_logits()->clear_pairs(); }},
      {Reason::kContradiction, "step.logits.source",
       [](auto* step) { *step->mutable_logits()->mutable_source() = step->logits().pairs(); }},
      {Reason::kContradiction, "step.logits.tensor_rows",
       [](auto* step) { step->mutable_logits()->set_tensor_rows(1); }},
      {Reason::kContradiction, "step.logits.pairs", [](auto* step) { step->mutable_rows(0)->clear_compact(); }},
  };
  for (const auto& [reason, field, change] : cases) {
    v1::StreamRequest message = Stated(10).message;
    change(message.mutable_step());
    compact_.Send(message);
    ExpectError(compact_.StepError(message.step().batch_id()), reason, field);
  }
}

// If a step's whole rows find no place, all of it is refused, and its compact rows have not run.
TEST_F(SessionCompactRefusal, RefusedStepLeavesCompactRowsAsTheyWere) {
  TestEngine engine = TestEngine::OnFake({.max_step_positions = 4, .max_queued_rows = 1});
  StreamWorker worker(engine.get());
  v1::OpenSequence open = MakeOpen("a", 1, kVocabulary);
  open.mutable_parameters()->set_presence_penalty(0.5f);
  open.mutable_history()->add_tokens(3);
  worker.MustOpen(open);
  for (const char* name : {"b", "c", "d"}) worker.MustOpen(MakeOpen(name, 1, kVocabulary));
  std::mt19937_64 random(95);
  const std::string logits = RandomLogits(kernels::DType::kF32, kVocabulary, &random);
  StepBuilder step(1, kVocabulary);
  step.AddRow("a", 1, 1, logits).set_history_hash(PlainSequence(open).hash());
  for (const char* name : {"b", "c", "d"}) step.AddRow(name, 1, 1, logits);
  const std::optional<CompactChoice> choices[] = {
      CompactChoice{PlainRowParameters(open.parameters()), kVocabulary, kVocabulary}, {}, {}, {}};
  worker.Send(WithCompactRows(step.Build(), choices));
  EXPECT_EQ(worker.StepError(1).reason(), v1::OVERLOADED);
  EXPECT_EQ(engine.observer().totals().compact_rows, 0u);
  StepBuilder again(2, kVocabulary);
  again.AddRow("a", 1, 1, logits).set_history_hash(PlainSequence(open).hash());
  EXPECT_TRUE(worker.Run(WithCompactRows(again.Build(), std::span(choices, 1))).at(0).has_draw());
}

using SessionCompactMemory = SessionMemory;

TEST_F(SessionCompactMemory, PairsInARegionAreSampled) {
  std::mt19937_64 random(96);
  const std::string logits = RandomLogits(kernels::DType::kF32, kMemoryVocabulary, &random);
  StepBuilder step(1000, kMemoryVocabulary);
  step.AddRow("a", 1000, 0, logits);
  const std::optional<CompactChoice> choices[] = {
      CompactChoice{PlainRowParameters({}), kMemoryVocabulary, kMemoryVocabulary}};
  v1::StreamRequest request = WithCompactRows(step.Build(), choices);
  const std::string pairs = request.payloads(0);
  request.clear_payloads();
  region_.Write(3, pairs);
  SetRegion(region_.id, 3, pairs.size(), request.mutable_step()->mutable_logits()->mutable_pairs());
  const v1::RowResult result = worker_.Run(request).at(0);
  ASSERT_TRUE(result.has_draw()) << result.ShortDebugString();
  step.step().set_batch_id(1001);
  EXPECT_EQ(worker_.Run(step.Build()).at(0).draw().token(), result.draw().token());
}

}  // namespace
}  // namespace sortition::service::session_compact_refusal_test
