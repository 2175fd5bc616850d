// Incremental history and penalties against a state rebuilt from the whole history, byte for byte.
#include "service/sequence/sequence_state.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "kernels/law/parameters.h"
#include "service/sequence/history_hash.h"

namespace sortition::service {
namespace {

using kernels::TokenPatch;

constexpr uint32_t kVocabulary = 1000;

std::shared_ptr<SequenceSpec> Spec(float repetition, float frequency, float presence) {
  auto spec = std::make_shared<SequenceSpec>();
  spec->law_version = 1;
  spec->seed = 7;
  spec->vocabulary = spec->live_vocabulary = kVocabulary;
  spec->repetition_penalty = repetition;
  spec->frequency_penalty = frequency;
  spec->presence_penalty = presence;
  spec->listed_patches = {{.token = 3, .bias = law::CanonicalBits(1.5f)},
                          {.token = 5, .flags = TokenPatch::kBanned},
                          {.token = 900, .flags = TokenPatch::kBanned, .bias = law::CanonicalBits(-2.0f)}};
  return spec;
}

// What a row sees, computed from the definition of the penalties, with no code of SequenceState's.
std::vector<TokenPatch> Expected(const SequenceSpec& spec, const std::vector<uint32_t>& history,
                                 uint32_t prompt_length) {
  std::map<uint32_t, TokenPatch> patches;
  for (const TokenPatch& patch : spec.listed_patches) patches[patch.token] = patch;
  std::map<uint32_t, uint32_t> output;
  for (size_t i = 0; i < history.size(); ++i) {
    TokenPatch& patch = patches[history[i]];
    patch.token = history[i];
    if (spec.repetition_penalty != 1) patch.flags |= TokenPatch::kRepeated;
    if (i >= prompt_length) ++output[history[i]];
  }
  if (spec.frequency_penalty != 0 || spec.presence_penalty != 0) {
    for (const auto& [token, count] : output) {
      patches[token].penalty = law::PenaltyBits(spec.frequency_penalty, spec.presence_penalty, count);
    }
  }
  std::vector<TokenPatch> sorted;
  for (const auto& [token, patch] : patches) sorted.push_back(patch);
  return sorted;
}

uint64_t ExpectedHash(const SequenceSpec& spec, const std::vector<uint32_t>& history) {
  uint64_t hash = EmptyHistoryHash(spec);
  for (uint32_t token : history) hash = ExtendHistoryHash(hash, token);
  return hash;
}

// A history that repeats itself as text does.
uint32_t NextToken(std::mt19937& random) { return random() % (random() % 3 == 0 ? kVocabulary : 40); }

class SequenceStateTest : public testing::TestWithParam<std::array<float, 3>> {
 protected:
  std::shared_ptr<SequenceSpec> spec_ = Spec(GetParam()[0], GetParam()[1], GetParam()[2]);
};

TEST_P(SequenceStateTest, AThousandStepsWithTruncationsEqualARebuiltState) {
  std::mt19937 random(11);
  std::vector<uint32_t> history;
  for (int i = 0; i < 50; ++i) history.push_back(NextToken(random));
  const uint32_t prompt = 50;
  SequenceState state(spec_, history, prompt, 4096);
  for (int step = 0; step < 1000; ++step) {
    if (random() % 5 == 0) {
      const uint32_t length = static_cast<uint32_t>(history.size());
      const uint32_t to = length - random() % std::min(length - prompt + 1, 70u);
      std::vector<uint32_t> append(random() % 4);
      for (uint32_t& token : append) token = NextToken(random);
      const SequenceState::Undo undo = state.Edit(to, append);
      if (random() % 2 == 0) {
        state.Revert(undo);
      } else {
        history.resize(to);
        history.insert(history.end(), append.begin(), append.end());
      }
    } else {
      history.push_back(NextToken(random));
      state.Append(history.back());
    }
    ASSERT_EQ(state.position(), history.size());
    ASSERT_EQ(state.history_hash(), ExpectedHash(*spec_, history)) << "step " << step;
    ASSERT_EQ(*state.SharePatches(), Expected(*spec_, history, prompt)) << "step " << step;
    SequenceState rebuilt(spec_, history, prompt, 4096);
    ASSERT_EQ(*state.SharePatches(), *rebuilt.SharePatches());
    ASSERT_EQ(state.history_hash(), rebuilt.history_hash());
  }
}

TEST_P(SequenceStateTest, WhatWasHandedOutIsNotTouchedByLaterChanges) {
  SequenceState state(spec_, std::vector<uint32_t>{1, 2, 3}, 3, 100);
  const auto before = state.SharePatches();
  const std::vector<TokenPatch> copy = *before;
  state.Append(1);
  state.Append(77);
  state.Edit(4, std::vector<uint32_t>{5, 6});
  EXPECT_EQ(*before, copy);
}

INSTANTIATE_TEST_SUITE_P(Penalties, SequenceStateTest,
                         testing::Values(std::array{1.3f, 0.0f, 0.0f}, std::array{1.0f, 0.4f, 0.0f},
                                         std::array{1.0f, 0.0f, -0.7f}, std::array{0.8f, 0.1f, 0.2f}));

TEST(SequenceState, KeepsAtLeastThePromisedHistoryAndLittleMore) {
  const auto spec = Spec(1.2f, 0.1f, 0);
  SequenceState state(spec, {}, 0, 256);
  std::vector<uint32_t> history;
  std::mt19937 random(3);
  for (int i = 0; i < 20'000; ++i) {
    history.push_back(NextToken(random));
    state.Append(history.back());
    ASSERT_LE(state.lowest_truncation(), std::max(0, i + 1 - 256));
    ASSERT_GE(state.lowest_truncation() + 2 * 256 + 128, static_cast<uint32_t>(i + 1));
  }
  EXPECT_LT(state.bytes(), 64u << 10);
  // Truncating as deep as promised still gives the right hash and counts.
  state.Edit(20'000 - 256, {});
  history.resize(20'000 - 256);
  EXPECT_EQ(state.history_hash(), ExpectedHash(*spec, history));
  EXPECT_EQ(*state.SharePatches(), Expected(*spec, history, 0));
}

TEST(SequenceState, AppendingAsMuchAsIsKeptCanBeReverted) {
  const auto spec = Spec(1.2f, 0.1f, 0);
  const uint32_t kept = 128;
  std::vector<uint32_t> history(500);
  std::mt19937 random(5);
  for (uint32_t& token : history) token = NextToken(random);
  SequenceState state(spec, history, 10, kept);
  for (int round = 0; round < 50; ++round) {
    const uint64_t hash = state.history_hash();
    const std::vector<TokenPatch> patches = *state.SharePatches();
    std::vector<uint32_t> append(kept);
    for (uint32_t& token : append) token = NextToken(random);
    const auto undo = state.Edit(state.position() - random() % kept, append);
    state.Revert(undo);
    ASSERT_EQ(state.history_hash(), hash);
    ASSERT_EQ(*state.SharePatches(), patches);
    state.Append(NextToken(random));
  }
}

TEST(SequenceState, MemoryIsOfTheOrderOfDistinctTokensNotOfTheVocabulary) {
  auto spec = Spec(1.2f, 0, 0);
  spec->vocabulary = spec->live_vocabulary = 1'000'000;
  std::vector<uint32_t> history(1000, 999'999);
  SequenceState state(spec, history, 1000, 4096);
  EXPECT_LT(state.bytes(), 16u << 10);
}

}  // namespace
}  // namespace sortition::service
