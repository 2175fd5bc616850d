// Options that look at a history: each step against their definitions, and long texts against a rebuilt state.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "service/text/text.h"
#include "service/wire/compile_parameters.h"
#include "tests/support/messages.h"
#include "tests/support/plain_history.h"
#include "tests/support/scale.h"

namespace sortition::service::history_state_test {
namespace {

using kernels::LogitEdit;
using testing::Scaled;
using v1::SamplingParameters;

struct Options {
  const char* name;
  const char* parameters;
};

constexpr Options kOptions[] = {
    {"dry", "dry { multiplier: 0.8 }"},
    {"dry_short",
     "dry { multiplier: 5 base: 4 allowed_length: 1 sequence_breakers { tokens: 3 } } frequency_penalty: 0.3"},
    {"dry_window",
     "dry { multiplier: 0.5 window: 70 sequence_breakers { tokens: [1, 2] } sequence_breakers { tokens: 1 }"
     "      sequence_breakers { tokens: [2, 4, 1] } }"
     "repetition_penalty: 1.2 penalty_scope { window: 64 }"},
    {"dry_nested",
     "dry { multiplier: 0.5 sequence_breakers { tokens: [1, 2, 1, 3] } sequence_breakers { tokens: [2, 1] }"
     "      sequence_breakers { tokens: [3, 1, 2, 1] } sequence_breakers { tokens: [1, 1, 2] } }"},
    {"dry_narrow", "dry { multiplier: 0.5 window: 9 }"},
    {"dry_flat", "dry { multiplier: 2 base: 1 allowed_length: 4 }"},
    {"dry_long", "dry { multiplier: 0.01 base: 1.01 }"},
    {"phases",
     "repetition_penalty: 1.2 phases { max_tokens: 3 then: 7 }"
     "phases { begin: [1, 2] end: 3 max_tokens: 6"
     "         parameters { repetition_penalty: 1 frequency_penalty: 0.2 banned_token_ids: 9 } }"
     "phases { begin: 4 end: [5, 4] }"},
    {"ngram", "no_repeat_ngram_size: 3"},
    {"unigram", "no_repeat_ngram_size: 1"},
    {"words_and_stops",
     "bad_words { tokens: [5, 6] } bad_words { tokens: [5, 6, 7] } bad_words { tokens: 8 }"
     "bad_words { tokens: [0, 0, 0] } bad_words { tokens: [9, 6] } stop_token_ids: [11, 2] min_tokens: 50"},
    {"all",
     "dry { multiplier: 1 window: 200 } no_repeat_ngram_size: 4 presence_penalty: -0.5 repetition_penalty: 1.1"
     " banned_token_ids: 4 bad_words { tokens: [1, 2, 1] } stop_token_ids: 0 min_tokens: 400"
     " logit_bias { token: 2 bias: 1 }"},
};

std::shared_ptr<const SequenceSpec> MakeSpec(const SamplingParameters& parameters, uint32_t vocabulary) {
  auto spec = std::make_shared<SequenceSpec>();
  spec->law_version = 1;
  spec->vocabulary = spec->live_vocabulary = vocabulary;
  const auto refusal = CompileParameters(parameters, Limits(), "p", spec.get());
  EXPECT_FALSE(refusal.has_value()) << refusal->field << refusal->message;
  return spec;
}

// A state, its parameters and its expected history.
struct GrowingSequence {
  SamplingParameters parameters;
  std::unique_ptr<Text> state;
  std::vector<uint32_t> history;
  uint32_t prompt = 0;

  void Push(uint32_t token) {
    state->Append(token);
    history.push_back(token);
  }
  // Cuts to `to`, or as deep as possible.
  void Rewrite(uint32_t to, const std::vector<uint32_t>& append, bool revert) {
    to = std::max(to, state->lowest_truncation());
    const Text::Undo undo = state->Rewrite(to, append);
    if (revert) return state->Revert(undo);
    history.resize(to);
    prompt = std::min(prompt, to);
    history.insert(history.end(), append.begin(), append.end());
  }
  uint32_t length() const { return static_cast<uint32_t>(history.size()); }
};

std::vector<LogitEdit> EditsOf(Text* state) {
  std::vector<LogitEdit> edits = *state->LendEdits();
  state->EndLoan();
  return edits;
}

// Drops edits that change nothing: a token that occurred may have one or not.
std::vector<LogitEdit> Effective(std::vector<LogitEdit> edits) {
  std::erase_if(edits, [](const LogitEdit& edit) { return edit == LogitEdit{.token = edit.token}; });
  return edits;
}

class HistoryStateTest : public ::testing::TestWithParam<Options> {};

constexpr uint32_t kVocabulary = 12;

// Appends tokens that repeat earlier ones at all lengths.
void Grow(std::mt19937* random, GrowingSequence* sequence) {
  const uint32_t length = sequence->length();
  if ((*random)() % 6 != 0 || length < 40) return sequence->Push((*random)() % kVocabulary);
  const uint32_t count = (*random)() % 35;
  const uint32_t from = (*random)() % (length - count);
  for (uint32_t i = 0; i < count; ++i) sequence->Push(sequence->history[from + i]);
}

TEST_P(HistoryStateTest, EqualsDefinitionsAcrossCutsAndForks) {
  std::mt19937 random(3);
  const SamplingParameters parameters = testing::ParametersOf(GetParam().parameters);
  const auto spec = MakeSpec(parameters, kVocabulary);
  ASSERT_TRUE(spec->stateful());
  std::vector<uint32_t> prompt(60);
  for (uint32_t& token : prompt) token = random() % kVocabulary;
  std::vector<GrowingSequence> family;
  family.push_back({parameters, Text::Build(spec, prompt, 30, 64), prompt, 30});
  uint64_t changes = 0;
  // Fewer than 200 steps would change nothing under some options.
  const uint64_t steps = std::max<uint64_t>(Scaled(2000), 200);
  for (uint64_t step = 0; step < steps; ++step) {
    GrowingSequence& one = family[random() % family.size()];
    const uint32_t deepest = std::min(one.length() - one.state->lowest_truncation(), 60u);
    if (step % 50 == 20) {
      SamplingParameters other = parameters;
      if (step % 100 == 20) other.mutable_dry()->set_multiplier(3);
      const uint32_t at = one.length() - random() % (deepest + 1);
      auto state = one.state->Fork(MakeSpec(other, kVocabulary), at);
      if (state == nullptr) continue;
      GrowingSequence child{other, std::move(state), one.history, std::min(one.prompt, at)};
      child.history.resize(at);
      family.push_back(std::move(child));
    } else if (step % 5 == 0) {
      std::vector<uint32_t> append(random() % 4);
      for (uint32_t& token : append) token = random() % kVocabulary;
      one.Rewrite(one.length() - random() % (deepest + 1), append, random() % 2 == 0);
    } else {
      Grow(&random, &one);
    }
    for (GrowingSequence& sequence : family) {
      const testing::PlainPlace place =
          testing::PlainPlaceAfter(sequence.parameters, sequence.history, sequence.prompt);
      const testing::PlainPlace found = {sequence.state->phase(), sequence.state->forced_token()};
      ASSERT_EQ(found, place) << "step " << step;
      const SamplingParameters within = testing::PlainWithin(sequence.parameters, place.phase);
      const auto expected = Effective(testing::PlainEdits(within, sequence.history, sequence.prompt));
      ASSERT_EQ(Effective(EditsOf(sequence.state.get())), expected) << "step " << step;
      changes += expected.size();
    }
  }
  EXPECT_GT(changes, 0u);
  EXPECT_GE(family.size(), Scaled(5));
}

INSTANTIATE_TEST_SUITE_P(All, HistoryStateTest, ::testing::ValuesIn(kOptions),
                         [](const auto& info) { return info.param.name; });

// 100,000 tokens of a text that repeats itself, cut and forked at random: the edits equal, byte for byte, the edits of
// a state that is rebuilt from the history.
class LongHistoryTest : public ::testing::TestWithParam<Options> {};

TEST_P(LongHistoryTest, EqualsRebuiltState) {
  constexpr uint32_t kTokens = 100'000;
  constexpr uint32_t kWords = 5000;
  std::mt19937 random(4);
  const SamplingParameters parameters = testing::ParametersOf(GetParam().parameters);
  const auto spec = MakeSpec(parameters, kWords);
  const auto token = [&]() -> uint32_t { return random() % (1 + random() % (1 + random() % kWords)); };
  std::vector<uint32_t> history;
  while (history.size() < kTokens) {
    if (history.size() > 1000 && random() % 50 == 0) {
      const size_t from = random() % (history.size() - 500);
      for (size_t count = random() % 500, i = 0; i < count; ++i) history.push_back(history[from + i]);
    } else {
      history.push_back(token());
    }
  }
  std::vector<GrowingSequence> both;
  both.push_back({parameters, Text::Build(spec, history, 1000, 4096), history, 1000});
  for (uint64_t round = 0; round < Scaled(8); ++round) {
    GrowingSequence& one = both[random() % both.size()];
    for (int step = 0; step < 300; ++step) {
      if (random() % 20 == 0) {
        one.Rewrite(one.length() - random() % 200, {token(), token()}, random() % 2 == 0);
      } else {
        one.Push(random() % 3 == 0 ? token() : one.history[one.length() - 997]);
      }
    }
    one.Rewrite(one.length() - random() % 4000, {}, false);
    const auto rebuilt = Text::Build(spec, one.history, one.prompt, 4096);
    ASSERT_EQ(EditsOf(one.state.get()), EditsOf(rebuilt.get())) << "round " << round;
    ASSERT_EQ(one.state->history_hash(), rebuilt->history_hash());
    ASSERT_EQ(one.state->phase(), rebuilt->phase());
    if (both.size() > 1) continue;
    const uint32_t at = std::max<uint32_t>(one.length() - random() % 50, one.state->lowest_truncation());
    GrowingSequence child{parameters, one.state->Fork(spec, at), one.history, one.prompt};
    ASSERT_NE(child.state, nullptr);
    child.history.resize(at);
    both.push_back(std::move(child));
  }
}

constexpr Options kLongOptions[] = {
    kOptions[0],
    {"dry_window", "dry { multiplier: 0.8 window: 32768 } frequency_penalty: 0.1 penalty_scope { window: 5000 }"},
    {"phases", "frequency_penalty: 0.1 phases { begin: 3 end: 4 parameters { frequency_penalty: 0.7 } }"},
    {"ngram", "no_repeat_ngram_size: 3 repetition_penalty: 1.1"},
};

INSTANTIATE_TEST_SUITE_P(Some, LongHistoryTest, ::testing::ValuesIn(kLongOptions),
                         [](const auto& info) { return info.param.name; });

TEST(HistoryState, ForcedTokensStandAtTheirPosition) {
  const auto spec = MakeSpec(testing::ParametersOf("phases { max_tokens: 2 then: [7, 8] }"), kVocabulary);
  const auto state = Text::Build(spec, std::vector<uint32_t>{1, 2, 3}, 3, 64);
  std::vector<std::optional<uint32_t>> forced;
  for (uint32_t token = 0; token < 6; ++token) {
    forced.push_back(state->forced_token());
    state->Append(token);
  }
  EXPECT_EQ(forced, (std::vector<std::optional<uint32_t>>{{}, {}, 7, 8, {}, {}}));
  state->Rewrite(5, {});
  EXPECT_EQ(state->forced_token(), 7u);
}

// A state keeps the history that its options need, even if kept_history is small. A child that looks further back than
// its parent kept cannot be made.
TEST(HistoryState, KeepsWhatItsOptionsNeed) {
  const auto narrow = MakeSpec(testing::ParametersOf("dry { multiplier: 1 window: 1000 }"), kVocabulary);
  const auto wide = MakeSpec(testing::ParametersOf("dry { multiplier: 1 }"), kVocabulary);
  const auto state = Text::Build(narrow, std::vector<uint32_t>(3000, 1), 0, 64);
  EXPECT_GT(state->lowest_truncation(), 2700u);
  EXPECT_LE(state->lowest_truncation(), 2936u);
  EXPECT_NE(state->Fork(narrow, 2950), nullptr);
  EXPECT_EQ(state->Fork(wide, 3000), nullptr);
  EXPECT_EQ(Text::Build(wide, std::vector<uint32_t>(3000, 1), 0, 64)->lowest_truncation(), 0u);
}

}  // namespace
}  // namespace sortition::service::history_state_test
