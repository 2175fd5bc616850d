// The target's probabilities of verified positions, after any chain: the reference's kept tokens have theirs in double
// precision, and exactly 0 for the others.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "kernels/law/chain.h"
#include "tests/stream/random_samplers.h"
#include "tests/support/judged_rows.h"
#include "tests/support/plain_parameters.h"
#include "tests/support/scale.h"

namespace sortition::service::session_probabilities_test {
namespace {

void SetChain(std::mt19937_64* random, v1::SamplingParameters* p) {
  SetSamplers(random, p);
  switch ((*random)() % 6) {
    case 0:
    case 1:
      p->mutable_mirostat()->set_version(1 + static_cast<uint32_t>((*random)() % 2));
      break;
    case 2:
      p->mutable_adaptive_p()->set_target(Below(random, 1));
      break;
    default:
      break;
  }
}

// Shuffles the names of the samplers that are on; one that keeps a state stays last.
void Reorder(std::mt19937_64* random, v1::SamplingParameters* p) {
  std::vector<law::Sampler> on;
  for (const law::Sampler sampler : law::PresetOrder(law::Preset::kVllm)) {
    if (law::IsOn(testing::PlainSamplers(*p), sampler)) on.push_back(sampler);
  }
  const bool keeps_state = p->has_mirostat() || p->has_adaptive_p();
  std::shuffle(on.begin(), on.end() - (keeps_state ? 1 : 0), *random);
  for (const law::Sampler sampler : on) {
    p->mutable_chain()->mutable_explicit_()->add_samplers(std::string(law::SamplerName(sampler)));
  }
}

// Returns the probabilities of the tokens that the reference keeps, by id.
std::map<uint32_t, double> SoftmaxOf(const kernels::RowOutput& answer, const kernels::RowParameters& parameters) {
  const double temperature = law::ProcessedTemperature(parameters, answer);
  const auto logit = [&](uint32_t bits) { return double(std::bit_cast<float>(bits)) / temperature; };
  std::map<uint32_t, double> probabilities;
  double sum = 0;
  for (const kernels::TokenBits& token : answer.kept_tokens) {
    sum += probabilities[token.token] = std::exp(logit(token.bits) - logit(answer.processed.max_bits));
  }
  for (auto& [token, p] : probabilities) p /= sum;
  return probabilities;
}

class SessionProbabilities : public ::testing::Test {
 protected:
  TestEngine engine_ = TestEngine::OnCpu();
  StreamWorker worker_{engine_.get()};
};

TEST_F(SessionProbabilities, CoverEveryStage) {
  std::mt19937_64 random(84);
  uint64_t zeros = 0;
  const uint64_t rows = std::max<uint64_t>(50, testing::Scaled(600));
  for (uint64_t n = 1; n <= rows; ++n) {
    v1::OpenSequence open = MakeOpen("a", n, kModelVocabulary);
    SetChain(&random, open.mutable_parameters());
    if (n % 2 == 0) Reorder(&random, open.mutable_parameters());
    worker_.MustOpen(open);
    v1::OpenSequence with_kept = open;
    with_kept.mutable_parameters()->mutable_kept_set()->set_tokens(true);
    with_kept.mutable_parameters()->mutable_processed_logprobs();
    const PlainSequence plain(with_kept);
    const kernels::RowParameters parameters = testing::PlainRowParameters(with_kept.parameters());

    const std::vector<std::string> logits = {LogitsAfter({1}, n), LogitsAfter({2}, n)};
    std::vector<kernels::RowOutput> expected = {plain.Answer({.logits = logits[0]}, 0)};
    expected.push_back(plain.Answer({.logits = logits[1], .sampler_state = expected[0].sampler_state}, 1));
    StepBuilder step(n, kModelVocabulary);
    v1::StepRow& row = step.AddRow("a", n, 0, logits[0]);
    step.AddTensorRow(logits[1]);
    if (n % 3 == 0) {
      v1::VerifyTree& tree = *row.mutable_verify_tree();
      tree.set_mode(v1::VERIFY_MODE_COUPLED);
      tree.add_draft_tokens(expected[0].token);
      tree.add_parents(-1);
      tree.set_return_probabilities(true);
    } else {
      v1::VerifyDraft& chain = *row.mutable_verify_draft();
      chain.set_mode(v1::VERIFY_MODE_COUPLED);
      chain.add_draft_tokens(expected[0].token);
      chain.set_return_probabilities(true);
    }
    const std::vector<v1::RowResult> results = worker_.Run(step.Build());
    worker_.LetLeave();
    ASSERT_EQ(results.size(), 1u);
    const v1::VerifyResult& verify = results[0].verify();
    ASSERT_EQ(verify.positions_size(), 2) << results[0].ShortDebugString();
    for (int i = 0; i < 2; ++i) {
      const kernels::RowOutput& answer = expected[static_cast<size_t>(i)];
      EXPECT_FALSE(verify.positions(i).has_processed()) << "not asked for";
      EXPECT_EQ(verify.positions(i).kept_tokens_size(), 0) << "not asked for";
      ASSERT_EQ(verify.positions(i).token(), answer.token);
      const std::map<uint32_t, double> softmax = SoftmaxOf(answer, parameters);
      // Weights are whole numbers, and adaptive-p may leave small ones alone.
      const double tolerance = 1e-6 + double(softmax.size() + 1) / double(answer.processed.weight_sum);
      std::vector<float> probabilities(kModelVocabulary);
      ASSERT_EQ(verify.positions(i).probabilities().size(), probabilities.size() * sizeof(float));
      std::memcpy(probabilities.data(), verify.positions(i).probabilities().data(),
                  probabilities.size() * sizeof(float));
      for (uint32_t id = 0; id < kModelVocabulary; ++id) {
        const auto kept = softmax.find(id);
        if (kept == softmax.end()) {
          ASSERT_EQ(std::bit_cast<uint32_t>(probabilities[id]), 0u);
          ++zeros;
        } else {
          ASSERT_NEAR(probabilities[id], kept->second, tolerance) << open.parameters().ShortDebugString();
        }
      }
      ASSERT_GT(probabilities[answer.token], 0);
    }
  }
  EXPECT_GT(zeros, rows * kModelVocabulary / 8);
}

}  // namespace
}  // namespace sortition::service::session_probabilities_test
