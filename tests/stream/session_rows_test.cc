// Rows of one step: each is judged, masked and answered alone.

#include "absl/strings/str_cat.h"
#include "tests/stream/stateful_stream.h"
#include "tests/support/scale.h"
#include "tests/wire/float_ends.h"

namespace sortition::service::session_rows_test {
namespace {

constexpr uint32_t kVocabulary = 64;

class SessionRows : public ::testing::Test {
 protected:
  // A row with the logit `logit` for `token`, and 0 for others.
  static std::string With(uint32_t token, float logit) {
    std::vector<float> logits(kVocabulary, 0.0f);
    logits[token] = logit;
    return F32Bytes(logits);
  }
  static std::vector<bool> Only(const std::vector<uint32_t>& tokens) {
    std::vector<bool> allowed(kVocabulary);
    for (const uint32_t token : tokens) allowed[token] = true;
    return allowed;
  }
  void OpenAll(int count) {
    for (int i = 0; i < count; ++i) worker_.MustOpen(MakeOpen(Name(i), 1, kVocabulary));
  }
  static std::string Name(int i) { return absl::StrCat("sequence-", i); }

  TestEngine engine_ = TestEngine::OnCpu();
  StreamWorker worker_{engine_.get()};
};

TEST_F(SessionRows, UnusableLogitsFailAlone) {
  OpenAll(7);
  StepBuilder step(1, kVocabulary);
  step.AddRow(Name(0), 1, 0, F32Peak(kVocabulary, 10));
  step.AddRow(Name(1), 1, 0, With(20, kNaN));
  step.AddRow(Name(2), 1, 0, F32Peak(kVocabulary, 12));
  step.AddRow(Name(3), 1, 0, With(30, 65504.0f));
  step.AddRow(Name(4), 1, 0, F32Bytes(std::vector<float>(kVocabulary, -kInfinity)));
  step.AddRow(Name(5), 1, 0, With(63, kInfinity));
  step.AddRow(Name(6), 1, 0, F32Peak(kVocabulary, 16));
  const auto results = worker_.Run(step.Build());
  ASSERT_EQ(results.size(), 7u);
  for (const int row : {0, 2, 6}) EXPECT_EQ(results[row].draw().token(), 10u + static_cast<uint32_t>(row));
  ExpectError(results[1], Reason::kLogitNan, "step.rows[1]");
  EXPECT_NE(results[1].error().message().find("20"), std::string::npos);
  ExpectError(results[3], Reason::kLogitTooLarge, "step.rows[3]");
  ExpectError(results[4], Reason::kNoLiveToken, "step.rows[4]");
  ExpectError(results[5], Reason::kLogitTooLarge, "step.rows[5]");
  EXPECT_EQ(engine_.observer().totals().tokens, 3u);
  EXPECT_EQ(engine_.observer().totals().errors, 4u);
  EXPECT_TRUE(worker_.IsIdle());
}

TEST_F(SessionRows, BiasMayMakeLogitTooLarge) {
  v1::OpenSequence open = MakeOpen("a", 1, kVocabulary);
  open.mutable_parameters()->add_logit_bias()->set_token(5);
  open.mutable_parameters()->mutable_logit_bias(0)->set_bias(60000);
  worker_.MustOpen(open);
  StepBuilder step(1, kVocabulary);
  step.AddRow("a", 1, 0, With(5, 6000));
  ExpectError(worker_.Run(step.Build()).at(0), Reason::kLogitTooLarge, "step.rows[0]");
}

TEST_F(SessionRows, NanPolicyMasks) {
  v1::OpenSequence open = MakeOpen("a", 1, kVocabulary);
  open.mutable_parameters()->set_nan_policy(v1::NAN_POLICY_MASK);
  worker_.MustOpen(open);
  std::vector<float> logits(kVocabulary, kNaN);
  logits[9] = -3;
  StepBuilder step(1, kVocabulary);
  step.AddRow("a", 1, 0, F32Bytes(logits));
  EXPECT_EQ(worker_.Run(step.Build()).at(0).draw().token(), 9u);
}

// Padding holds the largest logits, NaN and infinity, and is drawn from never, nor looked at.
TEST_F(SessionRows, PaddingIsNeverDrawn) {
  constexpr uint32_t kLive = 50;
  v1::OpenSequence open = MakeOpen("a", 1, kVocabulary);
  open.set_live_vocabulary_size(kLive);
  open.mutable_parameters()->mutable_raw_logprobs()->set_top(kVocabulary);
  worker_.MustOpen(open);
  uint64_t batch_id = 0;
  for (const float padding : {1000.0f, kNaN, kInfinity}) {
    std::vector<float> logits(kVocabulary, padding);
    std::fill(logits.begin(), logits.begin() + kLive, 0.0f);
    for (uint32_t position = 0; position < 20; ++position) {
      StepBuilder step(++batch_id, kVocabulary);
      step.AddRow("a", 1, position, F32Bytes(logits));
      const auto results = worker_.Run(step.Build());
      ASSERT_EQ(results.size(), 1u);
      ASSERT_TRUE(results[0].has_draw()) << results[0].ShortDebugString();
      EXPECT_LT(results[0].draw().token(), kLive);
      EXPECT_EQ(results[0].draw().raw().top_tokens_size(), static_cast<int>(kLive));
    }
  }
}

TEST_F(SessionRows, EachRowHasItsOwnMask) {
  OpenAll(4);
  StepBuilder step(1, kVocabulary);
  const std::string peak = F32Peak(kVocabulary, 40);
  step.AddRow(Name(0), 1, 0, peak).mutable_mask()->set_mask_row(step.AddMask(Only({3})));
  step.AddRow(Name(1), 1, 0, peak);
  step.AddRow(Name(2), 1, 0, peak).mutable_mask()->set_mask_row(step.AddMask(Only({63})));
  step.AddRow(Name(3), 1, 0, peak).mutable_mask()->mutable_allowed_tokens()->add_tokens(31);
  const auto results = worker_.Run(step.Build());
  ASSERT_EQ(results.size(), 4u);
  EXPECT_EQ(results[0].draw().token(), 3u);
  EXPECT_EQ(results[1].draw().token(), 40u);
  EXPECT_EQ(results[2].draw().token(), 63u);
  EXPECT_EQ(results[3].draw().token(), 31u);
}

TEST_F(SessionRows, RowsMayShareAMask) {
  OpenAll(2);
  StepBuilder step(1, kVocabulary);
  step.AddMask(Only({1}));
  const uint32_t shared = step.AddMask(Only({5}));
  for (int i = 0; i < 2; ++i) {
    step.AddRow(Name(i), 1, 0, F32Peak(kVocabulary, 40)).mutable_mask()->set_mask_row(shared);
  }
  for (const v1::RowResult& result : worker_.Run(step.Build())) EXPECT_EQ(result.draw().token(), 5u);
}

TEST_F(SessionRows, StepAndSequenceMasksCombine) {
  v1::OpenSequence open = MakeOpen("a", 1, kVocabulary);
  for (const uint32_t token : {5u, 6u, 7u}) open.mutable_parameters()->add_allowed_token_ids(token);
  open.mutable_parameters()->add_banned_token_ids(7);
  worker_.MustOpen(open);

  StepBuilder sparse(1, kVocabulary);
  auto& tokens =
      *sparse.AddRow("a", 1, 0, F32Peak(kVocabulary, 5)).mutable_mask()->mutable_allowed_tokens()->mutable_tokens();
  for (const uint32_t token : {40u, 6u, 7u}) tokens.Add(token);
  EXPECT_EQ(worker_.Run(sparse.Build()).at(0).draw().token(), 6u);

  StepBuilder packed(2, kVocabulary);
  packed.AddRow("a", 1, 0, F32Peak(kVocabulary, 5)).mutable_mask()->set_mask_row(packed.AddMask(Only({40, 6, 7})));
  EXPECT_EQ(worker_.Run(packed.Build()).at(0).draw().token(), 6u);

  StepBuilder disjoint(3, kVocabulary);
  disjoint.AddRow("a", 1, 0, F32Peak(kVocabulary, 5)).mutable_mask()->mutable_allowed_tokens()->add_tokens(40);
  ExpectError(worker_.Run(disjoint.Build()).at(0), Reason::kNoLiveToken, "step.rows[0]");

  StepBuilder nothing(4, kVocabulary);
  nothing.AddRow("a", 1, 0, F32Peak(kVocabulary, 5)).mutable_mask()->mutable_allowed_tokens();
  ExpectError(worker_.Run(nothing.Build()).at(0), Reason::kNoLiveToken, "step.rows[0].mask");
}

TEST_F(SessionRows, SequenceHasOneRowPerStep) {
  OpenAll(2);
  StepBuilder step(1, kVocabulary);
  step.AddRow(Name(0), 1, 0, F32Peak(kVocabulary, 1));
  step.AddRow(Name(1), 1, 0, F32Peak(kVocabulary, 2));
  step.AddRow(Name(0), 2, 1, F32Peak(kVocabulary, 3));
  const auto results = worker_.Run(step.Build());
  ASSERT_EQ(results.size(), 3u);
  ExpectError(results[0], Reason::kDuplicateRow, "step.rows[0].request_id");
  EXPECT_EQ(results[1].draw().token(), 2u);
  ExpectError(results[2], Reason::kDuplicateRow, "step.rows[2].request_id");
}

TEST_F(SessionRows, RefusalsOfSingleRows) {
  OpenAll(2);
  worker_.MustOpen(MakeOpen("wider", 1, kVocabulary + 1));
  StepBuilder step(1, kVocabulary);
  step.AddRow("stranger", 1, 0, F32Peak(kVocabulary, 0));
  step.AddRow("wider", 1, 0, F32Peak(kVocabulary, 1));
  step.AddRow(Name(0), 0, 0, F32Peak(kVocabulary, 2));
  step.AddRow(Name(1), 1, 0, F32Peak(kVocabulary, 3));
  const auto results = worker_.Run(step.Build());
  ASSERT_EQ(results.size(), 4u);
  ExpectError(results[0], Reason::kUnknownSequence, "step.rows[0].request_id");
  ExpectError(results[1], Reason::kVocabularyMismatch, "step.logits.vocabulary_size");
  ExpectError(results[2], Reason::kMissingField, "step.rows[2].step_id");
  EXPECT_EQ(results[3].draw().token(), 3u);
  for (const v1::RowResult& result : results) EXPECT_EQ(result.step_id(), result.row() == 2 ? 0u : 1u);
}

TEST_F(SessionRows, TensorRowsInAnyOrderAndShared) {
  OpenAll(3);
  StepBuilder step(1, kVocabulary);
  step.AddRow(Name(0), 1, 0, F32Peak(kVocabulary, 10)).set_tensor_row(2);
  step.AddRow(Name(1), 1, 0, F32Peak(kVocabulary, 11));
  step.AddRow(Name(2), 1, 0, F32Peak(kVocabulary, 12)).set_tensor_row(1);
  const auto results = worker_.Run(step.Build());
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0].draw().token(), 12u);
  EXPECT_EQ(results[1].draw().token(), 11u);
  EXPECT_EQ(results[2].draw().token(), 11u);
}

TEST_F(SessionRows, PaddedStrides) {
  OpenAll(3);
  StepBuilder step(1, kVocabulary);
  constexpr uint32_t kPadding = 36;
  for (int i = 0; i < 3; ++i) {
    step.AddRow(Name(i), 1, 0, F32Peak(kVocabulary, 20 + static_cast<uint32_t>(i)) + std::string(kPadding, '\xff'));
  }
  step.step().mutable_logits()->set_row_stride_bytes(kVocabulary * 4 + kPadding);
  const auto results = worker_.Run(step.Build());
  ASSERT_EQ(results.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(results[i].draw().token(), 20 + i);
}

// A large batch of sequences with different options, in one step and in many: the neighbours change nothing.
TEST_F(SessionRows, NeighboursChangeNothing) {
  const int rows = static_cast<int>(testing::Scaled(200));
  std::mt19937_64 random(8);
  StepBuilder together(1, kVocabulary);
  std::vector<std::string> expected;
  for (int i = 0; i < rows; ++i) {
    v1::OpenSequence open = MakeOpen(Name(i), 1, kVocabulary);
    open.set_seed(random());
    v1::SamplingParameters& parameters = *open.mutable_parameters();
    if (random() % 2 == 0) parameters.set_temperature(0.1f * static_cast<float>(1 + random() % 30));
    if (random() % 2 == 0) parameters.set_top_k(static_cast<uint32_t>(random() % 70));
    if (random() % 2 == 0) parameters.set_top_p(0.01f * static_cast<float>(1 + random() % 100));
    if (random() % 3 == 0) parameters.mutable_raw_logprobs()->set_top(static_cast<uint32_t>(random() % 5));
    if (random() % 3 == 0) parameters.mutable_processed_logprobs()->set_top(static_cast<uint32_t>(random() % 5));
    worker_.MustOpen(open);
    const auto position = static_cast<uint32_t>(random() % 1000);
    const std::string logits = RandomLogits(kernels::DType::kF32, kVocabulary, &random);
    together.AddRow(Name(i), 1, position, logits);
    expected.push_back(PlainSequence(open).Draw({.logits = logits}, position).SerializeAsString());
  }
  const auto results = worker_.Run(together.Build());
  ASSERT_EQ(results.size(), static_cast<size_t>(rows));
  for (int i = 0; i < rows; ++i) EXPECT_EQ(results[i].draw().SerializeAsString(), expected[i]) << i;
}

}  // namespace
}  // namespace sortition::service::session_rows_test
