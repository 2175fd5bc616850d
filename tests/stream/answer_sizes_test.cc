// The sizes of answers: rows that are drawn up to the limits make no message that a transport does not take.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "service/memory/ring.h"
#include "service/wire/step_answers.h"

namespace sortition::service::answer_sizes_test {
namespace {

constexpr uint32_t kVocabulary = (1u << 20) - 1;

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  // Returns a number up to `most`, every third time `most` itself.
  uint32_t UpTo(uint32_t most) {
    return random_() % 3 == 0 ? most : static_cast<uint32_t>(random_() % (uint64_t{most} + 1));
  }
  bool Coin() { return random_() % 2 == 0; }

  std::vector<kernels::TokenBits> Tokens(uint32_t count) {
    std::vector<kernels::TokenBits> tokens;
    for (uint32_t i = 0; i < count; ++i) tokens.push_back({kVocabulary - count + i, 0});
    return tokens;
  }
  kernels::Distribution Distribution() {
    kernels::Distribution distribution;
    distribution.weight_sum = 1;
    distribution.rank = kVocabulary;
    distribution.top = Tokens(UpTo(kernels::kMaxTopLogprobs));
    distribution.requested.resize(UpTo(kMaxTopTokens));
    for (auto& requested : distribution.requested) requested.rank = kVocabulary;
    return distribution;
  }
  kernels::RowOutput Output(uint32_t most_kept) {
    kernels::RowOutput output;
    output.token = kVocabulary - 1;
    output.raw = Distribution();
    output.processed = Distribution();
    output.tempered = Distribution();
    output.kept_tokens = Tokens(UpTo(most_kept));
    output.kept = static_cast<uint32_t>(output.kept_tokens.size());
    return output;
  }

  // Adds the answer of a row of up to `most_positions` positions.
  void AddRow(uint32_t row, uint32_t most_kept, StepAnswers* answers) {
    SequenceSpec spec;
    spec.vocabulary = spec.live_vocabulary = kVocabulary;
    kernels::RowParameters& parameters = spec.parameters;
    parameters.raw_logprob = Coin();
    parameters.processed_logprob = Coin();
    parameters.tempered_logprob = Coin();
    parameters.kept_tokens = Coin();
    parameters.kept_count = Coin();
    RowPlan plan;
    plan.row = row;
    RowResult result;
    const uint32_t kind = UpTo(2);
    if (kind == 0) {
      plan.kind = RowPlan::Kind::kScore;
      plan.scored.resize(1 + UpTo(kMaxScoreTokens - 1), kVocabulary - 1);
      for (size_t i = 0; i < plan.scored.size(); ++i) result.outputs.push_back(Output(most_kept));
    } else if (kind == 1) {
      plan.kind = RowPlan::Kind::kCompare;
      plan.is_tree = Coin();
      for (uint32_t i = UpTo(kMaxDraftTokens); i > 0; --i) result.path.push_back(i);
      result.matched.resize(kMaxDraftTokens, true);
      for (size_t i = 0; i <= result.path.size(); ++i) result.outputs.push_back(Output(most_kept));
    } else {
      plan.kind = RowPlan::Kind::kDraw;
      result.outputs.push_back(Output(kVocabulary));
    }
    google::protobuf::RepeatedPtrField<v1::RowResult> parts;
    EncodeResult(result, plan, spec, {row, 1}, &parts);
    EncodeReceipts(std::string(UpTo(4u << 20), 'r'), &parts);
    RowAnswer answer;
    for (v1::RowResult& part : parts) answer.parts.push_back(std::move(part));
    answers->Add(std::move(answer), row);
  }

  void AddRefusal(uint32_t row, StepAnswers* answers) {
    Refusal refusal{Reason::kRowRequired, "step.rows[0].compact[0]", "", "the compact row does not decide its answer"};
    uint32_t left = kMaxRequiredTokens;
    for (uint32_t i = 0; i < kMaxScoreTokens; ++i) {
      const uint32_t count = UpTo(left);
      left -= count;
      refusal.required.push_back({i, {kernels::RowRequiredReason::kTokens, std::vector<uint32_t>(count, kVocabulary)}});
    }
    answers->Refuse({row, 1}, refusal);
  }

 private:
  std::mt19937_64 random_;
};

TEST(AnswerSizes, NoMessagePassesTheLimit) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Generator generator(seed);
    StepAnswers answers;
    const uint32_t rows = 1 + generator.UpTo(3);
    for (uint32_t row = 0; row < rows; ++row) {
      if (seed % 5 == 4) {
        generator.AddRefusal(row, &answers);
      } else {
        generator.AddRow(row, 8'000, &answers);
      }
    }
    uint32_t answered = 0;
    answers.SendTo(1, [&](v1::StepResults* results, uint32_t ended) {
      v1::StreamResponse response;
      *response.mutable_results() = std::move(*results);
      EXPECT_LE(response.ByteSizeLong(), kMostRingMessageBytes) << "seed " << seed;
      answered += ended;
    });
    EXPECT_EQ(answered, rows);
  }
}

}  // namespace
}  // namespace sortition::service::answer_sizes_test
