// Incremental history and penalties against a state rebuilt from the whole history, byte for byte.
#include "service/text/text.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "kernels/law/parameters.h"
#include "service/text/history/history_hash.h"

namespace sortition::service::text_test {
namespace {

using kernels::LogitEdit;

constexpr uint32_t kVocabulary = 1000;

struct Penalties {
  float repetition = 1;
  float frequency = 0;
  float presence = 0;
  PenaltyScope scope = {};
};

std::shared_ptr<SequenceSpec> Spec(float repetition, float frequency, float presence, PenaltyScope scope = {}) {
  auto spec = std::make_shared<SequenceSpec>();
  spec->law_version = 1;
  spec->seed = 7;
  spec->vocabulary = spec->live_vocabulary = kVocabulary;
  spec->repetition_penalty = repetition;
  spec->frequency_penalty = frequency;
  spec->presence_penalty = presence;
  spec->history.scope = scope;
  spec->listed_edits = {{.token = 3, .bias = law::CanonicalBits(1.5f)},
                        {.token = 5, .flags = LogitEdit::kBanned},
                        {.token = 900, .flags = LogitEdit::kBanned, .bias = law::CanonicalBits(-2.0f)}};
  return spec;
}

// Returns the edits of a row, computed from the definition of the penalties without code of Text.
std::vector<LogitEdit> Expected(const SequenceSpec& spec, const std::vector<uint32_t>& history,
                                uint32_t prompt_length) {
  std::map<uint32_t, LogitEdit> edits;
  for (const LogitEdit& edit : spec.listed_edits) edits[edit.token] = edit;
  std::map<uint32_t, uint32_t> frequent;
  const PenaltyScope& scope = spec.history.scope;
  for (size_t i = 0; i < history.size(); ++i) {
    const bool prompt = i < prompt_length;
    if (prompt && i < scope.ignored_prefix) continue;
    if (scope.window != 0 && i + scope.window < history.size()) continue;
    LogitEdit& edit = edits[history[i]];
    edit.token = history[i];
    if (spec.repetition_penalty != 1 && (!prompt || scope.repetition_counts_prompt)) {
      edit.flags |= LogitEdit::kRepeated;
    }
    if (!prompt || scope.frequency_counts_prompt) ++frequent[history[i]];
  }
  if (spec.frequency_penalty != 0 || spec.presence_penalty != 0) {
    for (const auto& [token, count] : frequent) {
      edits[token].penalty = law::PenaltyBits(spec.frequency_penalty, spec.presence_penalty, count);
    }
  }
  std::vector<LogitEdit> sorted;
  for (const auto& [token, edit] : edits) sorted.push_back(edit);
  return sorted;
}

uint64_t ExpectedHash(const SequenceSpec& spec, const std::vector<uint32_t>& history, uint32_t prompt_length) {
  uint64_t token_hash = kEmptyHash;
  for (uint32_t token : history) token_hash = ExtendTokenHash(token_hash, token);
  return HistoryHash(token_hash, prompt_length, HistoryDigest(spec.Identity()));
}

// A history that repeats itself as text does.
uint32_t NextToken(std::mt19937& random) { return random() % (random() % 3 == 0 ? kVocabulary : 40); }

std::vector<uint32_t> Tokens(std::mt19937& random, size_t count) {
  std::vector<uint32_t> tokens(count);
  for (uint32_t& token : tokens) token = NextToken(random);
  return tokens;
}

// A state and its expected history.
struct Pair {
  std::unique_ptr<Text> state;
  std::vector<uint32_t> history;
  uint32_t prompt = 0;

  void Check() const {
    ASSERT_EQ(state->position(), history.size());
    ASSERT_EQ(state->prompt_length(), prompt);
    ASSERT_EQ(state->history_hash(), ExpectedHash(state->spec(), history, prompt));
    ASSERT_EQ(*state->LendEdits(), Expected(state->spec(), history, prompt));
    state->EndLoan();
  }
  void Append(uint32_t token) {
    state->Append(token);
    history.push_back(token);
  }
  // Cuts and appends; reverts it half of the time.
  void Rewrite(std::mt19937& random, uint32_t to, const std::vector<uint32_t>& append) {
    const Text::Undo undo = state->Rewrite(to, append);
    if (random() % 2 == 0) {
      state->Revert(undo);
      return;
    }
    history.resize(to);
    prompt = std::min(prompt, to);
    history.insert(history.end(), append.begin(), append.end());
  }
};

class SequenceStateTest : public ::testing::TestWithParam<Penalties> {
 protected:
  Pair Build(std::mt19937& random, size_t tokens, uint32_t prompt, uint32_t kept) {
    const std::vector<uint32_t> history = Tokens(random, tokens);
    return {Text::Build(spec_, history, prompt, kept), history, prompt};
  }
  std::shared_ptr<SequenceSpec> spec_ =
      Spec(GetParam().repetition, GetParam().frequency, GetParam().presence, GetParam().scope);
};

TEST_P(SequenceStateTest, ThousandStepsWithCutsEqualRebuiltState) {
  std::mt19937 random(11);
  Pair pair = Build(random, 150, 100, 4096);
  for (int step = 0; step < 1000; ++step) {
    if (random() % 5 == 0) {
      const uint32_t length = static_cast<uint32_t>(pair.history.size());
      pair.Rewrite(random, length - random() % std::min(length, 120u), Tokens(random, random() % 4));
    } else {
      pair.Append(NextToken(random));
    }
    ASSERT_NO_FATAL_FAILURE(pair.Check()) << "step " << step;
  }
  EXPECT_LT(pair.prompt, 100u) << "no cut went into the prompt";
}

TEST_P(SequenceStateTest, LaterChangesSpareLentSnapshots) {
  std::mt19937 random(1);
  Pair pair = Build(random, 3, 3, 100);
  const auto before = pair.state->LendEdits();
  const std::vector<LogitEdit> copy = *before;
  pair.Append(1);
  pair.Append(77);
  pair.state->Rewrite(4, std::vector<uint32_t>{5, 6});
  EXPECT_EQ(*before, copy);
}

TEST_P(SequenceStateTest, ReturnedSnapshotCostsNoCopy) {
  std::mt19937 random(1);
  Pair pair = Build(random, 3, 3, 100);
  const auto* lent = pair.state->LendEdits().get();
  pair.state->EndLoan();
  pair.Append(77);
  EXPECT_EQ(pair.state->LendEdits().get(), lent);
  pair.state->LeaveLoan();
  pair.Append(78);
  EXPECT_NE(pair.state->LendEdits().get(), lent);
}

// Parent, child and grandchild continue independently, under other seeds, and one under other penalties.
TEST_P(SequenceStateTest, ForksEqualTheirOwnHistories) {
  std::mt19937 random(5);
  std::vector<Pair> family;
  family.push_back(Build(random, 300, 100, 512));
  for (int step = 0; step < 600; ++step) {
    Pair& one = family[random() % family.size()];
    if (step % 60 == 30) {
      auto spec = std::make_shared<SequenceSpec>(*spec_);
      spec->choice_index = static_cast<uint32_t>(step);
      if (step % 120 == 30) spec->presence_penalty += 0.5f;
      const uint32_t at =
          static_cast<uint32_t>(one.history.size() - random() % std::min<size_t>(one.history.size(), 200));
      if (at < one.state->lowest_truncation()) continue;
      Pair child{one.state->Fork(spec, at), one.history, std::min(one.prompt, at)};
      child.history.resize(at);
      family.push_back(std::move(child));
    } else if (step % 7 == 0) {
      const auto length = static_cast<uint32_t>(one.history.size());
      one.Rewrite(random, std::max<uint32_t>(length - random() % std::min(length, 20u), one.state->lowest_truncation()),
                  Tokens(random, random() % 4));
    } else {
      one.Append(NextToken(random));
    }
    for (const Pair& pair : family) ASSERT_NO_FATAL_FAILURE(pair.Check()) << "step " << step;
  }
  EXPECT_GE(family.size(), 8u);
}

TEST_P(SequenceStateTest, PiecesAddUpToTheWhole) {
  std::mt19937 random(8);
  const std::vector<uint32_t> history = Tokens(random, 1000);
  for (const uint32_t prompt : {0u, 1u, 64u, 333u, 1000u}) {
    Text::Builder builder(spec_, prompt, 128);
    std::span<const uint32_t> rest = history;
    while (!rest.empty()) {
      const size_t piece = std::min<size_t>(rest.size(), random() % 100);
      builder.Add(rest.first(piece));
      rest = rest.subspan(piece);
    }
    // The options of the last piece hold, which may penalise otherwise.
    const auto last = std::make_shared<SequenceSpec>(*spec_);
    last->frequency_penalty += 0.5f;
    Pair pair{builder.Finish(last), history, prompt};
    ASSERT_NO_FATAL_FAILURE(pair.Check());
    for (int i = 0; i < 100; ++i) pair.Append(NextToken(random));
    ASSERT_NO_FATAL_FAILURE(pair.Check());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Penalties, SequenceStateTest,
    ::testing::Values(
        Penalties{1.3f, 0.0f, 0.0f}, Penalties{1.0f, 0.4f, 0.0f}, Penalties{1.0f, 0.0f, -0.7f},
        Penalties{0.8f, 0.1f, 0.2f}, Penalties{1.1f, 0.5f, 0.0f, {.window = 64, .frequency_counts_prompt = true}},
        Penalties{1.2f, 0.0f, 0.3f, {.ignored_prefix = 70}},
        Penalties{1.1f, 0.1f, 0.0f, {.window = 33, .ignored_prefix = 90, .frequency_counts_prompt = true}},
        Penalties{1.4f, 0.2f, 0.0f, {.repetition_counts_prompt = false, .frequency_counts_prompt = true}}));

TEST(Text, KeepsPromisedHistoryAndLittleMore) {
  const auto spec = Spec(1.2f, 0.1f, 0);
  Pair pair{Text::Build(spec, {}, 0, 256), {}, 0};
  std::mt19937 random(3);
  for (int i = 0; i < 20'000; ++i) {
    pair.Append(NextToken(random));
    ASSERT_LE(pair.state->lowest_truncation(), std::max(0, i + 1 - 256));
    ASSERT_GE(pair.state->lowest_truncation() + 256 + 128, static_cast<uint32_t>(i + 1));
  }
  EXPECT_LT(pair.state->bytes(), 64u << 10);
  // Truncating as deep as promised still gives the right hash and counts.
  pair.state->Rewrite(20'000 - 256, {});
  pair.history.resize(20'000 - 256);
  ASSERT_NO_FATAL_FAILURE(pair.Check());
}

TEST(Text, AppendOfAllKeptCanBeReverted) {
  const auto spec = Spec(1.2f, 0.1f, 0);
  const uint32_t kept = 128;
  std::mt19937 random(5);
  const std::vector<uint32_t> history = Tokens(random, 500);
  Pair pair{Text::Build(spec, history, 10, kept), history, 10};
  for (int round = 0; round < 50; ++round) {
    const auto undo = pair.state->Rewrite(pair.state->position() - random() % kept, Tokens(random, kept));
    pair.state->Revert(undo);
    ASSERT_NO_FATAL_FAILURE(pair.Check());
    pair.Append(NextToken(random));
    ASSERT_LE(pair.state->lowest_truncation(), pair.state->position() - kept);
  }
}

TEST(Text, MemoryIsLinearInDistinctTokens) {
  auto spec = Spec(1.2f, 0, 0);
  spec->vocabulary = spec->live_vocabulary = 1'000'000;
  const std::vector<uint32_t> history(1000, 999'999);
  EXPECT_LT(Text::Build(spec, history, 1000, 4096)->bytes(), 16u << 10);
  // Nor does it grow with the history beyond the kept part.
  const std::vector<uint32_t> long_history(200'000, 999'999);
  EXPECT_LT(Text::Build(spec, long_history, 1000, 4096)->bytes(), 32u << 10);
}

}  // namespace
}  // namespace sortition::service::text_test
