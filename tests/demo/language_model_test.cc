// The demo's n-gram model: a true distribution, rows that state it, padding, determinism, and worth over unigrams.
#include "client/demo/language_model.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <limits>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "client/demo/byte_pair.h"
#include "client/demo/corpus.h"
#include "gtest/gtest.h"

namespace sortition::demo {
namespace {

constexpr size_t kRowWidth = 32768;

const BytePair& Vocabulary() {
  static const BytePair vocabulary = BytePair::Learn(CorpusTexts(), 4095);
  return vocabulary;
}

const std::vector<std::vector<uint32_t>>& Texts() {
  static const std::vector<std::vector<uint32_t>> texts = [] {
    std::vector<std::vector<uint32_t>> encoded;
    for (std::string_view text : CorpusTexts()) encoded.push_back(Vocabulary().Encode(text));
    return encoded;
  }();
  return texts;
}

const LanguageModel& Model() {
  static const LanguageModel model = LanguageModel::Train(Texts(), Vocabulary().size());
  return model;
}

// The start of a text, contexts the corpus holds, one it holds only in part, and one of bytes it never uses.
std::vector<std::vector<uint32_t>> Contexts() {
  std::vector<std::vector<uint32_t>> contexts;
  for (std::string_view text : {"", "Once", "Dear Maren,\n", "Take six onions and",
                                "the goat said that the inspector of the", "\x01\x02\xff\xfe\x80"}) {
    contexts.push_back(Vocabulary().Encode(text));
  }
  contexts.push_back({Model().end_of_text()});
  return contexts;
}

std::vector<uint16_t> Row(const LanguageModel& model, std::span<const uint32_t> context, size_t width = kRowWidth) {
  std::vector<uint16_t> row(width);
  model.Logits(context, row);
  return row;
}

double Value(uint16_t bf16) { return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16); }

// exp of the mean negative log-probability of each token of the texts i with i % folds == fold, for each fold, under a
// model trained on all other texts.
double HeldOutPerplexity(int order) {
  constexpr size_t kFolds = 10;
  double surprise = 0;
  size_t tokens = 0;
  for (size_t fold = 0; fold < kFolds; ++fold) {
    std::vector<std::vector<uint32_t>> training;
    for (size_t i = 0; i < Texts().size(); ++i) {
      if (i % kFolds != fold) training.push_back(Texts()[i]);
    }
    const LanguageModel model = LanguageModel::Train(training, Vocabulary().size(), order);
    for (size_t i = fold; i < Texts().size(); i += kFolds) {
      std::vector<uint32_t> text = Texts()[i];
      text.push_back(model.end_of_text());
      for (size_t n = 0; n < text.size(); ++n)
        surprise -= std::log(model.Probability(std::span(text).first(n), text[n]));
      tokens += text.size();
    }
  }
  return std::exp(surprise / static_cast<double>(tokens));
}

TEST(LanguageModelTest, UnigramsEqualCountsWorkedOutByHand) {
  const std::vector<std::vector<uint32_t>> texts = {{0, 1}, {0, 2}};
  const LanguageModel model = LanguageModel::Train(texts, 4, 1);
  ASSERT_EQ(model.end_of_text(), 4u);
  ASSERT_EQ(model.live_vocabulary(), 5u);
  // Six tokens with the two ends of text; 0.1% is shared among the five ids.
  EXPECT_NEAR(model.Probability({}, 0), 0.999 * 2 / 6 + 0.001 / 5, 1e-12);
  EXPECT_NEAR(model.Probability({}, 1), 0.999 * 1 / 6 + 0.001 / 5, 1e-12);
  EXPECT_NEAR(model.Probability({}, 3), 0.001 / 5, 1e-12);
  EXPECT_NEAR(model.Probability({}, 4), 0.999 * 2 / 6 + 0.001 / 5, 1e-12);
}

TEST(LanguageModelTest, BigramsDiscountAndInterpolate) {
  const std::vector<std::vector<uint32_t>> texts = {{0, 1}, {0, 2}};
  const LanguageModel model = LanguageModel::Train(texts, 3, 2);
  // Five distinct bigrams: 0 ends one of them, and so does 1; each text starts with 0.
  const double unigram = 0.999 * 1 / 5 + 0.001 / 4;
  const double backoff = model.Probability({}, 1) / unigram;
  EXPECT_GT(backoff, 0);
  EXPECT_LT(backoff, 0.5);
  EXPECT_NEAR(model.Probability({}, 0), (1 - backoff) + backoff * unigram, 1e-12);
  const std::vector<uint32_t> zero = {0};
  EXPECT_EQ(model.Probability(zero, 1), model.Probability(zero, 2));
  EXPECT_NEAR(model.Probability(zero, 0) / unigram, 2 * backoff, 1e-12);  // two kinds of follower, each discounted
}

TEST(LanguageModelTest, ProbabilitiesArePositiveAndSumToOne) {
  for (int order = 1; order <= LanguageModel::kMaxOrder; ++order) {
    const LanguageModel model = LanguageModel::Train(Texts(), Vocabulary().size(), order);
    for (const std::vector<uint32_t>& context : Contexts()) {
      double sum = 0;
      for (uint32_t token = 0; token < model.live_vocabulary(); ++token) {
        const double probability = model.Probability(context, token);
        ASSERT_GT(probability, 0);
        sum += probability;
      }
      EXPECT_NEAR(sum, 1, 1e-9);
    }
  }
}

TEST(LanguageModelTest, LogitsAreLogprobsPlusAConstant) {
  for (const std::vector<uint32_t>& context : Contexts()) {
    const std::vector<uint16_t> row = Row(Model(), context);
    // bf16 has 8 significant bits, so each logit confines the constant to an interval. They must have a point in
    // common.
    double low = -std::numeric_limits<double>::infinity();
    double high = std::numeric_limits<double>::infinity();
    for (uint32_t token = 0; token < Model().live_vocabulary(); ++token) {
      const double constant = Value(row[token]) - std::log(Model().Probability(context, token));
      const double rounding = std::abs(Value(row[token])) * 0x1p-8 + 1e-6;
      low = std::max(low, constant - rounding);
      high = std::min(high, constant + rounding);
    }
    EXPECT_LE(low, high);
  }
}

TEST(LanguageModelTest, LiveLogitsAreFinitePaddingIsNan) {
  const uint32_t live = Model().live_vocabulary();
  for (size_t width : {size_t{live}, size_t{live} + 1, kRowWidth, size_t{128256}}) {
    const std::vector<uint16_t> row = Row(Model(), Contexts()[2], width);
    for (size_t id = 0; id < width; ++id) {
      if (id < live) {
        ASSERT_TRUE(std::isfinite(Value(row[id]))) << id;
      } else {
        ASSERT_EQ(row[id], kPaddingLogit) << id;
      }
    }
  }
  EXPECT_TRUE(std::isnan(Value(kPaddingLogit)));
}

TEST(LanguageModelTest, SameContextGivesSameBytes) {
  const LanguageModel again = LanguageModel::Train(Texts(), Vocabulary().size());
  for (const std::vector<uint32_t>& context : Contexts()) {
    const std::vector<uint16_t> row = Row(Model(), context);
    EXPECT_EQ(row, Row(again, context));
    std::vector<std::vector<uint16_t>> rows(4);
    std::vector<std::thread> threads;
    for (std::vector<uint16_t>& other : rows) threads.emplace_back([&] { other = Row(Model(), context); });
    for (std::thread& thread : threads) thread.join();
    for (const std::vector<uint16_t>& other : rows) EXPECT_EQ(row, other);
  }
}

TEST(LanguageModelTest, OnlyNewestFourIdsCount) {
  const std::vector<uint32_t> context = Vocabulary().Encode("Once, in a village between the hill and");
  const std::span<const uint32_t> all(context);
  EXPECT_EQ(Row(Model(), all), Row(Model(), all.last(4)));
  EXPECT_NE(Row(Model(), all), Row(Model(), all.last(3)));
}

TEST(LanguageModelTest, ShortContextIsStartOfText) {
  const uint32_t end = Model().end_of_text();
  const uint32_t once = Vocabulary().Encode("Once")[0];
  EXPECT_EQ(Row(Model(), {}), Row(Model(), std::vector<uint32_t>{end, end, end, end}));
  EXPECT_EQ(Row(Model(), std::vector<uint32_t>{once}), Row(Model(), std::vector<uint32_t>{end, end, end, once}));
}

TEST(LanguageModelTest, PredictsUnseenTextBetterThanUnigrams) {
  std::vector<double> perplexity = {0};
  for (int order = 1; order <= LanguageModel::kMaxOrder; ++order) {
    perplexity.push_back(HeldOutPerplexity(order));
    std::cout << "held-out perplexity of order " << order << ": " << perplexity.back() << "\n";
  }
  EXPECT_LT(perplexity[1], Model().live_vocabulary());
  EXPECT_LT(perplexity[2], 0.5 * perplexity[1]);
  EXPECT_LT(perplexity[5], 0.5 * perplexity[1]);
}

TEST(LanguageModelTest, PrintsItsSpeed) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const LanguageModel model = LanguageModel::Train(Texts(), Vocabulary().size());
  const Clock::time_point trained = Clock::now();
  std::vector<uint16_t> row(kRowWidth);
  size_t rows = 0;
  for (const std::vector<uint32_t>& text : Texts()) {
    for (size_t n = 0; n < text.size(); n += 4, ++rows) model.Logits(std::span(text).first(n), row);
  }
  const Clock::time_point done = Clock::now();
  ASSERT_GT(rows, 0u);
  std::cout << "training: " << std::chrono::duration<double, std::milli>(trained - start).count() << " ms; a row of "
            << kRowWidth << ": "
            << std::chrono::duration<double, std::micro>(done - trained).count() / static_cast<double>(rows) << " us\n";
}

TEST(LanguageModelDeathTest, RefusesContractViolations) {
  std::vector<uint16_t> narrow(Model().live_vocabulary() - 1);
  EXPECT_DEATH(Model().Logits({}, narrow), "broken invariant");
  const std::vector<uint32_t> unknown = {Model().live_vocabulary()};
  EXPECT_DEATH(Row(Model(), unknown), "broken invariant");
  EXPECT_DEATH(Model().Probability({}, Model().live_vocabulary()), "broken invariant");
  EXPECT_DEATH(LanguageModel::Train({}, 1), "broken invariant");
  EXPECT_DEATH(LanguageModel::Train(Texts(), 1), "broken invariant");
  EXPECT_DEATH(LanguageModel::Train(Texts(), Vocabulary().size(), 6), "broken invariant");
  EXPECT_DEATH(LanguageModel::Train(Texts(), LanguageModel::kMaxVocabulary + 1), "broken invariant");
}

}  // namespace
}  // namespace sortition::demo
