// OpenSequence: names, widths, seeds and histories.
#include "service/wire/open_request.h"

#include <gtest/gtest.h>

#include "tests/support/messages.h"

namespace sortition::service::open_request_test {
namespace {

using testing::MakeOpen;

std::variant<OpenRequest, Refusal> Parse(const v1::OpenSequence& open, const Limits& limits = {}) {
  SystemEntropy entropy;
  return ParseOpen(open, limits, "open", &entropy);
}

OpenRequest MustParse(const v1::OpenSequence& open, const Limits& limits = {}) {
  auto parsed = Parse(open, limits);
  if (auto* refusal = std::get_if<Refusal>(&parsed)) {
    ADD_FAILURE() << refusal->field << ": " << refusal->message;
    return OpenRequest();
  }
  return std::move(std::get<OpenRequest>(parsed));
}

void ExpectRefused(const v1::OpenSequence& open, Reason reason, const std::string& field, const Limits& limits = {}) {
  const auto parsed = Parse(open, limits);
  ASSERT_TRUE(std::holds_alternative<Refusal>(parsed)) << field;
  EXPECT_EQ(std::get<Refusal>(parsed).reason, reason) << ReasonName(std::get<Refusal>(parsed).reason);
  EXPECT_EQ(std::get<Refusal>(parsed).field, field);
}

TEST(OpenRequest, CarriesEveryField) {
  v1::OpenSequence open = MakeOpen("request", 7, 100);
  open.set_live_vocabulary_size(90);
  open.set_choice_index(3);
  open.set_seed(0);
  open.mutable_parameters()->set_presence_penalty(1);
  open.mutable_history()->add_tokens(89);
  open.mutable_history()->set_prompt_length(1);
  const OpenRequest request = MustParse(open);
  EXPECT_EQ(request.request_id, "request");
  EXPECT_EQ(request.epoch, 7u);
  EXPECT_EQ(request.spec->law_version, open.law_version());
  EXPECT_EQ(request.spec->seed, 0u);
  EXPECT_EQ(request.spec->choice_index, 3u);
  EXPECT_EQ(request.spec->vocabulary, 100u);
  EXPECT_EQ(request.spec->live_vocabulary, 90u);
  ASSERT_TRUE(request.history.has_value());
  EXPECT_EQ(request.history->tokens, std::vector<uint32_t>{89});
  EXPECT_EQ(request.history->prompt_length, 1u);
  EXPECT_FALSE(request.history->continues);
}

TEST(OpenRequest, LiveVocabularyDefaultsToTheVocabulary) {
  EXPECT_EQ(MustParse(MakeOpen("a", 1, 77)).spec->live_vocabulary, 77u);
  EXPECT_FALSE(MustParse(MakeOpen("a", 1, 77)).history.has_value());
}

TEST(OpenRequest, NamesAreBounded) {
  MustParse(MakeOpen(std::string(128, 'x'), 1, 10));
  ExpectRefused(MakeOpen("", 1, 10), Reason::kMissingField, "open.request_id");
  ExpectRefused(MakeOpen(std::string(129, 'x'), 1, 10), Reason::kTooMany, "open.request_id");
  v1::OpenSequence open = MakeOpen("a", 1, 10);
  open.set_model(std::string(128, 'm'));
  MustParse(open);
  open.set_model(std::string(129, 'm'));
  ExpectRefused(open, Reason::kTooMany, "open.model");
}

TEST(OpenRequest, LawVersion) {
  v1::OpenSequence open = MakeOpen("a", 1, 10);
  for (const uint32_t version : {0u, open.law_version() + 1, 0xffffffffu}) {
    open.set_law_version(version);
    ExpectRefused(open, Reason::kUnsupportedLawVersion, "open.law_version");
  }
}

TEST(OpenRequest, VocabularyRanges) {
  MustParse(MakeOpen("a", 1, 1));
  MustParse(MakeOpen("a", 1, (1u << 20) - 1));
  ExpectRefused(MakeOpen("a", 1, 0), Reason::kOutOfRange, "open.vocabulary_size");
  ExpectRefused(MakeOpen("a", 1, 1u << 20), Reason::kOutOfRange, "open.vocabulary_size");
  ExpectRefused(MakeOpen("a", 1, 0xffffffff), Reason::kOutOfRange, "open.vocabulary_size");
  Limits limits;
  limits.max_vocabulary = 50;
  MustParse(MakeOpen("a", 1, 50), limits);
  ExpectRefused(MakeOpen("a", 1, 51), Reason::kOutOfRange, "open.vocabulary_size", limits);

  v1::OpenSequence open = MakeOpen("a", 1, 10);
  for (const uint32_t live : {1u, 10u}) {
    open.set_live_vocabulary_size(live);
    EXPECT_EQ(MustParse(open).spec->live_vocabulary, live);
  }
  for (const uint32_t live : {0u, 11u, 0xffffffffu}) {
    open.set_live_vocabulary_size(live);
    ExpectRefused(open, Reason::kOutOfRange, "open.live_vocabulary_size");
  }
}

TEST(OpenRequest, ChoiceIndexIsBounded) {
  v1::OpenSequence open = MakeOpen("a", 1, 10);
  open.set_choice_index(65535);
  MustParse(open);
  open.set_choice_index(65536);
  ExpectRefused(open, Reason::kOutOfRange, "open.choice_index");
}

TEST(OpenRequest, MissingSeedIsDrawn) {
  v1::OpenSequence open = MakeOpen("a", 1, 10);
  open.clear_seed();
  // Two equal draws of 64 bits have a probability of 2^-64.
  EXPECT_NE(MustParse(open).spec->seed, MustParse(open).spec->seed);
}

TEST(OpenRequest, ParametersAreNamedByPath) {
  v1::OpenSequence open = MakeOpen("a", 1, 10);
  open.mutable_parameters()->set_top_p(2);
  ExpectRefused(open, Reason::kOutOfRange, "open.parameters.top_p");
}

TEST(OpenRequest, TopKOfLiveVocabularyIsOff) {
  v1::OpenSequence open = MakeOpen("a", 1, 10);
  open.set_live_vocabulary_size(5);
  open.mutable_parameters()->set_top_k(5);
  EXPECT_EQ(MustParse(open).spec->parameters.top_k, 0u);
  open.mutable_parameters()->set_top_k(4);
  EXPECT_EQ(MustParse(open).spec->parameters.top_k, 4u);
}

TEST(OpenRequest, HistoryTokensAreLive) {
  v1::OpenSequence open = MakeOpen("a", 1, 10);
  open.mutable_parameters()->set_presence_penalty(1);
  open.set_live_vocabulary_size(5);
  for (const uint32_t token : {4u, 5u}) open.mutable_history()->add_tokens(token);
  ExpectRefused(open, Reason::kOutOfRange, "open.history.tokens[1]");
}

TEST(OpenRequest, HistoryThatNoOptionNeedsIsRefused) {
  v1::OpenSequence open = MakeOpen("a", 1, 10);
  open.mutable_history()->add_tokens(1);
  ExpectRefused(open, Reason::kContradiction, "open.history");
  open.mutable_parameters()->mutable_watermark()->set_key(1);
  MustParse(open);
}

TEST(OpenRequest, HistoryIsBounded) {
  Limits limits;
  limits.max_history = 3;
  v1::OpenSequence open = MakeOpen("a", 1, 10);
  open.mutable_parameters()->set_presence_penalty(1);
  for (int i = 0; i < 3; ++i) open.mutable_history()->add_tokens(0);
  MustParse(open, limits);
  open.mutable_history()->set_offset(1);
  ExpectRefused(open, Reason::kTooMany, "open.history.tokens", limits);
  open.mutable_history()->set_offset(0xffffffff);
  ExpectRefused(open, Reason::kTooMany, "open.history.tokens", limits);
  open.mutable_history()->set_offset(0);
  open.mutable_history()->add_tokens(0);
  ExpectRefused(open, Reason::kTooMany, "open.history.tokens", limits);
}

TEST(OpenRequest, PromptIsPartOfTheHistory) {
  v1::OpenSequence open = MakeOpen("a", 1, 10);
  open.mutable_parameters()->set_presence_penalty(1);
  open.mutable_history()->add_tokens(1);
  open.mutable_history()->set_prompt_length(2);
  ExpectRefused(open, Reason::kOutOfRange, "open.history.prompt_length");
  // More may follow.
  open.mutable_history()->set_continues(true);
  MustParse(open);
  open.mutable_history()->set_prompt_length(0xffffffff);
  ExpectRefused(open, Reason::kTooMany, "open.history.prompt_length");
}

}  // namespace
}  // namespace sortition::service::open_request_test
