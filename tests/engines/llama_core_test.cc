// Options and decoders of the llama.cpp adapter, without llama.cpp.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "client/engines/llama_cpp/decoder.h"
#include "client/engines/llama_cpp/llama_options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sortition/in_process.h"

namespace sortition::engines::llama_cpp::llama_core_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kVocabulary = 300;

std::vector<float> Row(uint32_t number) {
  std::vector<float> row(kVocabulary);
  for (uint32_t i = 0; i < kVocabulary; ++i) row[i] = static_cast<float>((i * 37 + number * 101) % 97) / 9;
  return row;
}

client::SequenceOptions Options() {
  client::SequenceOptions options;
  options.seed = 5;
  options.parameters.set_repetition_penalty(1.3f);
  options.parameters.set_frequency_penalty(0.5f);
  return options;
}

TEST(LlamaParameters, GreedyNeedsNoFilter) {
  SamplingOptions options;
  options.temp = 0;
  options.penalty_repeat = 1.1f;
  const auto parameters = ToParameters(options);
  ASSERT_TRUE(parameters.ok());
  EXPECT_EQ(parameters->temperature(), 0);
  EXPECT_FALSE(parameters->has_top_k());
  EXPECT_FALSE(parameters->has_chain());
  EXPECT_EQ(parameters->repetition_penalty(), 1.1f);
  EXPECT_EQ(parameters->penalty_scope().window(), 64u);
}

TEST(LlamaParameters, DefaultsKeepLlamasOrder) {
  const auto parameters = ToParameters(SamplingOptions{});
  ASSERT_TRUE(parameters.ok());
  EXPECT_EQ(parameters->temperature(), 0.8f);
  EXPECT_EQ(parameters->top_k(), 40u);
  EXPECT_EQ(parameters->top_p(), 0.95f);
  EXPECT_EQ(parameters->min_p(), 0.05f);
  EXPECT_EQ(parameters->chain().preset(), v1::Chain::PRESET_LLAMA_CPP);
  EXPECT_FALSE(parameters->has_penalty_scope());
  EXPECT_FALSE(parameters->has_repetition_penalty());
}

TEST(LlamaParameters, ScopeBiasAndBans) {
  SamplingOptions options;
  options.penalty_present = 0.5f;
  options.logit_bias = {{7, 1.5f}, {9, -INFINITY}};
  const auto parameters = ToParameters(options);
  ASSERT_TRUE(parameters.ok());
  EXPECT_EQ(parameters->penalty_scope().window(), 64u);
  EXPECT_TRUE(parameters->penalty_scope().frequency_counts_prompt());
  ASSERT_EQ(parameters->logit_bias_size(), 1);
  EXPECT_EQ(parameters->logit_bias(0).token(), 7u);
  EXPECT_THAT(parameters->banned_token_ids(), ElementsAre(9));
  for (const int32_t off : {0, -1, -2}) {
    options.penalty_last_n = off;
    EXPECT_FALSE(ToParameters(options)->has_presence_penalty()) << off;
    EXPECT_FALSE(ToParameters(options)->has_penalty_scope()) << off;
  }
}

TEST(LlamaParameters, ReasoningBudgetIsAPhase) {
  SamplingOptions options;
  options.reasoning_budget_start = {7, 8};
  options.reasoning_budget_end = {9};
  EXPECT_EQ(ToParameters(options)->phases_size(), 0);
  for (const float temp : {0.0f, 0.8f}) {
    options.temp = temp;
    options.reasoning_budget_tokens = 20;
    options.reasoning_budget_forced = {5, 6, 9};
    const auto parameters = ToParameters(options);
    ASSERT_TRUE(parameters.ok()) << parameters.status();
    ASSERT_EQ(parameters->phases_size(), 1);
    EXPECT_THAT(parameters->phases(0).begin(), ElementsAre(7, 8));
    EXPECT_THAT(parameters->phases(0).end(), ElementsAre(9));
    EXPECT_THAT(parameters->phases(0).then(), ElementsAre(5, 6, 9));
    EXPECT_EQ(parameters->phases(0).max_tokens(), 20u);
  }
  options.reasoning_budget_forced = {-1};
  EXPECT_THAT(std::string(ToParameters(options).status().message()), HasSubstr("reasoning_budget_forced"));
  options.reasoning_budget_end.clear();
  EXPECT_THAT(std::string(ToParameters(options).status().message()), HasSubstr("reasoning_budget_end"));
  options.reasoning_budget_start.clear();
  EXPECT_THAT(std::string(ToParameters(options).status().message()), HasSubstr("reasoning_budget_start"));
}

TEST(LlamaParameters, UnsupportedSamplersAreNamed) {
  SamplingOptions options;
  options.logit_bias = {{-1, 1}};
  EXPECT_THAT(std::string(ToParameters(options).status().message()), HasSubstr("logit_bias"));
}

TEST(LlamaDecoder, BannedPhrasesAreRefused) {
  client::SequenceOptions options = Options();
  options.parameters.add_banned_phrases()->add_tokens(3);
  Decoder decoder(nullptr, options);
  EXPECT_THAT(std::string(decoder.Draw(Row(0).data(), kVocabulary).status().message()), HasSubstr("banned_phrases"));
}

// Returns a plain sequence's text in which each drawn token except the fourth is accepted.
std::vector<uint32_t> Write(Decoder* decoder, uint32_t from, uint32_t to) {
  std::vector<uint32_t> tokens;
  for (uint32_t step = from; step < to; ++step) {
    const auto drawn = decoder->Draw(Row(step).data(), kVocabulary);
    EXPECT_TRUE(drawn.ok()) << drawn.status();
    tokens.push_back(step == 4 ? 250 : drawn->token());
    EXPECT_TRUE(decoder->Accept(tokens.back()).ok());
  }
  return tokens;
}

TEST(LlamaParameters, ListInOtherOrderIsExplicit) {
  SamplingOptions options;
  options.samplers = {"penalties", "dry", "temperature", "min_p", "top_k"};
  options.penalty_freq = 0.3f;
  const auto parameters = ToParameters(options);
  ASSERT_TRUE(parameters.ok());
  EXPECT_THAT(parameters->chain().explicit_().samplers(), ElementsAre("temperature", "min_p", "top_k"));
  EXPECT_FALSE(parameters->has_top_p()) << "not in the list";
  EXPECT_EQ(parameters->frequency_penalty(), 0.3f);
}

TEST(LlamaParameters, DefaultListIsThePreset) {
  SamplingOptions options;
  options.samplers = {"penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"};
  const auto listed = ToParameters(options);
  ASSERT_TRUE(listed.ok());
  EXPECT_EQ(listed->SerializeAsString(), ToParameters(SamplingOptions{})->SerializeAsString());
}

TEST(LlamaParameters, UnlistedSamplersAreOff) {
  SamplingOptions options;
  options.samplers.emplace();
  options.penalty_repeat = 1.3f;
  const auto none = ToParameters(options);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->temperature(), 1);
  EXPECT_FALSE(none->has_top_k() || none->has_min_p() || none->has_repetition_penalty() || none->has_chain());

  options.samplers = {"adaptive_p", "temperature", "top_k"};
  options.adaptive_target = 0.4f;
  const auto adaptive = ToParameters(options);
  ASSERT_TRUE(adaptive.ok());
  EXPECT_THAT(adaptive->chain().explicit_().samplers(), ElementsAre("temperature", "top_k", "adaptive_p"));
}

TEST(LlamaParameters, MirostatOfAListHasNoPenalties) {
  SamplingOptions options;
  options.samplers = {"penalties", "temperature"};
  options.penalty_repeat = 1.3f;
  options.mirostat = 2;
  const auto parameters = ToParameters(options);
  ASSERT_TRUE(parameters.ok());
  EXPECT_EQ(parameters->mirostat().version(), 2u);
  EXPECT_FALSE(parameters->has_repetition_penalty());
}

TEST(LlamaParameters, ListsWithoutCounterpartAreRefused) {
  const auto message = [](SamplingOptions options, std::vector<std::string> list) {
    options.samplers = std::move(list);
    return std::string(ToParameters(options).status().message());
  };
  EXPECT_THAT(message({}, {"top_k", "infill"}), HasSubstr("infill"));
  EXPECT_THAT(message({}, {"top_k", "top_k"}), HasSubstr("samplers: top_k"));
  SamplingOptions penalised;
  penalised.penalty_repeat = 1.2f;
  EXPECT_THAT(message(penalised, {"top_k", "penalties"}), HasSubstr("samplers: penalties"));
  SamplingOptions greedy;
  greedy.temp = 0;
  greedy.xtc_probability = 0.5f;
  EXPECT_THAT(message(greedy, {"xtc", "temperature"}), HasSubstr("xtc_probability"));
  greedy.xtc_probability = 0;
  greedy.typ_p = 0.9f;
  EXPECT_THAT(message(greedy, {"typ_p", "temperature"}), HasSubstr("typical_p"));
}

TEST(LlamaParameters, MinKeepIsServedWhereFiltersLookAtIt) {
  SamplingOptions options;
  options.min_keep = 5;
  const auto kept = ToParameters(options);
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(kept->min_keep(), 5u);
  options.top_k = 3;
  EXPECT_THAT(std::string(ToParameters(options).status().message()), HasSubstr("min_keep"));
  options.top_k = 0;
  options.top_n_sigma = 1;
  EXPECT_THAT(std::string(ToParameters(options).status().message()), HasSubstr("min_keep"));
}

TEST(LlamaDecoder, EqualsPlainSequence) {
  client::SequenceOptions options = Options();
  options.request_id = "plain";
  options.vocabulary_size = kVocabulary;
  options.prompt = {3, 4, 3};
  const auto plain = client::LocalSequence::Open(options);
  ASSERT_TRUE(plain.ok()) << plain.status();
  std::vector<uint32_t> expected;
  for (uint32_t step = 0; step < 8; ++step) {
    const std::vector<float> row = Row(step);
    const auto result = (*plain)->Step(v1::DTYPE_F32, client::Row{nullptr, row.data()});
    expected.push_back(std::get<v1::DrawResult>(result).token());
    if (step == 4) {
      ASSERT_TRUE((*plain)->ReplaceLast(250).ok());
      expected.back() = 250;
    }
  }

  const auto client = client::Client::Connect({.in_process = client::InProcessEngine()});
  ASSERT_TRUE(client.ok());
  for (client::Client* through : {static_cast<client::Client*>(nullptr), client->get()}) {
    Decoder decoder(through, Options());
    for (uint32_t token : {3, 4, 3}) ASSERT_TRUE(decoder.Accept(token).ok());
    std::vector<uint32_t> written = Write(&decoder, 0, 6);
    const auto clone = decoder.Clone();
    // A draw that is not accepted leaves no trace.
    ASSERT_TRUE(decoder.Draw(Row(77).data(), kVocabulary).ok());
    for (Decoder* each : {&decoder, clone.get()}) {
      std::vector<uint32_t> text = written;
      for (uint32_t token : Write(each, 6, 8)) text.push_back(token);
      EXPECT_EQ(text, expected);
    }
    decoder.Reset();
    for (uint32_t token : {3, 4, 3}) ASSERT_TRUE(decoder.Accept(token).ok());
    EXPECT_EQ(Write(&decoder, 0, 8), expected);
  }
}

// Tokens accepted before a failed open, and after it, must belong to the prompt.
TEST(LlamaDecoder, FailedOpenKeepsPromptGrowing) {
  client::SequenceOptions options = Options();
  options.live_vocabulary_size = kVocabulary;
  Decoder decoder(nullptr, options);
  ASSERT_TRUE(decoder.Accept(3).ok());
  EXPECT_FALSE(decoder.Draw(Row(0).data(), kVocabulary - 1).ok()) << "a smaller vocabulary than the live one";
  for (uint32_t token : {4, 3}) ASSERT_TRUE(decoder.Accept(token).ok());
  Decoder other(nullptr, Options());
  for (uint32_t token : {3, 4, 3}) ASSERT_TRUE(other.Accept(token).ok());
  EXPECT_EQ(Write(&decoder, 0, 4), Write(&other, 0, 4));
}

// Drawn tokens of a decoder without a prompt must stay output in its clone, where penalties see them.
TEST(LlamaDecoder, CloneWithoutPromptHasNone) {
  client::SequenceOptions options;
  options.seed = 5;
  options.parameters.set_frequency_penalty(2);
  Decoder decoder(nullptr, options);
  Write(&decoder, 0, 12);
  const auto clone = decoder.Clone();
  EXPECT_EQ(Write(clone.get(), 12, 24), Write(&decoder, 12, 24));
}

TEST(LlamaDecoder, CloneContinuesMirostatOrReportsError) {
  client::SequenceOptions options;
  options.seed = 5;
  options.parameters.mutable_mirostat()->set_version(2);
  options.parameters.mutable_mirostat()->set_tau(2);
  options.parameters.mutable_mirostat()->set_eta(0.5f);
  Decoder local(nullptr, options);
  Write(&local, 0, 12);
  const auto clone = local.Clone();
  ASSERT_TRUE(local.Draw(Row(12).data(), kVocabulary).ok());
  const auto between = local.Clone();  // between a draw and its acceptance
  const std::vector<uint32_t> expected = Write(clone.get(), 12, 40);
  for (Decoder* each : {&local, between.get()}) {
    ASSERT_TRUE(each->Accept(expected[0]).ok());
    EXPECT_EQ(Write(each, 13, 40), std::vector<uint32_t>(expected.begin() + 1, expected.end()));
  }

  const auto client = client::Client::Connect({.in_process = client::InProcessEngine()});
  ASSERT_TRUE(client.ok());
  Decoder remote(client->get(), options);
  const auto early = remote.Clone();  // before there is a state
  const std::vector<uint32_t> begun = Write(&remote, 0, 2);
  EXPECT_EQ(Write(early.get(), 0, 2), begun);
  const auto lacking = remote.Clone();
  const auto refused = lacking->Clone()->Draw(Row(2).data(), kVocabulary);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("mirostat"));
  lacking->Reset();
  EXPECT_TRUE(lacking->Draw(Row(2).data(), kVocabulary).ok());
}

TEST(LlamaDecoder, DrawsAheadAreThePlainOnes) {
  const auto client = client::Client::Connect({.in_process = client::InProcessEngine()});
  ASSERT_TRUE(client.ok());
  std::vector<std::unique_ptr<Decoder>> ahead, plain;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    client::SequenceOptions options = Options();
    options.seed = seed;
    ahead.push_back(std::make_unique<Decoder>(seed == 3 ? nullptr : client->get(), options));
    plain.push_back(std::make_unique<Decoder>(nullptr, options));
  }
  for (uint32_t step = 0; step < 8; ++step) {
    std::vector<std::vector<float>> rows;
    for (uint32_t i = 0; i < 4; ++i) rows.push_back(Row(10 * i + step));
    if (step == 4) rows[1][8] = NAN;
    const std::vector<float> other = Row(99);
    std::vector<Decoder::NextRow> given, not_drawn;
    for (uint32_t i = 0; i < 4; ++i) {
      given.push_back({ahead[i].get(), rows[i].data(), {}});
      not_drawn.push_back({ahead[i].get(), other.data(), {}});
    }
    if (step == 5) Decoder::DrawAhead(not_drawn, kVocabulary);
    Decoder::DrawAhead(given, kVocabulary);
    for (uint32_t i = 0; i < 4; ++i) {
      const float* row = step == 6 && i == 2 ? other.data() : rows[i].data();  // another row than was told
      auto drawn = ahead[i]->Draw(row, kVocabulary);
      if (step == 4 && i == 1) {
        EXPECT_EQ(client::ErrorOf(drawn.status())->reason, v1::LOGIT_NAN);
        drawn = ahead[i]->Draw(other.data(), kVocabulary);
        row = other.data();
      }
      const auto expected = plain[i]->Draw(row, kVocabulary);
      ASSERT_TRUE(drawn.ok() && expected.ok());
      EXPECT_EQ(drawn->token(), expected->token()) << "decoder " << i << ", step " << step;
      ASSERT_TRUE(ahead[i]->Accept(drawn->token()).ok() && plain[i]->Accept(drawn->token()).ok());
    }
  }
}

// Each step has four rows and three drafts. Drafts are the text of a plain decoder, of which some are made wrong.
TEST(LlamaDecoder, DraftsAheadKeepTexts) {
  constexpr uint32_t kDrafts = 3, kSteps = 24;
  const auto client = client::Client::Connect({.in_process = client::InProcessEngine()});
  ASSERT_TRUE(client.ok());
  Decoder plain(nullptr, Options());
  std::vector<uint32_t> text;
  for (uint32_t i = 0; i < kSteps + kDrafts; ++i) {
    text.push_back(plain.Draw(Row(i).data(), kVocabulary)->token());
    ASSERT_TRUE(plain.Accept(text.back()).ok());
  }
  Decoder ahead(client->get(), Options());
  uint32_t at = 0, from_ahead = 0;
  for (uint32_t step = 0; at < kSteps; ++step) {
    std::vector<float> rows;
    for (uint32_t i = 0; i <= kDrafts; ++i) {
      const std::vector<float> row = Row(at + i);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    std::vector<uint32_t> drafts(text.begin() + at, text.begin() + at + kDrafts);
    const uint32_t right = step % (kDrafts + 1);
    if (right < kDrafts) drafts[right] ^= 1;
    if (step == 2) rows[kDrafts * kVocabulary] = NAN;  // behind the wrong draft
    const Decoder::NextRow next{&ahead, rows.data(), drafts};
    Decoder::DrawAhead({&next, 1}, kVocabulary);
    if (step != 2) std::fill(rows.begin(), rows.end(), NAN);  // the rows are not looked at again
    const uint32_t taken = step == 5 ? 1 : right + 1;         // the engine may stop before
    for (uint32_t i = 0; i < taken; ++i) {
      const auto drawn = ahead.Draw(&rows[i * kVocabulary], kVocabulary);
      ASSERT_TRUE(drawn.ok()) << drawn.status();
      ASSERT_EQ(drawn->token(), text[at]) << "step " << step;
      ASSERT_TRUE(ahead.Accept(drawn->token()).ok());
      ++at;
      from_ahead += step != 2;
    }
  }
  EXPECT_GT(from_ahead, kSteps / 2);
}

TEST(LlamaDecoder, AnotherTokenThanTheOneAheadCutsTheRest) {
  const auto client = client::Client::Connect({.in_process = client::InProcessEngine()});
  ASSERT_TRUE(client.ok());
  Decoder plain(nullptr, Options()), ahead(client->get(), Options());
  const uint32_t first = plain.Draw(Row(0).data(), kVocabulary)->token();
  std::vector<float> rows = Row(0);
  const std::vector<float> second = Row(1);
  rows.insert(rows.end(), second.begin(), second.end());
  const Decoder::NextRow next{&ahead, rows.data(), {&first, 1}};
  Decoder::DrawAhead({&next, 1}, kVocabulary);
  ASSERT_EQ(ahead.Draw(rows.data(), kVocabulary)->token(), first);
  // The second row is drawn at the first position, as nothing is accepted; then another token is.
  EXPECT_EQ(ahead.Draw(&rows[kVocabulary], kVocabulary)->token(), plain.Draw(second.data(), kVocabulary)->token());
  Decoder::DrawAhead({&next, 1}, kVocabulary);
  for (Decoder* decoder : {&plain, &ahead}) ASSERT_TRUE(decoder->Accept(first ^ 1).ok());
  EXPECT_EQ(ahead.Draw(&rows[kVocabulary], kVocabulary)->token(), plain.Draw(second.data(), kVocabulary)->token());
}

TEST(LlamaDecoder, FailedDrawReportsReason) {
  client::SequenceOptions options;
  options.parameters.set_top_p(7);
  Decoder wrong(nullptr, options);
  const auto refused = wrong.Draw(Row(0).data(), kVocabulary);
  ASSERT_TRUE(client::ErrorOf(refused.status()).has_value());
  EXPECT_EQ(client::ErrorOf(refused.status())->field, "open.parameters.top_p");

  Decoder decoder(nullptr, Options());
  std::vector<float> bad = Row(1);
  bad[8] = NAN;
  EXPECT_EQ(client::ErrorOf(decoder.Draw(bad.data(), kVocabulary).status())->reason, v1::LOGIT_NAN);
  EXPECT_TRUE(decoder.Draw(Row(1).data(), kVocabulary).ok());
}

}  // namespace
}  // namespace sortition::engines::llama_cpp::llama_core_test
