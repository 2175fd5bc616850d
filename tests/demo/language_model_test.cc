// The demo's language model: words that join to the text, counts worked out by hand, rows that are distributions.
#include "client/demo/language_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace sortition::demo::language_model_test {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::Pointwise;

std::vector<float> Logarithms(std::vector<double> probabilities) {
  std::vector<float> logarithms;
  for (const double probability : probabilities) logarithms.push_back(static_cast<float>(std::log(probability)));
  return logarithms;
}

TEST(WordsTest, TakeOneSpaceBeforeThem) {
  EXPECT_THAT(Words("I'm 10, \"a\"  b\n"), ElementsAre("I'm", " 10", ",", " \"", "a", "\"", "  ", "b", "\n"));
  EXPECT_THAT(Words(" "), ElementsAre(" "));
  EXPECT_TRUE(Words("").empty());
}

TEST(LanguageModelTest, LogitsEqualCountsWorkedOutByHand) {
  const std::vector<std::string_view> texts = {"a b", "a c"};
  const LanguageModel model(texts);
  ASSERT_EQ(model.size(), 4u);  // the end, "a", " b", " c"
  const auto a = model.Encode("a");
  // Six words follow any, and the uniform distribution counts as one.
  EXPECT_THAT(model.Logits(a, 1), Pointwise(FloatNear(1e-6f), Logarithms({2.25 / 7, 2.25 / 7, 1.25 / 7, 1.25 / 7})));
  // Two words follow "a", and the distribution above counts as one.
  EXPECT_THAT(model.Logits(a, 2),
              Pointwise(FloatNear(1e-6f), Logarithms({2.25 / 21, 2.25 / 21, 8.25 / 21, 8.25 / 21})));
  // No text has " c" before " b".
  EXPECT_EQ(model.Logits(std::vector<uint32_t>{3, 2}), model.Logits(std::vector<uint32_t>{3, 2}, 2));
}

TEST(LanguageModelTest, TalesAreJoinedAgainAndRowsSumToOne) {
  const LanguageModel model(Tales());
  EXPECT_GT(model.size(), 600u);
  for (const std::string_view tale : Tales()) {
    const std::vector<uint32_t> tokens = model.Encode(tale);
    std::string joined;
    for (const uint32_t token : tokens) joined += model.word(token);
    EXPECT_EQ(joined, tale);
    for (const size_t length : {size_t{0}, size_t{1}, tokens.size()}) {
      double sum = 0;
      for (const float logit : model.Logits(std::span(tokens).first(length))) sum += std::exp(logit);
      EXPECT_NEAR(sum, 1, 1e-5);
    }
  }
}

}  // namespace
}  // namespace sortition::demo::language_model_test
