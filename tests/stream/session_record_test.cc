// The record of a draw on a stream: the tempered distribution and the kept tokens' mass in it.

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "tests/stream/compact_fixture.h"
#include "tests/support/judged_rows.h"

namespace sortition::service::session_record_test {
namespace {

constexpr const char* kRecord = " tempered_logprobs { top: 3 } kept_log_mass: true processed_logprobs {}";

class SessionRecord : public JudgedRows {
 protected:
  // Opens a sequence "a" with these parameters and the record, in place of the one before.
  void Open(const std::string& parameters) {
    open_.set_epoch(++epoch_);
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(parameters + kRecord, open_.mutable_parameters()));
    open_.clear_history();
    const auto& p = open_.parameters();
    const bool counts = p.has_repetition_penalty() || p.has_frequency_penalty() || p.has_presence_penalty();
    for (const uint32_t token : {5u, 6u, 5u, 7u}) {
      if (counts) open_.mutable_history()->add_tokens(token);
    }
    if (counts) open_.mutable_history()->set_prompt_length(2);
    worker_.MustOpen(open_);
  }

  uint64_t epoch_ = 0;
};

constexpr const char* kOptions[] = {
    "top_p: 0.8",
    "temperature: 0.7 min_p: 0.05",
    "temperature: 1.4 top_k: 7",
    "temperature: 0",
    "temperature: 0.9 typical_p: 0.6",
    "temperature: 0.8 repetition_penalty: 1.3 frequency_penalty: 0.4 presence_penalty: 0.2 top_p: 0.9",
    "logit_bias { token: 3 bias: 4 } logit_bias { token: 9 bias: -30 } banned_token_ids: [1, 2] top_k: 5",
    "allowed_token_ids: [0, 4, 8, 12, 16, 20, 24, 28] top_p: 0.7",
    "temperature: 0.8 top_k: 20 top_p: 0.9 min_p: 0.02 chain { preset: PRESET_LLAMA_CPP }",
    "xtc { probability: 1 threshold: 0.05 } temperature: 0.9",
    "dynamic_temperature { range: 0.5 } top_p: 0.9",
    "quadratic_smoothing { factor: 0.3 } top_k: 9",
    "mirostat { version: 2 tau: 2 }",
    "adaptive_p { target: 0.3 }",
    "logprob_token_ids: [7, 3, 2] top_k: 4",
};

TEST_F(SessionRecord, DrawsEqualReference) {
  for (const char* const options : kOptions) {
    ASSERT_NO_FATAL_FAILURE(Open(options));
    const PlainSequence plain(open_);
    for (uint32_t salt = 0; salt < 6; ++salt) {
      StepBuilder step(epoch_ * 10 + salt + 1, kModelVocabulary);
      v1::StepRow& row = step.AddRow("a", salt + 1, plain.position(), Logits(salt));
      row.set_draw_salt(salt);
      const std::string logits = Logits(salt);
      PlainSequence::Row expected_row{.logits = logits, .draw_salt = salt};
      if (salt % 2 == 1) {
        expected_row.mask.assign(kModelVocabulary, true);
        for (uint32_t id = 0; id < kModelVocabulary; id += 3) expected_row.mask[id] = false;
        row.mutable_mask()->set_mask_row(step.AddMask(expected_row.mask));
      }
      // Every row is the first one after the same history.
      if (open_.has_history()) {
        row.set_history_hash(plain.hash());
        if (salt > 0) row.set_truncate_to(plain.position());
      }
      const v1::DrawResult draw = RunOne(step).draw();
      const v1::DrawResult expected = plain.Draw(expected_row);
      ASSERT_TRUE(draw.has_tempered() && draw.has_kept_log_mass()) << options;
      EXPECT_EQ(draw.token(), expected.token()) << options;
      EXPECT_EQ(draw.tempered().SerializeAsString(), expected.tempered().SerializeAsString()) << options;
      EXPECT_EQ(draw.kept_log_mass(), expected.kept_log_mass()) << options;
      EXPECT_EQ(draw.tempered().top_tokens_size(), 3) << options;
      EXPECT_LE(draw.kept_log_mass(), 0) << options;
    }
  }
}

// Filters leave a token the share that it has of the kept mass.
TEST_F(SessionRecord, MassIsTheLogprobsDifference) {
  for (const char* const options : {"top_p: 0.7", "temperature: 0.6 top_k: 6", "temperature: 1.2 min_p: 0.1"}) {
    ASSERT_NO_FATAL_FAILURE(Open(options));
    for (uint64_t step_id = 1; step_id <= 8; ++step_id) {
      StepBuilder step(epoch_ * 100 + step_id, kModelVocabulary);
      step.AddRow("a", step_id, 0, Logits(step_id));
      const v1::DrawResult draw = RunOne(step).draw();
      EXPECT_NEAR(draw.tempered().logprob() - draw.processed().logprob(), draw.kept_log_mass(), 1e-6) << options;
      EXPECT_LT(draw.kept_log_mass(), 0) << options;
    }
  }
}

TEST_F(SessionRecord, ScoresHaveItAtEveryPosition) {
  ASSERT_NO_FATAL_FAILURE(Open("temperature: 0.8 top_k: 3"));
  const PlainSequence plain(open_);
  StepBuilder step(1, kModelVocabulary);
  v1::Score& score = *step.AddRow("a", 1, 0, Logits(0)).mutable_score();
  const std::vector<uint32_t> given = {5, 9, 5, 30};
  for (uint64_t i = 1; i < given.size(); ++i) step.AddTensorRow(Logits(i));
  score.mutable_tokens()->Assign(given.begin(), given.end());
  const v1::ScoreResult result = RunOne(step).score();
  ASSERT_EQ(result.positions_size(), 4);
  int filtered = 0;
  for (uint32_t i = 0; i < given.size(); ++i) {
    const std::string logits = Logits(i);
    const v1::DrawResult expected =
        plain.Encode(plain.Answer({.logits = logits, .task = kernels::RowTask::kScore, .given = given[i]}, i));
    const v1::Position& position = result.positions(static_cast<int>(i));
    EXPECT_EQ(position.tempered().SerializeAsString(), expected.tempered().SerializeAsString());
    EXPECT_EQ(position.kept_log_mass(), expected.kept_log_mass());
    EXPECT_TRUE(std::isfinite(position.tempered().logprob()));
    filtered += position.processed().rank() == 0;
  }
  EXPECT_GT(filtered, 0) << "a token that was filtered out has a tempered logprob all the same";
}

TEST_F(SessionRecord, DraftsHaveItAtEveryPosition) {
  ASSERT_NO_FATAL_FAILURE(Open("temperature: 0.8 top_p: 0.9"));
  const PlainSequence plain(open_);
  std::vector<uint32_t> drawn;
  for (uint32_t i = 0; i < 3; ++i) {
    const std::string logits = Logits(i);
    drawn.push_back(plain.Draw({.logits = logits}, i).token());
  }
  for (const auto mode : {v1::VERIFY_MODE_COUPLED, v1::VERIFY_MODE_REJECTION}) {
    StepBuilder step(static_cast<uint64_t>(mode) + 1, kModelVocabulary);
    v1::VerifyDraft& verify = *step.AddRow("a", static_cast<uint64_t>(mode) + 1, 0, Logits(0)).mutable_verify_draft();
    verify.set_mode(mode);
    verify.mutable_draft_tokens()->Assign(drawn.begin(), drawn.end() - 1);
    for (uint64_t i = 1; i < drawn.size(); ++i) step.AddTensorRow(Logits(i));
    const v1::VerifyResult result = RunOne(step).verify();
    ASSERT_GE(result.positions_size(), 1);
    if (mode == v1::VERIFY_MODE_COUPLED) {
      EXPECT_EQ(result.positions_size(), 3);
    }
    for (int i = 0; i < result.positions_size(); ++i) {
      const std::string logits = Logits(static_cast<uint64_t>(i));
      const uint32_t token = result.positions(i).token();
      const v1::DrawResult expected = plain.Encode(
          plain.Answer({.logits = logits, .task = kernels::RowTask::kScore, .given = token}, static_cast<uint32_t>(i)));
      EXPECT_EQ(result.positions(i).tempered().SerializeAsString(), expected.tempered().SerializeAsString());
      EXPECT_EQ(result.positions(i).kept_log_mass(), expected.kept_log_mass());
    }
  }
}

TEST_F(SessionRecord, IdsNeedOneKindOfLogprobs) {
  open_.clear_parameters();
  open_.mutable_parameters()->set_kept_log_mass(true);
  open_.mutable_parameters()->add_logprob_token_ids(3);
  const v1::SequenceOpened refused = worker_.Open(open_);
  EXPECT_EQ(refused.error().reason(), v1::CONTRADICTION);
  EXPECT_EQ(refused.error().field(), "open.parameters.logprob_token_ids");
  open_.mutable_parameters()->mutable_tempered_logprobs()->set_top(1001);
  EXPECT_EQ(worker_.Open(open_).error().field(), "open.parameters.tempered_logprobs.top");
  open_.mutable_parameters()->mutable_tempered_logprobs()->set_top(0);
  worker_.MustOpen(open_);
}

class CompactRecord : public CompactFixture {
 protected:
  // Draws with a compact row of the first 20 tokens and the sums that are given.
  v1::RowResult Draw(bool has_sum) {
    std::mt19937_64 random(5);
    StepBuilder step(1, 1500);
    step.AddRow("a", ++step_id_, 0, RandomLogits(kernels::DType::kF32, 1500, &random));
    const std::optional<CompactChoice> choices[] = {
        CompactChoice{PlainRowParameters(open_.parameters()), 1500, 20, {}, false, has_sum}};
    return RunOne(WithCompactRows(step.Build(), choices));
  }

  v1::OpenSequence open_ = MakeOpen("a", 1, 1500);
  uint64_t step_id_ = 0;
};

TEST_F(CompactRecord, RowWithoutItsSumIsRequired) {
  v1::SamplingParameters& p = *open_.mutable_parameters();
  p.set_temperature(0.8f);
  p.set_top_k(5);
  p.mutable_tempered_logprobs()->set_top(4);
  p.set_kept_log_mass(true);
  compact_.MustOpen(open_);
  const v1::RowResult refused = Draw(false);
  ExpectError(refused, Reason::kRowRequired, "step.rows[0].compact[0]");
  ASSERT_EQ(refused.error().required_size(), 1);
  EXPECT_EQ(refused.error().required(0).cause(), v1::RequiredLogits::CAUSE_SUMS);
  const v1::RowResult drawn = Draw(true);
  ASSERT_TRUE(drawn.has_draw()) << drawn.ShortDebugString();
  std::mt19937_64 random(5);
  const std::string logits = RandomLogits(kernels::DType::kF32, 1500, &random);
  const v1::DrawResult expected = PlainSequence(open_).Draw({.logits = logits});
  EXPECT_EQ(drawn.draw().tempered().SerializeAsString(), expected.tempered().SerializeAsString());
  EXPECT_EQ(drawn.draw().kept_log_mass(), expected.kept_log_mass());
}

TEST_F(CompactRecord, MoreAlternativesThanListedAreRequired) {
  v1::SamplingParameters& p = *open_.mutable_parameters();
  p.set_top_k(5);
  p.mutable_tempered_logprobs()->set_top(21);
  compact_.MustOpen(open_);
  const v1::RowResult refused = Draw(true);
  ExpectError(refused, Reason::kRowRequired, "step.rows[0].compact[0]");
  EXPECT_EQ(refused.error().required(0).cause(), v1::RequiredLogits::CAUSE_ROW);
}

}  // namespace
}  // namespace sortition::service::session_record_test
