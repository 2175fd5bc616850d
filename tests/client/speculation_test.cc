// Speculation through the client: a drafter in the worker's process uses the sequence's noise, and the service verifies
// its drafts.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "sortition/client.h"
#include "sortition/in_process.h"
#include "sortition/local_sequence.h"
#include "tests/support/scale.h"

namespace sortition::client::speculation_test {
namespace {

constexpr uint32_t kVocabulary = 500;

// The logits of a target after a text, and the similar ones of a drafter.
std::vector<float> LogitsAfter(std::span<const uint32_t> text, float noise) {
  uint64_t seed = 17;
  for (const uint32_t token : text) seed = (seed ^ token) * 0x9e3779b97f4a7c15;
  std::mt19937_64 random(seed);
  std::vector<float> logits(kVocabulary);
  for (float& x : logits) x = float(random() % 8192) / 1024;
  for (float& x : logits) x += noise * (float(random() % 2048) / 1024 - 1);
  return logits;
}

SequenceOptions Options(std::string request_id) {
  SequenceOptions options;
  options.request_id = std::move(request_id);
  options.vocabulary_size = kVocabulary;
  options.seed = 4711;
  options.prompt = {1, 2, 3};
  options.parameters.set_temperature(0.8f);
  options.parameters.set_min_p(0.02f);
  options.parameters.set_frequency_penalty(0.3f);
  return options;
}

uint32_t TokenOf(const RowResult& result) { return std::get<v1::DrawResult>(result).token(); }

TEST(Speculation, DrafterWithSequencesNoiseIsMostlyRight) {
  auto client = Client::Connect({.in_process = InProcessEngine()});
  ASSERT_TRUE(client.ok()) << client.status();
  auto plain = (*client)->Open(Options("plain"));
  auto target = (*client)->Open(Options("target"));
  auto drafter = LocalSequence::Open(Options("drafter"));
  ASSERT_TRUE(plain.ok() && target.ok() && drafter.ok());
  constexpr size_t kDrafts = 4;
  uint64_t accepted = 0;
  uint64_t steps = 0;
  const uint64_t length = testing::Scaled(400);
  while ((*target)->position() < length) {
    const std::vector<uint32_t> text = (*target)->tokens();
    // The drafter continues the text, whether or not its earlier drafts were accepted.
    ASSERT_TRUE((*drafter)->Truncate(std::min<uint32_t>((*drafter)->position(), uint32_t(text.size()) - 1)).ok());
    ASSERT_TRUE((*drafter)->Append(std::span(text).subspan((*drafter)->position())).ok());
    std::vector<uint32_t> ahead = text;
    std::vector<float> logits = LogitsAfter(ahead, 0);
    for (size_t i = 0; i < kDrafts; ++i) {
      const std::vector<float> guess = LogitsAfter(ahead, 0.2f);
      ahead.push_back(TokenOf((*drafter)->Step(v1::DTYPE_F32, {.logits = guess.data()})));
      const std::vector<float> next = LogitsAfter(ahead, 0);
      logits.insert(logits.end(), next.begin(), next.end());
    }
    Drafts drafts;
    drafts.tokens = std::span(ahead).last(kDrafts);
    Batch batch{v1::DTYPE_F32, kVocabulary, {{target->get(), logits.data()}}};
    batch.rows[0].drafts = &drafts;
    auto results = (*client)->Step(batch);
    ASSERT_TRUE(results.ok()) << results.status();
    ASSERT_TRUE(std::holds_alternative<v1::VerifyResult>(results->front()))
        << Describe(std::get<RowError>(results->front()));
    const auto& verify = std::get<v1::VerifyResult>(results->front());
    accepted += verify.accepted();
    ++steps;
    // The text equals that without speculation.
    for (const v1::Position& position : verify.positions()) {
      const std::vector<float> row = LogitsAfter((*plain)->tokens(), 0);
      auto drawn = (*client)->Step({v1::DTYPE_F32, kVocabulary, {{plain->get(), row.data()}}});
      ASSERT_TRUE(drawn.ok());
      ASSERT_EQ(TokenOf(drawn->front()), position.token());
    }
    ASSERT_EQ((*target)->tokens(), (*plain)->tokens());
  }
  EXPECT_GT(double(accepted) / double(steps * kDrafts), 0.4);
}

TEST(Speculation, RejectionWithDenseProbabilitiesAndMasks) {
  auto client = Client::Connect({.in_process = InProcessEngine()});
  ASSERT_TRUE(client.ok());
  auto first = (*client)->Open(Options("a"));
  auto second = (*client)->Open(Options("b"));
  ASSERT_TRUE(first.ok() && second.ok());
  // Two rows of one batch, with different drafts; f16 probabilities.
  std::vector<std::vector<float>> logits;
  std::vector<uint16_t> probabilities[2];
  std::vector<uint32_t> masks[2];
  const std::vector<uint32_t> tokens[2] = {{10, 11}, {12, 13, 14}};
  Drafts drafts[2];
  Batch batch{v1::DTYPE_F32, kVocabulary, {}};
  batch.draft_dtype = v1::DTYPE_F16;
  Sequence* sequences[2] = {first->get(), second->get()};
  for (int i = 0; i < 2; ++i) {
    std::vector<float>& rows = logits.emplace_back();
    for (size_t position = 0; position <= tokens[i].size(); ++position) {
      std::vector<float> row(kVocabulary, -40.0f);
      row[position < tokens[i].size() ? tokens[i][position] : 20] = 0;
      rows.insert(rows.end(), row.begin(), row.end());
      masks[i].resize(masks[i].size() + (kVocabulary + 31) / 32, 0xffffffffu);
    }
    probabilities[i].resize(tokens[i].size() * kVocabulary);
    for (size_t k = 0; k < tokens[i].size(); ++k) probabilities[i][k * kVocabulary + tokens[i][k]] = 0x3c00;
    drafts[i].mode = v1::VERIFY_MODE_REJECTION;
    drafts[i].tokens = tokens[i];
    drafts[i].probabilities = probabilities[i].data();
  }
  // The second sequence's last draft is not allowed.
  masks[1][2 * ((kVocabulary + 31) / 32)] &= ~(1u << 14);
  for (int i = 0; i < 2; ++i) {
    Row row{sequences[i], logits[size_t(i)].data()};
    row.allowed_bits = masks[i].data();
    row.drafts = &drafts[i];
    batch.rows.push_back(row);
  }
  auto results = (*client)->Step(batch);
  ASSERT_TRUE(results.ok()) << results.status();
  const auto* whole = std::get_if<v1::VerifyResult>(&(*results)[0]);
  const auto* part = std::get_if<v1::VerifyResult>(&(*results)[1]);
  ASSERT_TRUE(whole != nullptr) << Describe(std::get<RowError>((*results)[0]));
  ASSERT_TRUE(part != nullptr) << Describe(std::get<RowError>((*results)[1]));
  EXPECT_EQ(whole->accepted(), 2u);
  EXPECT_EQ(whole->positions(2).token(), 20u);
  EXPECT_EQ(part->accepted(), 2u);
  EXPECT_NE(part->positions(2).token(), 14u);
  EXPECT_EQ((*first)->position(), 6u);
  EXPECT_EQ((*second)->position(), 6u);
}

TEST(Speculation, ScoresKeepThePosition) {
  auto client = Client::Connect({.in_process = InProcessEngine()});
  ASSERT_TRUE(client.ok());
  SequenceOptions options = Options("scored");
  options.parameters.mutable_raw_logprobs();
  auto sequence = (*client)->Open(options);
  ASSERT_TRUE(sequence.ok());
  const std::vector<float> row(2 * kVocabulary);
  const std::vector<uint32_t> scored = {7, 8};
  Row asked{sequence->get(), row.data()};
  asked.scored = scored;
  auto results = (*client)->Step({v1::DTYPE_F32, kVocabulary, {asked}});
  ASSERT_TRUE(results.ok());
  const auto* score = std::get_if<v1::ScoreResult>(&results->front());
  ASSERT_TRUE(score != nullptr) << Describe(std::get<RowError>(results->front()));
  ASSERT_EQ(score->positions_size(), 2);
  EXPECT_EQ(score->positions(1).raw().logprob(), float(-std::log(double(kVocabulary))));
  EXPECT_EQ(score->positions(1).raw().rank(), 9u);
  EXPECT_EQ((*sequence)->position(), 3u);
  Drafts drafts;
  asked.drafts = &drafts;
  EXPECT_FALSE((*client)->Step({v1::DTYPE_F32, kVocabulary, {asked}}).ok());
}

TEST(Speculation, DraftErrorsNameTheirField) {
  auto client = Client::Connect({.in_process = InProcessEngine()});
  ASSERT_TRUE(client.ok());
  auto sequence = (*client)->Open(Options("wrong"));
  ASSERT_TRUE(sequence.ok());
  const std::vector<float> row(2 * kVocabulary);
  const std::vector<uint32_t> tokens = {kVocabulary};
  Drafts drafts;
  drafts.tokens = tokens;
  Row asked{sequence->get(), row.data()};
  asked.drafts = &drafts;
  auto results = (*client)->Step({v1::DTYPE_F32, kVocabulary, {asked}});
  ASSERT_TRUE(results.ok());
  const auto* error = std::get_if<RowError>(&results->front());
  ASSERT_TRUE(error != nullptr);
  EXPECT_EQ(error->field, "step.rows[0].verify_draft.draft_tokens[0]");
  EXPECT_EQ((*sequence)->position(), 3u);
}

}  // namespace
}  // namespace sortition::client::speculation_test
