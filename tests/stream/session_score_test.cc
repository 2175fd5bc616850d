// Scores and kept sets on a stream: the answers of the law's reference for each position, and nothing changes.

#include <algorithm>
#include <cstring>
#include <limits>

#include "tests/support/judged_rows.h"

namespace sortition::service::session_score_test {
namespace {

using SessionScore = JudgedRows;

TEST_F(SessionScore, ScoresChangeNothing) {
  open_.mutable_parameters()->MergeFrom(
      ParametersOf("presence_penalty: 1 top_k: 10 raw_logprobs {} logprob_token_ids: 3 entropy: true"));
  open_.mutable_history()->set_prompt_length(0);
  worker_.MustOpen(open_);
  PlainSequence plain(open_);
  StepBuilder step(1, kModelVocabulary);
  v1::StepRow& row = step.AddRow("a", 1, 0, Logits(0));
  row.set_history_hash(plain.hash());
  const std::vector<uint32_t> given = {5, 9, 5};
  for (uint64_t i = 1; i < given.size(); ++i) step.AddTensorRow(Logits(i));
  for (const uint32_t token : given) row.mutable_score()->add_tokens(token);
  const v1::RowResult result = RunOne(step);
  ASSERT_TRUE(result.has_score()) << result.ShortDebugString();
  PlainSequence after = plain;
  for (uint32_t i = 0; i < given.size(); ++i) {
    const std::string logits = Logits(i);
    const v1::DrawResult expected =
        plain.Encode(after.Answer({.logits = logits, .task = kernels::RowTask::kScore, .given = given[i]}, i));
    const int at = static_cast<int>(i);
    EXPECT_EQ(result.score().positions(at).raw().SerializeAsString(), expected.raw().SerializeAsString());
    EXPECT_EQ(result.score().positions(at).processed().SerializeAsString(), expected.processed().SerializeAsString());
    EXPECT_EQ(result.score().positions(at).entropy(), expected.entropy());
    EXPECT_EQ(result.score().positions(at).raw().requested_ranks_size(), 1);
    after.Append(given[i]);
  }
  // The sequence stands where it stood.
  StepBuilder draw(2, kModelVocabulary);
  draw.AddRow("a", 2, 0, Logits(0)).set_history_hash(plain.hash());
  const std::string logits = Logits(0);
  EXPECT_EQ(RunOne(draw).draw().token(), plain.Draw({.logits = logits}).token());
}

TEST_F(SessionScore, FilteredTokenScoresMinusInfinity) {
  open_.mutable_parameters()->set_top_k(1);
  open_.mutable_parameters()->mutable_raw_logprobs();
  worker_.MustOpen(open_);
  StepBuilder step(1, kModelVocabulary);
  step.AddRow("a", 1, 0, F32Bytes(std::vector<float>(kModelVocabulary))).mutable_score()->add_tokens(1);
  const v1::ScoreResult score = RunOne(step).score();
  EXPECT_EQ(score.positions(0).processed().logprob(), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(score.positions(0).processed().rank(), 0u);
  EXPECT_EQ(score.positions(0).raw().rank(), 2u);
}

// A thought's end that a budget forces has the same logprob as in its draw.
TEST_F(SessionScore, ForcedTokenIsCertainAndOthersAreImpossible) {
  open_.mutable_parameters()->MergeFrom(
      ParametersOf("raw_logprobs {} banned_token_ids: 2 phases { begin: 1 max_tokens: 0 then: 2 }"));
  open_.mutable_history()->add_tokens(1);
  worker_.MustOpen(open_);
  const PlainSequence plain(open_);
  for (const uint32_t given : {2u, 3u}) {
    StepBuilder step(given, kModelVocabulary);
    v1::StepRow& row = step.AddRow("a", given, 1, F32Bytes(std::vector<float>(kModelVocabulary)));
    row.set_history_hash(plain.hash());
    row.mutable_score()->add_tokens(given);
    const v1::ScoreResult score = RunOne(step).score();
    ASSERT_EQ(score.positions_size(), 1);
    EXPECT_EQ(score.positions(0).processed().logprob(), given == 2 ? 0 : -std::numeric_limits<float>::infinity());
    EXPECT_EQ(score.positions(0).raw().rank(), given + 1);
    EXPECT_EQ(score.positions(0).phase(), 1u);
  }
}

// Answers larger than a message come in pieces; filtered tokens have the probability 0 exactly.
TEST_F(SessionScore, KeptSetsAndProbabilitiesArriveInPieces) {
  constexpr uint32_t kLarge = 150'000;
  v1::OpenSequence open = MakeOpen("large", 1, kLarge);
  open.mutable_parameters()->mutable_kept_set()->set_tokens(true);
  open.mutable_parameters()->mutable_kept_set()->set_count(true);
  open.mutable_parameters()->set_top_k(140'000);
  worker_.MustOpen(open);
  std::vector<float> logits(kLarge);
  for (uint32_t id = 0; id < kLarge; ++id) logits[id] = float(id % 1000) / 500;
  StepBuilder step(1, kLarge);
  step.AddRow("large", 1, 0, F32Bytes(logits));
  worker_.Send(step.Build());
  v1::DrawResult draw;
  int pieces = 0;
  do {
    const auto response = worker_.Await([](const v1::StreamResponse& message) { return message.has_results(); });
    ASSERT_TRUE(response.has_value());
    ASSERT_LT(response->ByteSizeLong(), 3u << 20);
    for (const v1::RowResult& row : response->results().rows()) {
      draw.clear_continues();
      draw.MergeFrom(row.draw());
      ++pieces;
    }
  } while (draw.continues());
  EXPECT_EQ(pieces, 3);
  EXPECT_EQ(draw.kept_count(), 140'000u);
  ASSERT_EQ(draw.kept_tokens_size(), 140'000);
  EXPECT_TRUE(std::is_sorted(draw.kept_tokens().begin(), draw.kept_tokens().end()));
  EXPECT_TRUE(worker_.IsIdle()) << "a row in pieces counts once";

  StepBuilder verify_step(2, kLarge);
  v1::StepRow& row = verify_step.AddRow("large", 2, 0, F32Bytes(logits));
  verify_step.AddTensorRow(F32Bytes(logits));
  row.mutable_verify_draft()->add_draft_tokens(draw.token());
  row.mutable_verify_draft()->set_mode(v1::VERIFY_MODE_COUPLED);
  row.mutable_verify_draft()->set_return_probabilities(true);
  const std::vector<v1::RowResult> results = worker_.Run(verify_step.Build());
  ASSERT_EQ(results.size(), 1u);
  const v1::VerifyResult& verify = results[0].verify();
  EXPECT_EQ(verify.accepted(), 1u);
  ASSERT_EQ(verify.positions_size(), 2);
  std::vector<std::vector<float>> probabilities(2, std::vector<float>(kLarge, -1));
  for (size_t i = 0; i < 2; ++i) {
    const std::string& bytes = verify.positions(static_cast<int>(i)).probabilities();
    ASSERT_EQ(bytes.size(), kLarge * sizeof(float));
    std::memcpy(probabilities[i].data(), bytes.data(), bytes.size());
  }
  for (const std::vector<float>& row_probabilities : probabilities) {
    double sum = 0;
    uint32_t zeros = 0;
    for (const float p : row_probabilities) {
      ASSERT_GE(p, 0);
      sum += p;
      zeros += p == 0;
    }
    EXPECT_NEAR(sum, 1, 1e-4);
    EXPECT_EQ(zeros, kLarge - 140'000);
  }
}

}  // namespace
}  // namespace sortition::service::session_score_test
