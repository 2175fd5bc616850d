// Phases: each position's phase, forced token and edits against a reading of the whole history.
#include "service/text/phases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "service/text/look_ahead.h"
#include "service/text/row.h"
#include "service/text/text.h"
#include "service/wire/compile_parameters.h"
#include "tests/support/messages.h"
#include "tests/support/plain_history.h"
#include "tests/support/scale.h"

namespace sortition::service::phases_test {
namespace {

constexpr uint32_t kVocabulary = 5;

// Returns null if the parameters are refused.
std::shared_ptr<const SequenceSpec> Spec(const v1::SamplingParameters& parameters) {
  auto spec = std::make_shared<SequenceSpec>();
  spec->law_version = 1;
  spec->vocabulary = spec->live_vocabulary = kVocabulary;
  if (CompileParameters(parameters, Limits(), "p", spec.get())) return nullptr;
  return spec;
}

std::shared_ptr<const SequenceSpec> Spec(const std::string& text) { return Spec(testing::ParametersOf(text)); }

// Returns the phase of each position of `tokens`, the last one behind them, and a word for each forced token.
std::vector<std::string> PlacesOf(const std::string& parameters, const std::vector<uint32_t>& tokens, uint32_t prompt) {
  std::vector<std::string> places;
  const auto spec = Spec(parameters);
  const auto state = Text::Build(spec, {tokens.begin(), tokens.begin() + prompt}, prompt, 64);
  for (size_t at = prompt;; ++at) {
    const auto forced = state->forced_token();
    places.push_back(std::to_string(state->phase()) + (forced ? " then " + std::to_string(*forced) : ""));
    if (at == tokens.size()) return places;
    state->Append(tokens[at]);
  }
}

using Places = std::vector<std::string>;

TEST(Phases, BeginAndEndAtTheirTags) {
  const std::string text = "phases { begin: [1, 2] end: [3, 4] }";
  EXPECT_EQ(PlacesOf(text, {1, 2, 3, 4, 0}, 0), (Places{"0", "0", "1", "1", "0", "0"}));
  // Neither tag includes tokens before the place where its search begins.
  EXPECT_EQ(PlacesOf("phases { begin: [3, 4] end: [4, 1] }", {3, 4, 1, 4, 1, 0}, 0),
            (Places{"0", "0", "1", "1", "1", "0", "0"}));
  EXPECT_EQ(PlacesOf("phases { begin: [1, 2] end: [3, 1] }", {1, 2, 3, 1, 2, 1, 2}, 0),
            (Places{"0", "0", "1", "1", "0", "0", "0", "1"}));
}

TEST(Phases, TagsInThePromptCount) {
  EXPECT_EQ(PlacesOf("phases { begin: 1 end: 2 }", {0, 1, 3, 2}, 2), (Places{"1", "1", "0"}));
  EXPECT_EQ(PlacesOf("phases { begin: 1 end: 2 } phases { end: 4 }", {0, 1, 3, 2, 4}, 3), (Places{"1", "0", "0"}));
  EXPECT_EQ(PlacesOf("phases { begin: 1 end: 2 } phases { end: 4 }", {0, 0, 4, 1}, 2), (Places{"2", "0", "1"}));
}

TEST(Phases, BudgetEmitsThen) {
  const std::string text = "phases { begin: 1 end: 2 max_tokens: 2 then: [3, 2, 4] }";
  EXPECT_EQ(PlacesOf(text, {1, 0, 0, 3, 2, 4, 0}, 0),
            (Places{"0", "1", "1", "1 then 3", "1 then 2", "1 then 4", "0", "0"}));
  // An end in the budget's last place counts; tokens other than `then`'s change nothing.
  EXPECT_EQ(PlacesOf(text, {1, 0, 2, 0}, 0), (Places{"0", "1", "1", "0", "0"}));
  EXPECT_EQ(PlacesOf(text, {1, 0, 0, 2, 2, 0, 1}, 0),
            (Places{"0", "1", "1", "1 then 3", "1 then 2", "1 then 4", "0", "1"}));
  EXPECT_EQ(PlacesOf("phases { begin: 1 end: [2, 3] max_tokens: 0 }", {1, 2, 3, 1}, 0),
            (Places{"0", "1 then 2", "1 then 3", "0", "1 then 2"}));
}

// A prompt that ends in a thought, as chat templates write it, with no budget left for one.
TEST(Phases, PromptThatUsedTheBudgetUpIsFollowedByAllOfThen) {
  const std::string text = "phases { begin: 3 end: 4 max_tokens: 0 then: [2, 1, 4] }";
  EXPECT_EQ(PlacesOf(text, {3, 0, 2, 1, 4, 0}, 2), (Places{"1 then 2", "1 then 1", "1 then 4", "0", "0"}));
  EXPECT_EQ(PlacesOf(text, {3, 0, 0, 0, 0, 2, 1, 4}, 5), (Places{"1 then 2", "1 then 1", "1 then 4", "0"}));
  // An end in the prompt still ends it, behind the budget too.
  EXPECT_EQ(PlacesOf(text, {3, 0, 4, 0}, 4), (Places{"0"}));
  EXPECT_EQ(PlacesOf(text, {3, 0, 0, 4}, 4), (Places{"0"}));
  // The rest of a budget begins with the output.
  const std::string some = "phases { begin: 3 end: 4 max_tokens: 3 then: [2, 4] }";
  EXPECT_EQ(PlacesOf(some, {3, 0, 0, 0, 2, 4}, 3), (Places{"1", "1 then 2", "1 then 4", "0"}));
  EXPECT_EQ(PlacesOf(some, {3, 0, 0, 0, 0, 2, 4}, 5), (Places{"1 then 2", "1 then 4", "0"}));
}

TEST(Phases, EmptyBeginIsTheOutputsStart) {
  EXPECT_EQ(PlacesOf("phases { max_tokens: 1 then: 4 }", {0, 1, 2, 4, 0}, 2), (Places{"1", "1 then 4", "0", "0"}));
}

v1::SamplingParameters RandomPhases(std::mt19937* random) {
  const auto below = [&](uint32_t end) { return static_cast<uint32_t>((*random)() % end); };
  for (;;) {
    v1::SamplingParameters parameters;
    if (below(2) == 0) parameters.set_frequency_penalty(0.25f);
    if (below(3) == 0) parameters.add_banned_token_ids(below(kVocabulary));
    for (uint32_t count = 1 + below(3); count > 0; --count) {
      v1::Phase& phase = *parameters.add_phases();
      for (uint32_t i = below(3); i > 0; --i) phase.add_begin(below(kVocabulary));
      for (uint32_t i = below(3); i > 0; --i) phase.add_end(below(kVocabulary));
      if (below(2) == 0) phase.set_max_tokens(below(7));
      for (uint32_t i = below(4); i > 0; --i) phase.add_then(below(kVocabulary));
      v1::SamplingParameters& within = *phase.mutable_parameters();
      if (below(3) == 0) within.set_temperature(0.5f);
      if (below(3) == 0) within.set_presence_penalty(0.5f);
      if (below(3) == 0) within.set_frequency_penalty(0);
      if (below(3) == 0) within.add_banned_token_ids(below(kVocabulary));
    }
    if (Spec(parameters) != nullptr) return parameters;
  }
}

struct PhasedText {
  v1::SamplingParameters parameters;
  std::unique_ptr<Text> state;
  std::vector<uint32_t> tokens;
  uint32_t prompt = 0;
};

// Drops edits that change nothing.
std::vector<kernels::LogitEdit> EffectiveEdits(std::vector<kernels::LogitEdit> edits) {
  std::erase_if(edits, [](const kernels::LogitEdit& edit) { return edit == kernels::LogitEdit{.token = edit.token}; });
  return edits;
}

void ExpectView(const PhasedText& text, const PositionView& view, const std::vector<uint32_t>& tokens) {
  const testing::PlainPlace place = testing::PlainPlaceAfter(text.parameters, tokens, text.prompt);
  ASSERT_EQ((testing::PlainPlace{view.phase, view.forced}), place);
  const v1::SamplingParameters within = testing::PlainWithin(text.parameters, place.phase);
  ASSERT_EQ(EffectiveEdits(*view.edits), EffectiveEdits(testing::PlainEdits(within, tokens, text.prompt)));
}

// Compares the views at the end of the text and after random drafts.
void ExpectViews(std::mt19937* random, PhasedText* text) {
  TokenTree tree;
  for (uint32_t i = (*random)() % 7; i > 0; --i) {
    tree.parents.push_back(static_cast<int32_t>((*random)() % (tree.tokens.size() + 1)) - 1);
    tree.tokens.push_back((*random)() % kVocabulary);
  }
  const uint64_t hash = text->state->history_hash();
  const PositionViews views = LookAhead(text->state.get(), tree);
  for (size_t i = 0; i < views.size(); ++i) {
    std::vector<uint32_t> way;
    for (int32_t at = static_cast<int32_t>(i) - 1; at >= 0; at = tree.parents[static_cast<size_t>(at)]) {
      way.push_back(tree.tokens[static_cast<size_t>(at)]);
    }
    std::vector<uint32_t> tokens = text->tokens;
    tokens.insert(tokens.end(), way.rbegin(), way.rend());
    ASSERT_NO_FATAL_FAILURE(ExpectView(*text, views[i], tokens)) << "view " << i;
  }
  text->state->EndLoan();
  ASSERT_EQ(text->state->history_hash(), hash);
}

// Random tags, budgets and parameters; texts that grow and are cut, reverted and forked under the same phases and
// others. A state that has forgotten old tokens is among them.
TEST(Phases, EqualWholeScanAcrossRewritesAndForks) {
  std::mt19937 random(5);
  uint64_t inside = 0, forced = 0, trimmed = 0;
  for (uint64_t round = 0; round < testing::Scaled(60); ++round) {
    const v1::SamplingParameters parameters = RandomPhases(&random);
    std::vector<PhasedText> family;
    family.reserve(8);
    PhasedText first{parameters, nullptr, std::vector<uint32_t>(random() % 200), 0};
    for (uint32_t& token : first.tokens) token = random() % kVocabulary;
    first.prompt = first.tokens.empty() ? 0 : random() % (first.tokens.size() + 1);
    first.state = Text::Build(Spec(parameters), first.tokens, first.prompt, 8);
    family.push_back(std::move(first));
    for (int step = 0; step < 120; ++step) {
      PhasedText& text = family[random() % family.size()];
      const uint32_t length = text.state->position();
      const uint32_t cut = length - random() % (std::min(length - text.state->lowest_truncation(), 70u) + 1);
      std::vector<uint32_t> append(random() % 4);
      for (uint32_t& token : append) token = random() % kVocabulary;
      switch (random() % 8) {
        case 0: {
          const Text::Undo undo = text.state->Rewrite(cut, append);
          if (random() % 2 == 0) {
            text.state->Revert(undo);
            break;
          }
          text.tokens.resize(cut);
          text.prompt = std::min(text.prompt, cut);
          text.tokens.insert(text.tokens.end(), append.begin(), append.end());
          break;
        }
        case 1: {
          const v1::SamplingParameters other = random() % 2 == 0 ? text.parameters : RandomPhases(&random);
          PhasedText child{other, text.state->Fork(Spec(other), cut), text.tokens, std::min(text.prompt, cut)};
          if (child.state == nullptr || family.size() > 4) break;
          child.tokens.resize(cut);
          family.push_back(std::move(child));
          break;
        }
        default:
          for (const uint32_t token : append) text.state->Append(token), text.tokens.push_back(token);
          break;
      }
      const PhasedText& changed = text;
      ASSERT_NO_FATAL_FAILURE(ExpectViews(&random, &text)) << "round " << round << " step " << step;
      inside += changed.state->phase() != kNoPhase;
      forced += changed.state->forced_token().has_value();
      trimmed += changed.state->lowest_truncation() > 0;
    }
  }
  if (testing::Scaled(500) < 500) return;  // a sanitizer's few steps need not meet each
  EXPECT_GT(inside, 500u);
  EXPECT_GT(forced, 50u);
  EXPECT_GT(trimmed, 200u);
}

// Each position of a drafted row has the options of the phase at its place.
TEST(Phases, DraftPositionsHaveOwnOptions) {
  const auto spec = Spec(
      "temperature: 0.5 phases { begin: 1 end: 2 parameters { temperature: 0 allowed_token_ids: [2, 3] } } "
      "phases { begin: 4 end: 2 max_tokens: 0 }");
  const auto state = Text::Build(spec, std::vector<uint32_t>{0}, 1, 64);
  const PositionViews views = LookAhead(state.get(), TokenTree::Chain({1, 3, 2, 4}));
  const uint32_t phases[] = {0, 1, 1, 0, 2};
  for (size_t i = 0; i < views.size(); ++i) {
    EXPECT_EQ(views[i].phase, phases[i]) << i;
    kernels::RowRequest row = MakeRowRequest(*spec, &views[i], static_cast<uint32_t>(1 + i), 0);
    EXPECT_EQ(row.parameters, &spec->Within(phases[i]).parameters) << i;
    EXPECT_EQ(row.parameters->greedy, phases[i] == 1) << i;
    EXPECT_EQ(row.has_allowed_tokens, phases[i] == 1) << i;
    ForceToken(&views[i], &row);
    EXPECT_EQ(row.has_allowed_tokens && row.allowed_tokens.size() == 1, phases[i] == 2) << i;
  }
}

}  // namespace
}  // namespace sortition::service::phases_test
