// Ends of texts: against its definition under every rewrite, after drafts, and over texts that people write.
#include "service/text/text_end.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>

#include "client/demo/language_model.h"
#include "service/text/look_ahead.h"
#include "service/text/text.h"
#include "service/wire/compile_parameters.h"
#include "tests/support/plain_history.h"
#include "tests/support/scale.h"

namespace sortition::service::text_end_test {
namespace {

using testing::Scaled;
using v1::SamplingParameters;
using TokenIds = std::vector<uint32_t>;

constexpr uint32_t kVocabulary = 4096;

std::shared_ptr<const SequenceSpec> Spec(const SamplingParameters& parameters) {
  auto spec = std::make_shared<SequenceSpec>();
  spec->law_version = 1;
  spec->vocabulary = spec->live_vocabulary = kVocabulary;
  const auto refusal = CompileParameters(parameters, Limits(), "p", spec.get());
  EXPECT_FALSE(refusal.has_value()) << refusal->field << refusal->message;
  return spec;
}

void AddPhrase(std::initializer_list<uint32_t> tokens, SamplingParameters* parameters) {
  v1::TokenSequence& phrase = *parameters->add_banned_phrases();
  for (const uint32_t token : tokens) phrase.add_tokens(token);
}

SamplingParameters SmallLoops(uint32_t repeats, uint32_t most, uint32_t length) {
  SamplingParameters parameters;
  v1::RepetitionStop& stop = *parameters.mutable_repetition_stop();
  stop.set_repeats(repeats);
  stop.set_max_period(most);
  stop.set_min_length(length);
  return parameters;
}

// A text, and the state that an engine has of it.
struct EndingText {
  TokenIds tokens;
  uint32_t prompt = 0;
  std::unique_ptr<Text> state;

  void Append(uint32_t token) {
    tokens.push_back(token);
    state->Append(token);
  }
  void TruncateTo(uint32_t position) {
    tokens.resize(position);
    prompt = std::min(prompt, position);
    state->Rewrite(position, {});
  }
};

// The definition, computed from the whole text.
void ExpectEnd(const SamplingParameters& parameters, const EndingText& text) {
  const TextEnd end = text.state->text_end();
  ASSERT_EQ(end.repeats, testing::PlainRepeats(parameters, text.tokens, text.prompt));
  ASSERT_EQ(end.phrase_from, testing::PlainPhraseFrom(parameters, text.tokens, text.prompt));
  if (end.phrase_from) {
    ASSERT_EQ(end.phrase, TokenIds(text.tokens.begin() + *end.phrase_from, text.tokens.end()));
  }
}

std::vector<SamplingParameters> RandomStops() {
  std::vector<SamplingParameters> all = {SmallLoops(2, 7, 0), SmallLoops(3, 40, 9), SmallLoops(2, 512, 600),
                                         SmallLoops(4, 100, 30)};
  all[1].mutable_repetition_stop()->set_min_period(3);
  all[3].mutable_repetition_stop()->set_min_tokens(90);
  AddPhrase({1}, &all[0]);
  AddPhrase({0, 1, 0}, &all[1]);
  AddPhrase({1, 0}, &all[1]);
  AddPhrase({1, 1, 0}, &all[1]);
  AddPhrase({1, 0, 1, 1, 0, 1, 0, 0}, &all[3]);
  return all;
}

// Appends repetitions: a random token, an earlier run, or a run several times.
void GrowLoops(std::mt19937* random, EndingText* text) {
  const auto length = static_cast<uint32_t>(text->tokens.size());
  const uint32_t kind = (*random)() % 8;
  if (kind > 1 || length < 20) return text->Append((*random)() % 2);
  const uint32_t period = 1 + (*random)() % std::min(length - 1, kind == 0 ? 12u : 300u);
  for (uint32_t count = (*random)() % (4 * period); count > 0; --count) {
    text->Append(text->tokens[text->tokens.size() - period]);
  }
}

TEST(TextEnd, EqualsDefinitionAcrossRewrites) {
  for (const SamplingParameters& parameters : RandomStops()) {
    std::mt19937 random(5);
    const auto spec = Spec(parameters);
    std::vector<EndingText> family(1);
    family[0].prompt = 5;
    family[0].tokens = {0, 1, 0, 1, 0};
    family[0].state = Text::Build(spec, family[0].tokens, 5, 700);
    std::map<bool, uint64_t> seen;
    for (uint64_t step = 0; step < std::max<uint64_t>(Scaled(3000), 600); ++step) {
      EndingText& text = family[random() % family.size()];
      const auto length = static_cast<uint32_t>(text.tokens.size());
      const uint32_t lowest = text.state->lowest_truncation();
      const uint32_t back = length - std::min(length - lowest, static_cast<uint32_t>(random() % 90));
      if (step % 40 == 20) {
        text.TruncateTo(back);
      } else if (step % 100 == 50 && family.size() < 6) {
        EndingText child{TokenIds(text.tokens.begin(), text.tokens.begin() + back), std::min(text.prompt, back),
                         text.state->Fork(spec, back)};
        family.push_back(std::move(child));
        continue;
      } else if (step % 30 == 7) {
        text.state->Revert(text.state->Rewrite(back, TokenIds{0, 1, 1}));
      } else if (step % 30 == 12) {
        text.state = Text::Build(spec, text.tokens, text.prompt, 700);
      } else {
        GrowLoops(&random, &text);
      }
      ASSERT_NO_FATAL_FAILURE(ExpectEnd(parameters, text)) << "step " << step;
      ++seen[text.state->text_end().repeats];
    }
    EXPECT_GE(seen[false], Scaled(21));
    EXPECT_GE(seen[true], Scaled(21));
  }
}

// Each token of a tree of drafts has the end of the text that ends with it.
TEST(TextEnd, ViewsOfDraftsKnowTheirEnds) {
  SamplingParameters parameters = SmallLoops(3, 8, 0);
  AddPhrase({7, 8}, &parameters);
  const auto spec = Spec(parameters);
  const TokenIds tokens = {9, 1, 2, 1, 2, 1};
  const auto state = Text::Build(spec, tokens, 1, 64);
  TokenTree tree;
  tree.tokens = {2, 7, 1, 8, 8};
  tree.parents = {-1, -1, 0, 1, 0};
  const PositionViews views = LookAhead(state.get(), tree);
  std::vector<bool> ends;
  for (const PositionView& view : views) ends.push_back(view.ends_result);
  EXPECT_EQ(ends, (std::vector<bool>{false, true, false, true, true, false}));
  EXPECT_FALSE(state->text_end().is_last());
}

// A prompt that repeats itself, and one that ends in the beginning of a phrase.
TEST(TextEnd, PromptDoesNotCount) {
  SamplingParameters parameters = SmallLoops(3, 4, 0);
  AddPhrase({5, 5, 6}, &parameters);
  EndingText text{{5, 5, 5, 5, 5, 5, 5}, 6, nullptr};
  text.state = Text::Build(Spec(parameters), text.tokens, text.prompt, 64);
  EXPECT_FALSE(text.state->text_end().is_last());
  text.Append(6);
  EXPECT_EQ(text.state->text_end().phrase_from, std::nullopt);
  text.TruncateTo(7);
  for (int i = 0; i < 2; ++i) text.Append(5);
  EXPECT_TRUE(text.state->text_end().repeats);
}

TEST(TextEnd, LongestPhraseIsNamed) {
  SamplingParameters parameters;
  AddPhrase({3}, &parameters);
  AddPhrase({1, 2, 3}, &parameters);
  AddPhrase({2, 3}, &parameters);
  const auto state = Text::Build(Spec(parameters), TokenIds{9, 1, 2, 3}, 0, 64);
  EXPECT_EQ(state->text_end().phrase_from, 1u);
  EXPECT_EQ(state->text_end().phrase, (TokenString{1, 2, 3}));
}

// A state keeps the tokens that its stop looks back at, even if it keeps no others.
TEST(TextEnd, KeptHistorySuffices) {
  const SamplingParameters parameters = SmallLoops(32, 512, 0);
  TokenIds tokens(40'000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i % 512);
  const auto state = Text::Build(Spec(parameters), tokens, 0, 1);
  EXPECT_TRUE(state->text_end().repeats);
}

// --- texts that people write

struct CorpusPiece {
  std::string name;
  TokenIds tokens;
};

std::string ReadCorpus(const std::string& name) {
  std::ifstream file(std::string(TEXT_END_CORPUS) + "/" + name);
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_GT(text.str().size(), 1000u) << name;
  return text.str();
}

// The corpus by its bytes, the finest tokens there are, and by its words.
std::vector<CorpusPiece> MakeCorpus() {
  std::vector<std::pair<std::string, std::string>> texts;
  for (const char* name : {"tables", "code", "lists", "verse"})
    texts.emplace_back(name, ReadCorpus(std::string(name) + ".txt"));
  std::vector<std::string_view> views;
  for (const auto& [name, text] : texts) views.push_back(text);
  const demo::LanguageModel model(views);
  std::vector<CorpusPiece> corpus;
  for (const auto& [name, text] : texts) {
    TokenIds bytes;
    for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
    corpus.push_back({name + ", bytes", std::move(bytes)});
    corpus.push_back({name + ", words", model.Encode(text)});
  }
  return corpus;
}

const std::vector<CorpusPiece>& Corpus() {
  static const auto& corpus = *new std::vector<CorpusPiece>(MakeCorpus());
  return corpus;
}

// docs/semantics.md recommends these: 4 times, and 256 tokens in all.
SamplingParameters Recommended() {
  SamplingParameters parameters;
  parameters.mutable_repetition_stop()->set_repeats(4);
  return parameters;
}

TEST(RepetitionCorpus, RecommendedStopIsSilent) {
  const auto spec = Spec(Recommended());
  for (const CorpusPiece& piece : Corpus()) {
    const auto state = Text::Build(spec, {}, 0, 64);
    for (size_t i = 0; i < piece.tokens.size(); ++i) {
      state->Append(piece.tokens[i]);
      ASSERT_FALSE(state->text_end().repeats) << piece.name << ", token " << i;
    }
  }
}

// The corpus is no easy one: without the least length the same setting stops in each of its texts.
TEST(RepetitionCorpus, WouldStopWithoutLeastLength) {
  SamplingParameters parameters = Recommended();
  parameters.mutable_repetition_stop()->set_min_length(0);
  const auto spec = Spec(parameters);
  for (const CorpusPiece& piece : Corpus()) {
    const auto state = Text::Build(spec, {}, 0, 64);
    bool stops = false;
    for (const uint32_t token : piece.tokens) {
      state->Append(token);
      stops |= state->text_end().repeats;
    }
    EXPECT_TRUE(stops) << piece.name;
  }
}

// A loop is found with the token that completes its length, not later, and never before it has begun to repeat.
TEST(RepetitionCorpus, PlantedLoopsAreFoundInTime) {
  const SamplingParameters parameters = Recommended();
  const auto spec = Spec(parameters);
  const std::vector<CorpusPiece>& corpus = Corpus();
  std::mt19937 random(11);
  for (uint64_t n = 0; n < std::max<uint64_t>(Scaled(400), 40); ++n) {
    const CorpusPiece& piece = corpus[n % corpus.size()];
    const auto period = static_cast<uint32_t>(1 + random() % 256);
    const auto begin = static_cast<uint32_t>(random() % (piece.tokens.size() - period));
    const auto state = Text::Build(spec, {piece.tokens.data(), begin}, 0, 64);
    const uint32_t length = spec->history.repetition_stop.Length(period);
    uint32_t found = 0;
    for (uint32_t i = 0; i < length && found == 0; ++i) {
      state->Append(piece.tokens[begin + i % period]);
      if (state->text_end().repeats) found = i + 1;
    }
    ASSERT_NE(found, 0u) << piece.name << ", period " << period << " from " << begin;
    ASSERT_GT(found, period) << piece.name << ", period " << period << " from " << begin;
  }
}

}  // namespace
}  // namespace sortition::service::text_end_test
