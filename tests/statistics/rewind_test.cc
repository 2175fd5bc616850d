// Texts from which a banned phrase was taken back, against the distribution that docs/semantics.md states.
#include <gtest/gtest.h>

#include <cstdint>
#include <variant>
#include <vector>

#include "sortition/local_sequence.h"
#include "tests/statistics/chi_square.h"

namespace sortition::testing::rewind_test {
namespace {

constexpr uint32_t kVocabulary = 3;
constexpr uint64_t kTexts = 20'000;

// Counts texts of two tokens by 3 * first + second.
struct TextCounts {
  std::vector<uint64_t> all = std::vector<uint64_t>(kVocabulary * kVocabulary);
  std::vector<uint64_t> rewound = std::vector<uint64_t>(kVocabulary * kVocabulary);
};

// Writes texts in which each token has a third and [0, 1] is banned, one for each seed.
TextCounts CountTexts() {
  client::SequenceOptions options;
  options.request_id = "text";
  options.vocabulary_size = kVocabulary;
  v1::TokenSequence& phrase = *options.parameters.add_banned_phrases();
  phrase.add_tokens(0);
  phrase.add_tokens(1);
  const float logits[kVocabulary] = {};
  TextCounts counts;
  for (uint64_t seed = 0; seed < kTexts; ++seed) {
    options.seed = seed;
    const auto sequence = client::LocalSequence::Open(options);
    if (!sequence.ok()) {
      ADD_FAILURE() << sequence.status();
      break;
    }
    bool is_rewound = false;
    while ((*sequence)->position() < 2) {
      const auto result = (*sequence)->Step(v1::DTYPE_F32, {.logits = logits});
      is_rewound |= std::get<v1::DrawResult>(result).has_rewind();
    }
    const std::vector<uint32_t> text = (*sequence)->tokens();
    ++counts.all[kVocabulary * text[0] + text[1]];
    if (is_rewound) ++counts.rewound[kVocabulary * text[0] + text[1]];
  }
  return counts;
}

TEST(RewindDistribution, TextsAfterARewindAreDrawnWithFreshNoise) {
  const TextCounts counts = CountTexts();
  // One text of nine is taken back. Its first token is then 1 or 2, its second one any, independent of the former
  // token.
  const double stays = 1.0 / 9, redrawn = stays / 6;
  const double other = stays + redrawn;
  ExpectCounts(counts.all, {stays, 0, stays, other, other, other, other, other, other}, 8);
  ExpectCounts(counts.rewound, {0, 0, 0, 1.0 / 6, 1.0 / 6, 1.0 / 6, 1.0 / 6, 1.0 / 6, 1.0 / 6}, 6);
}

}  // namespace
}  // namespace sortition::testing::rewind_test
