// Tokens and logprob bits over a real connection equal the plain reference's.
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/rows.h"
#include "tests/e2e/servers.h"
#include "tests/e2e/texts.h"
#include "tests/support/scale.h"

namespace sortition::testing::wire_test {
namespace {

TEST(WireTest, TextsEqualReference) {
  const auto server = StartServer();
  const auto client = Connect(QuickOptions({server->address()}));
  EXPECT_FALSE(client->in_process());
  Texts texts(client.get(), "text");
  for (int step = 0; step < 20; ++step) ASSERT_NO_FATAL_FAILURE(texts.Step());
  EXPECT_TRUE(server->Stop(absl::Seconds(20)).ok());
}

TEST(WireTest, ConcurrentBatchesEqualReference) {
  const auto server = StartServer({"--stream_threads=2"});
  const auto client = Connect(QuickOptions({server->address()}));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Texts left(client.get(), absl::StrCat("left ", t), 4);
      Texts right(client.get(), absl::StrCat("right ", t), 3);
      for (int step = 0; step < 15 && !::testing::Test::HasFatalFailure(); ++step) {
        left.Begin();
        right.Begin();
        left.End();
        right.End();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A batch of 20 MB, more than a server takes in one message, of rows as wide as large models'.
TEST(WireTest, BatchBeyondMessageLimitIsSplit) {
  constexpr uint32_t kVocabulary = 128256;
  constexpr int kRows = 40;
  const auto server = StartServer();
  client::ClientOptions whole = QuickOptions({server->address()});
  whole.rows.form = client::RowFormOptions::Form::kFull;
  const auto client = Connect(std::move(whole));
  std::vector<std::unique_ptr<client::Sequence>> sequences;
  std::vector<std::vector<std::byte>> rows;
  client::Batch batch{v1::DTYPE_F32, kVocabulary, {}};
  v1::SamplingParameters parameters;
  parameters.mutable_raw_logprobs()->set_top(1);
  for (int i = 0; i < kRows; ++i) {
    client::SequenceOptions options;
    options.request_id = absl::StrCat("row ", i);
    options.vocabulary_size = kVocabulary;
    options.parameters = parameters;
    options.seed = static_cast<uint64_t>(i);
    auto opened = client->Open(options);
    ASSERT_TRUE(opened.ok()) << opened.status();
    sequences.push_back(*std::move(opened));
    rows.push_back(MakeRow(v1::DTYPE_F32, kVocabulary, static_cast<uint64_t>(i)));
    batch.rows.push_back({sequences.back().get(), rows.back().data()});
  }
  const auto outcomes = client->Step(batch);
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  for (size_t i = 0; i < kRows; ++i) {
    const auto* draw = std::get_if<v1::DrawResult>(&(*outcomes)[i]);
    ASSERT_NE(draw, nullptr) << client::Describe(std::get<client::RowError>((*outcomes)[i]));
    if (i >= Scaled(kRows)) continue;  // the reference takes its time
    ReferenceSequence reference(parameters, i, 0, kVocabulary, kVocabulary, {});
    EXPECT_EQ(Bits(*draw), Bits(reference.Step(v1::DTYPE_F32, rows[i].data()))) << "row " << i;
  }
}

TEST(WireTest, ServersRefusalsArriveTyped) {
  const auto server = StartServer();
  const auto client = Connect(QuickOptions({server->address()}));
  client::SequenceOptions options;
  options.request_id = std::string("refused");
  options.vocabulary_size = 10;
  options.parameters.set_typical_p(2);
  const auto sequence = client->Open(options);
  ASSERT_FALSE(sequence.ok());
  EXPECT_EQ(sequence.status().code(), absl::StatusCode::kOutOfRange);
  const auto error = client::ErrorOf(sequence.status());
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->reason, v1::OUT_OF_RANGE);
  EXPECT_EQ(error->field, "open.parameters.typical_p");
}

// A target like the name of several replicas, one of them gone.
TEST(WireTest, TargetWithSeveralAddressesFindsListener) {
  const auto server = StartServer({});
  const std::string& live = server->address();
  const auto client = client::Client::Connect(QuickOptions({absl::StrCat("ipv4:127.0.0.1:", UnusedPort(), ",", live)}));
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ((*client)->transport_in_use().kind, client::TransportKind::kGrpc);
}

TEST(WireTest, AbsentServerErrorNamesTarget) {
  const std::string target = absl::StrCat("127.0.0.1:", UnusedPort());
  const auto client = client::Client::Connect(QuickOptions({target}));
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(client.status().message()), ::testing::HasSubstr(target));
}

}  // namespace
}  // namespace sortition::testing::wire_test
