// A text in this process, whose rows may be left by an exception.
#include "client/local/local_text.h"

#include <gtest/gtest.h>

#include <variant>
#include <vector>

namespace sortition::client::local_text_test {
namespace {

TEST(LocalTextTest, ADrawTakesNothingFromALeftRow) {
  constexpr uint32_t kVocabulary = 8;
  SequenceOptions options;
  options.request_id = "r";
  options.vocabulary_size = kVocabulary;
  options.seed = 7;
  options.parameters.set_temperature(0);
  const std::vector<float> logits = {0, 0, 9, 0, 0, 0, 0, 0};
  Row plain;
  plain.logits = logits.data();
  const uint32_t allowed = 1u << 5;
  Row masked = plain;
  masked.allowed_bits = &allowed;
  const std::vector<uint32_t> scored = {3};
  Row scoring = plain;
  scoring.scored = scored;
  Drafts drafts;
  drafts.tokens = scored;
  const std::vector<float> two_rows(2 * kVocabulary);
  Row verifying;
  verifying.logits = two_rows.data();
  verifying.drafts = &drafts;
  for (const float penalty : {0.0f, 0.5f}) {  // without a history and with one
    options.parameters.set_frequency_penalty(penalty);
    for (const Row& left : {masked, scoring, verifying}) {
      auto text = LocalText::Open(options);
      ASSERT_TRUE(text.ok()) << text.status();
      // As an exception between Begin and End leaves it.
      ASSERT_TRUE(std::holds_alternative<LocalText::Requests>((*text)->Begin(v1::DTYPE_F32, left)));
      const RowResult result = (*text)->Step(v1::DTYPE_F32, plain);
      const auto* const draw = std::get_if<v1::DrawResult>(&result);
      ASSERT_NE(draw, nullptr);
      EXPECT_EQ(draw->token(), 2u);
      EXPECT_EQ((*text)->position(), 1u);
    }
  }
}

}  // namespace
}  // namespace sortition::client::local_text_test
