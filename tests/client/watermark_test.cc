// A watermark is detected in marked texts and in no others, and does not change the probabilities.
#include "sortition/watermark.h"

#include <gtest/gtest.h>

#include <random>

#include "kernels/law/watermark.h"
#include "sortition/client.h"
#include "sortition/in_process.h"
#include "sortition/local_sequence.h"
#include "tests/support/scale.h"

namespace sortition::client::watermark_test {
namespace {

constexpr uint32_t kVocabulary = 64;
constexpr uint64_t kKey = 0xfeedfacecafebeef;
// Seeds are fixed. For random seeds each expectation would fail with less than this probability.
constexpr double kFailure = 1e-6;

SequenceOptions Options(bool marked, uint64_t seed) {
  SequenceOptions options;
  options.request_id = "a";
  options.vocabulary_size = kVocabulary;
  options.seed = seed;
  options.prompt = {1, 2, 3};
  options.parameters.set_presence_penalty(0.01f);
  if (marked) options.parameters.mutable_watermark()->set_key(kKey);
  return options;
}

// Draws a text of tokens with about four bits of entropy each.
std::vector<uint32_t> Write(const SequenceOptions& options, size_t length, uint32_t draw_salt = 0) {
  auto sequence = LocalSequence::Open(options);
  EXPECT_TRUE(sequence.ok()) << sequence.status();
  while ((*sequence)->tokens().size() < length) {
    std::mt19937_64 random((*sequence)->tokens().size());
    std::vector<float> logits(kVocabulary);
    for (float& x : logits) x = float(random() % 3000) / 1000;
    EXPECT_TRUE(std::holds_alternative<v1::DrawResult>(
        (*sequence)->Step(v1::DTYPE_F32, {.logits = logits.data(), .draw_salt = draw_salt})));
  }
  return (*sequence)->tokens();
}

TEST(Watermark, FoundInMarkedTextOnly) {
  // A token's score is about 2 on average here, so 300 tokens lie twelve deviations beyond the other hypothesis.
  const WatermarkEvidence marked = DetectWatermark({kKey}, Write(Options(true, 1), 303));
  EXPECT_GT(marked.tokens, 250u);
  EXPECT_LT(marked.p_value, kFailure);
  for (const WatermarkEvidence& other : {DetectWatermark({kKey}, Write(Options(false, 1), 303)),
                                         DetectWatermark({kKey + 1}, Write(Options(true, 1), 303)),
                                         DetectWatermark({kKey, 3}, Write(Options(true, 1), 303))}) {
    EXPECT_GT(other.p_value, kFailure);
    EXPECT_LT(other.p_value, 1 - kFailure);
  }
}

TEST(Watermark, PartOfTextSuffices) {
  const std::vector<uint32_t> text = Write(Options(true, 2), 400);
  EXPECT_LT(DetectWatermark({kKey}, std::span(text).subspan(101, 200)).p_value, kFailure);
  EXPECT_EQ(DetectWatermark({kKey}, std::span(text).first(4)).tokens, 0u);
  EXPECT_EQ(DetectWatermark({kKey}, std::span(text).first(4)).p_value, 1);
}

// p-values of texts without the watermark are uniform, so this many below 1 in 100 have a binomial distribution.
TEST(Watermark, PValuesOfOtherTextsAreUniform) {
  std::mt19937_64 random(3);
  const uint64_t texts = testing::Scaled(20'000);
  uint64_t low = 0;
  for (uint64_t n = 0; n < texts; ++n) {
    std::vector<uint32_t> text(44);
    for (uint32_t& token : text) token = uint32_t(random() % 100'000);
    low += DetectWatermark({kKey}, text).p_value < 0.01;
  }
  const double mean = 0.01 * double(texts);
  EXPECT_NEAR(double(low), mean, 5 * std::sqrt(mean) + 1);
}

TEST(Watermark, RepeatedContextsCountOnce) {
  std::vector<uint32_t> text;
  for (int i = 0; i < 100; ++i) text.insert(text.end(), {1, 2, 3, 4, 5});
  EXPECT_EQ(DetectWatermark({kKey}, text).tokens, 5u);
  // A token after a context that has come before does not count: its draw may be unmarked.
  const std::vector<uint32_t> other = {1, 2, 3, 1, 2, 4, 1, 2, 5};
  EXPECT_EQ(DetectWatermark({kKey, 2}, other).tokens, 5u);
  EXPECT_EQ(DetectWatermark({kKey, 2}, other).score, DetectWatermark({kKey, 2}, std::span(other).first(8)).score);
}

TEST(Watermark, NeitherSeedNorChoiceNorSaltHidesIt) {
  SequenceOptions options = Options(true, 1);
  const std::vector<uint32_t> text = Write(options, 80);
  options.choice_index = 3;
  options.seed = 9;
  EXPECT_EQ(Write(options, 80, 997), text);
  EXPECT_LT(DetectWatermark({kKey}, text).p_value, kFailure);
}

// The watermark does not depend on the seed, the service draws the same tokens, and drafts are verified with its noise.
TEST(Watermark, SameInServiceAndUnderSpeculation) {
  auto client = Client::Connect({.in_process = InProcessEngine()});
  ASSERT_TRUE(client.ok());
  auto sequence = (*client)->Open(Options(true, 77));
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  const std::vector<uint32_t> text = Write(Options(true, 1), 33);
  while ((*sequence)->position() < 30) {
    const uint32_t at = (*sequence)->position();
    std::vector<float> logits;
    for (uint32_t i = at; i < at + 3; ++i) {
      std::mt19937_64 random(i);
      for (uint32_t id = 0; id < kVocabulary; ++id) logits.push_back(float(random() % 3000) / 1000);
    }
    Drafts drafts;
    drafts.tokens = std::span(text).subspan(at, 2);
    Row row{sequence->get(), logits.data()};
    row.drafts = &drafts;
    auto results = (*client)->Step({v1::DTYPE_F32, kVocabulary, {row}});
    ASSERT_TRUE(results.ok());
    const auto* verify = std::get_if<v1::VerifyResult>(&results->front());
    ASSERT_TRUE(verify != nullptr) << Describe(std::get<RowError>(results->front()));
    ASSERT_EQ(verify->accepted(), 2u) << at;
    ASSERT_EQ(verify->positions(2).token(), text[at + 2]) << at;
  }
}

}  // namespace
}  // namespace sortition::client::watermark_test
