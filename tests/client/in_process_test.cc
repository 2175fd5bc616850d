// The whole client with the service's core in this process: every token and logprob equals the plain reference's.
#include "sortition/in_process.h"

#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sortition/client.h"
#include "tests/client/reference_sequence.h"
#include "tests/client/rows.h"
#include "tests/support/scale.h"

namespace sortition::testing::in_process_test {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kVocabulary = 1000;
constexpr uint32_t kLive = 990;

std::unique_ptr<client::Client> InProcess(client::ClientOptions options = {}) {
  options.in_process = client::InProcessEngine();
  auto client = client::Client::Connect(std::move(options));
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

v1::SamplingParameters MixedParameters(std::mt19937_64& random) {
  v1::SamplingParameters parameters;
  const auto chance = [&] { return random() % 2 == 0; };
  if (chance()) parameters.set_temperature(random() % 4 == 0 ? 0.0f : 0.3f + static_cast<float>(random() % 10) / 8);
  if (chance()) parameters.set_top_k(static_cast<uint32_t>(random() % 60));
  if (chance()) parameters.set_top_p(0.5f + static_cast<float>(random() % 50) / 100);
  if (chance()) parameters.set_min_p(static_cast<float>(random() % 20) / 100);
  if (chance()) parameters.set_repetition_penalty(1 + static_cast<float>(random() % 10) / 10);
  if (chance()) parameters.set_frequency_penalty(static_cast<float>(random() % 10) / 10);
  if (chance()) parameters.set_presence_penalty(static_cast<float>(random() % 10) / 10 - 0.5f);
  if (chance()) parameters.mutable_raw_logprobs()->set_top(static_cast<uint32_t>(random() % 5));
  if (chance()) parameters.mutable_processed_logprobs()->set_top(static_cast<uint32_t>(random() % 5));
  if (chance()) {
    v1::LogitBias& bias = *parameters.add_logit_bias();
    bias.set_token(static_cast<uint32_t>(random() % kLive));
    bias.set_bias(4);
  }
  if (chance()) parameters.add_banned_token_ids(static_cast<uint32_t>(random() % kLive));
  return parameters;
}

// A sequence of the client and the same one of the reference, stepped together.
struct Pair {
  std::unique_ptr<client::Sequence> sequence;
  std::unique_ptr<ReferenceSequence> reference;
};

Pair OpenPair(client::Client& client, const std::string& id, const v1::SamplingParameters& parameters) {
  client::SequenceOptions options;
  options.request_id = id;
  options.parameters = parameters;
  options.choice_index = 3;
  options.vocabulary_size = kVocabulary;
  options.live_vocabulary_size = kLive;
  options.prompt = {5, 6, 7, 5};
  auto sequence = client.Open(options);
  EXPECT_TRUE(sequence.ok()) << sequence.status();
  Pair pair{*std::move(sequence), nullptr};
  pair.reference = std::make_unique<ReferenceSequence>(parameters, pair.sequence->seed(), options.choice_index,
                                                       kVocabulary, kLive, options.prompt);
  return pair;
}

// Rewrites the history sometimes.
void RewriteSometimes(std::mt19937_64& random, Pair& pair) {
  std::vector<uint32_t> tokens = pair.reference->tokens();
  uint32_t prompt_length = pair.reference->prompt_length();
  switch (random() % 12) {
    case 0: {
      const uint32_t token = static_cast<uint32_t>(random() % kLive);
      ASSERT_TRUE(pair.sequence->ReplaceLast(token).ok());
      tokens.back() = token;
      break;
    }
    case 1: {
      const uint32_t forced[] = {1, 2, static_cast<uint32_t>(random() % kLive)};
      ASSERT_TRUE(pair.sequence->Append(forced).ok());
      tokens.insert(tokens.end(), std::begin(forced), std::end(forced));
      break;
    }
    case 2: {
      const uint32_t position = 1 + static_cast<uint32_t>(random() % tokens.size());
      ASSERT_TRUE(pair.sequence->Truncate(position).ok());
      tokens.resize(position);
      prompt_length = std::min(prompt_length, position);
      break;
    }
    default:
      return;
  }
  // Replacing the prompt's last token leaves a shorter prompt.
  if (tokens.size() == prompt_length && tokens != pair.reference->tokens() &&
      tokens.size() == pair.reference->tokens().size()) {
    --prompt_length;
  }
  pair.reference->SetTokens(tokens, prompt_length);
}

TEST(InProcessTest, DrawsEqualReferenceWithRewritesMasksSalts) {
  std::mt19937_64 random(20);
  const auto client = InProcess();
  ASSERT_TRUE(client->in_process());
  const uint64_t rounds = Scaled(40);
  for (uint64_t round = 0; round < rounds; ++round) {
    const v1::DType dtype = static_cast<v1::DType>(v1::DTYPE_F32 + random() % 3);
    std::vector<Pair> pairs;
    for (int i = 0; i < 6; ++i) pairs.push_back(OpenPair(*client, absl::StrCat("r", i), MixedParameters(random)));
    for (int step = 0; step < 8; ++step) {
      std::vector<std::vector<std::byte>> rows;
      std::vector<std::vector<uint32_t>> masks(pairs.size());
      client::Batch batch{dtype, kVocabulary, {}};
      for (size_t i = 0; i < pairs.size(); ++i) {
        ASSERT_NO_FATAL_FAILURE(RewriteSometimes(random, pairs[i]));
        rows.push_back(MakeRow(dtype, kVocabulary, random()));
        client::Row row{pairs[i].sequence.get(), rows[i].data()};
        if (random() % 3 == 0) row.draw_salt = static_cast<uint32_t>(random() % 65536);
        if (random() % 3 == 0) {
          for (uint32_t word = 0; word < (kVocabulary + 31) / 32; ++word)
            masks[i].push_back(static_cast<uint32_t>(random()));
          row.allowed_bits = masks[i].data();
        }
        batch.rows.push_back(row);
      }
      const auto results = client->Step(batch);
      ASSERT_TRUE(results.ok()) << results.status();
      for (size_t i = 0; i < pairs.size(); ++i) {
        const auto* draw = std::get_if<v1::DrawResult>(&(*results)[i]);
        ASSERT_NE(draw, nullptr) << client::Describe(std::get<client::RowError>((*results)[i]));
        const client::Row& row = batch.rows[i];
        const v1::DrawResult expected = pairs[i].reference->Step(dtype, row.logits, row.draw_salt, row.allowed_bits);
        ASSERT_EQ(Bits(*draw), Bits(expected)) << "round " << round << " step " << step << " row " << i;
        EXPECT_EQ(pairs[i].sequence->position(), pairs[i].reference->tokens().size());
        if (pairs[i].sequence->stateful()) {
          EXPECT_EQ(pairs[i].sequence->tokens(), pairs[i].reference->tokens());
        }
      }
    }
  }
}

TEST(InProcessTest, ConcurrentBatchesEqualReference) {
  const auto client = InProcess();
  constexpr int kThreads = 4;
  const int steps = static_cast<int>(Scaled(30));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      std::vector<Pair> pairs;
      for (int i = 0; i < 4; ++i)
        pairs.push_back(OpenPair(*client, absl::StrCat("t", t, ".", i), MixedParameters(random)));
      for (int step = 0; step < steps; ++step) {
        // Two batches at once from this thread, of two sequences each.
        std::vector<std::vector<std::byte>> rows;
        for (size_t i = 0; i < pairs.size(); ++i) rows.push_back(MakeRow(v1::DTYPE_BF16, kVocabulary, random()));
        std::vector<client::RowResult> results[2];
        absl::BlockingCounter over(2);
        for (size_t b = 0; b < 2; ++b) {
          client::Batch batch{v1::DTYPE_BF16, kVocabulary, {}};
          for (size_t i = 2 * b; i < 2 * b + 2; ++i) batch.rows.push_back({pairs[i].sequence.get(), rows[i].data()});
          ASSERT_TRUE(client
                          ->StepAsync(batch, {},
                                      [&, b](std::vector<client::RowResult> result) {
                                        results[b] = std::move(result);
                                        over.DecrementCount();
                                      })
                          .ok());
        }
        over.Wait();
        for (size_t i = 0; i < pairs.size(); ++i) {
          const auto* draw = std::get_if<v1::DrawResult>(&results[i / 2][i % 2]);
          ASSERT_NE(draw, nullptr);
          ASSERT_EQ(Bits(*draw), Bits(pairs[i].reference->Step(v1::DTYPE_BF16, rows[i].data())));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(InProcessTest, StridedMatrixIsReadRowByRow) {
  const auto client = InProcess();
  std::vector<Pair> pairs;
  for (int i = 0; i < 3; ++i) pairs.push_back(OpenPair(*client, absl::StrCat("r", i), {}));
  constexpr size_t kStride = kVocabulary * sizeof(float) + 64;
  std::vector<std::byte> matrix(2 * kStride + kVocabulary * sizeof(float));  // ends with the last row
  for (size_t i = 0; i < 3; ++i) {
    const auto row = MakeRow(v1::DTYPE_F32, kVocabulary, i);
    std::memcpy(matrix.data() + i * kStride, row.data(), row.size());
  }
  client::Sequence* const sequences[] = {pairs[0].sequence.get(), pairs[1].sequence.get(), pairs[2].sequence.get()};
  const auto results =
      client->Step(client::Batch::FromMatrix(v1::DTYPE_F32, kVocabulary, matrix.data(), kStride, sequences));
  ASSERT_TRUE(results.ok()) << results.status();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Bits(std::get<v1::DrawResult>((*results)[i])),
              Bits(pairs[i].reference->Step(v1::DTYPE_F32, matrix.data() + i * kStride)));
  }
}

TEST(InProcessTest, UnusableRowFailsAloneKeepsPosition) {
  const auto client = InProcess();
  v1::SamplingParameters stateful;
  stateful.set_presence_penalty(1);
  Pair bad = OpenPair(*client, "bad", stateful);
  Pair good = OpenPair(*client, "good", stateful);
  std::vector<float> nan_row(kVocabulary, std::numeric_limits<float>::quiet_NaN());
  const auto row = MakeRow(v1::DTYPE_F32, kVocabulary, 1);
  client::Batch batch{
      v1::DTYPE_F32, kVocabulary, {{bad.sequence.get(), nan_row.data()}, {good.sequence.get(), row.data()}}};
  auto results = client->Step(batch);
  ASSERT_TRUE(results.ok());
  EXPECT_EQ(std::get<client::RowError>((*results)[0]).reason, v1::LOGIT_NAN);
  EXPECT_EQ(bad.sequence->position(), 4);
  EXPECT_EQ(Bits(std::get<v1::DrawResult>((*results)[1])), Bits(good.reference->Step(v1::DTYPE_F32, row.data())));
  batch.rows = {{bad.sequence.get(), row.data()}};
  results = client->Step(batch);
  ASSERT_TRUE(results.ok());
  EXPECT_EQ(Bits(std::get<v1::DrawResult>((*results)[0])), Bits(bad.reference->Step(v1::DTYPE_F32, row.data())));
}

TEST(InProcessTest, WrongWidthIsAnErrorOfItsRow) {
  const auto client = InProcess();
  const Pair pair = OpenPair(*client, "r", {});
  const auto row = MakeRow(v1::DTYPE_F32, kVocabulary + 1, 1);
  const auto results = client->Step({v1::DTYPE_F32, kVocabulary + 1, {{pair.sequence.get(), row.data()}}});
  ASSERT_TRUE(results.ok());
  EXPECT_EQ(std::get<client::RowError>((*results)[0]).reason, v1::VOCABULARY_MISMATCH);
}

TEST(InProcessTest, RefusedStepNamesFieldAsServerDoes) {
  const auto client = InProcess();
  const Pair pair = OpenPair(*client, "r", {});
  const auto row = MakeRow(v1::DTYPE_F32, kVocabulary, 1);
  const auto refusal = [&](const client::StepOptions& options) {
    const auto results = client->Step({v1::DTYPE_F32, kVocabulary, {{pair.sequence.get(), row.data()}}}, options);
    EXPECT_TRUE(results.ok()) << results.status();
    return std::get<client::RowError>((*results)[0]);
  };
  client::StepOptions options;
  options.priority = 101;
  EXPECT_EQ(refusal(options).field, "step.priority");
  EXPECT_EQ(refusal(options).reason, v1::OUT_OF_RANGE);
  options.priority = 100;
  options.traceparent = "00-0";
  EXPECT_EQ(refusal(options).field, "step.trace.traceparent");
  EXPECT_EQ(pair.sequence->position(), 4);
}

TEST(InProcessTest, ResultsCarrySamplersState) {
  const auto client = InProcess();
  v1::SamplingParameters parameters;
  parameters.mutable_mirostat()->set_version(2);
  parameters.mutable_mirostat()->set_tau(3);
  const Pair pair = OpenPair(*client, "r", parameters);
  const Pair plain = OpenPair(*client, "plain", {});
  const auto row = MakeRow(v1::DTYPE_F32, kVocabulary, 1);
  const uint32_t scored[] = {5};
  client::Batch batch{
      v1::DTYPE_F32, kVocabulary, {{pair.sequence.get(), row.data()}, {plain.sequence.get(), row.data()}}};
  batch.rows[0].scored = scored;
  auto results = client->Step(batch);
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_FALSE(std::get<v1::ScoreResult>((*results)[0]).checkpoint().empty());
  EXPECT_TRUE(std::get<v1::DrawResult>((*results)[1]).checkpoint().empty());
  batch.rows[0].scored = {};
  results = client->Step(batch);
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_FALSE(std::get<v1::DrawResult>((*results)[0]).checkpoint().empty());
}

TEST(InProcessTest, RefusedOpenNamesFieldAndLimit) {
  const auto client = InProcess();
  client::SequenceOptions options;
  options.request_id = "r";
  options.vocabulary_size = kVocabulary;
  options.parameters.set_top_p(1.5);
  const auto sequence = client->Open(options);
  ASSERT_FALSE(sequence.ok());
  EXPECT_EQ(sequence.status().code(), absl::StatusCode::kOutOfRange);
  const auto error = client::ErrorOf(sequence.status());
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->field, "open.parameters.top_p");
  EXPECT_FALSE(error->limit.empty());
  options.parameters.set_top_p(0.5);
  EXPECT_TRUE(client->Open(options).ok()) << "the id of a refused sequence is free again";
}

TEST(InProcessTest, RequestIdIsUniqueAmongOpenSequences) {
  const auto client = InProcess();
  Pair first = OpenPair(*client, "r", {});
  client::SequenceOptions options;
  options.request_id = "r";
  options.vocabulary_size = kVocabulary;
  EXPECT_EQ(client->Open(options).status().code(), absl::StatusCode::kAlreadyExists);
  first.sequence.reset();
  EXPECT_TRUE(client->Open(options).ok());
}

TEST(InProcessTest, SequenceWithoutStateMayStartAnywhere) {
  const auto client = InProcess();
  client::SequenceOptions options;
  options.request_id = "r";
  options.vocabulary_size = kVocabulary;
  options.seed = 9;
  options.start_position = 4;
  const auto sequence = client->Open(options);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  const auto row = MakeRow(v1::DTYPE_F32, kVocabulary, 1);
  const auto results = client->Step({v1::DTYPE_F32, kVocabulary, {{sequence->get(), row.data()}}});
  ASSERT_TRUE(results.ok());
  ReferenceSequence reference({}, 9, 0, kVocabulary, kVocabulary, {1, 2, 3, 4});
  EXPECT_EQ(Bits(std::get<v1::DrawResult>((*results)[0])), Bits(reference.Step(v1::DTYPE_F32, row.data())));

  options.request_id = "stateful";
  options.parameters.set_presence_penalty(1);
  const absl::Status refused = client->Open(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the prompt is needed"));
}

TEST(InProcessTest, InvalidCallsAreRefusedAtOnce) {
  const auto client = InProcess();
  const auto other = InProcess();
  const Pair pair = OpenPair(*client, "r", {});
  const auto row = MakeRow(v1::DTYPE_F32, kVocabulary, 1);
  const client::Row good{pair.sequence.get(), row.data()};
  const auto refusal = [](client::Client& asked, const client::Batch& batch) {
    const absl::Status status = asked.Step(batch).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal(*client, {v1::DTYPE_F32, kVocabulary, {}}), HasSubstr("rows"));
  EXPECT_THAT(refusal(*client, {v1::DTYPE_UNSPECIFIED, kVocabulary, {good}}), HasSubstr("dtype"));
  EXPECT_THAT(refusal(*client, {v1::DTYPE_F32, 0, {good}}), HasSubstr("vocabulary_size"));
  EXPECT_THAT(refusal(*client, {v1::DTYPE_F32, kVocabulary, {good, {nullptr, row.data()}}}),
              HasSubstr("rows[1].sequence"));
  EXPECT_THAT(refusal(*client, {v1::DTYPE_F32, kVocabulary, {{pair.sequence.get(), nullptr}}}),
              HasSubstr("rows[0].logits"));
  EXPECT_THAT(refusal(*other, {v1::DTYPE_F32, kVocabulary, {good}}), HasSubstr("another client"));
  EXPECT_THAT(std::string(other->Fork(*pair.sequence, {}).status().message()), HasSubstr("another client"));
  EXPECT_EQ(client->AllocateRows(UINT64_MAX).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pair.sequence->position(), 4);

  EXPECT_EQ(pair.sequence->ReplaceLast(kLive).code(), absl::StatusCode::kOutOfRange);
  const uint32_t tokens[] = {1, kLive};
  EXPECT_EQ(pair.sequence->Append(tokens).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(pair.sequence->position(), 4);

  EXPECT_EQ(client::Client::Connect({}).status().code(), absl::StatusCode::kInvalidArgument);
  client::ClientOptions options;
  options.in_process = client::InProcessEngine();
  options.limits.history_piece_tokens = 0;
  EXPECT_THAT(std::string(client::Client::Connect(options).status().message()), HasSubstr("history_piece_tokens"));
}

TEST(InProcessTest, SequenceMayOutliveItsClient) {
  auto client = InProcess();
  Pair pair = OpenPair(*client, "r", {});
  client.reset();
  EXPECT_EQ(pair.sequence->position(), 4);
}

}  // namespace
}  // namespace sortition::testing::in_process_test
