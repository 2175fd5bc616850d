// Rows that are larger than a message may be: they fail alone, or travel in more messages, and the stream lives on.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "service/memory/ring.h"
#include "sortition/client.h"
#include "tests/client/rows.h"
#include "tests/server/test_server.h"

namespace sortition::server::large_rows_test {
namespace {

using client::RowError;
using testing::MakeRow;

std::vector<std::unique_ptr<client::Sequence>> Open(client::Client* client, uint32_t count, uint32_t vocabulary) {
  std::vector<std::unique_ptr<client::Sequence>> sequences;
  for (uint32_t i = 0; i < count; ++i) {
    client::SequenceOptions options;
    options.request_id = absl::StrCat("r", i);
    options.vocabulary_size = vocabulary;
    auto opened = client->Open(options);
    EXPECT_TRUE(opened.ok()) << opened.status();
    sequences.push_back(*std::move(opened));
  }
  return sequences;
}

std::unique_ptr<client::Client> Connect(client::ClientOptions options) {
  options.default_timeout = absl::Seconds(20);
  options.rows.form = client::RowFormOptions::Form::kFull;
  auto client = client::Client::Connect(options);
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

TEST(LargeRowsTest, RowBeyondMessageLimitFailsAlone) {
  constexpr uint32_t kVocabulary = 8192;
  constexpr size_t kScored = 12;  // three times the most of a message
  Config config = TestConfig();
  config.limits.max_message_bytes = 128 << 10;
  TestServer server(config);
  client::ClientOptions options;
  options.targets = {server.target()};
  const auto client = Connect(options);
  const auto sequences = Open(client.get(), 2, kVocabulary);
  std::vector<std::byte> rows;
  for (size_t i = 0; i < kScored; ++i) {
    const auto row = MakeRow(v1::DTYPE_F32, kVocabulary, i);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  const std::vector<uint32_t> scored(kScored, 1);
  client::Row large{sequences[0].get(), rows.data()};
  large.scored = scored;
  const auto outcomes = client->Step({v1::DTYPE_F32, kVocabulary, {large, {sequences[1].get(), rows.data()}}});
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  const auto* const error = std::get_if<RowError>(&outcomes->front());
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->reason, v1::TOO_MANY) << client::Describe(*error);
  EXPECT_EQ(error->limit, "<= 131072 bytes");
  EXPECT_TRUE(std::holds_alternative<v1::DrawResult>(outcomes->back()));
  EXPECT_EQ(server.observer().totals().steps, 1) << "nobody else is told of it";
}

// Copies find no room, and four rows with their messages are more than a ring takes at once.
TEST(LargeRowsTest, RowsBeyondRingMessageAreSplit) {
  constexpr uint32_t kVocabulary = 131072;
  static_assert(4 * kVocabulary * sizeof(float) == service::kMostRingMessageBytes);
  Config config = TestConfig();
  config.memory_listen = absl::StrCat("unix:", ::testing::TempDir(), "sortition_", getpid(), "_large");
  TestServer server(config);
  client::ClientOptions options;
  options.targets = {config.memory_listen};
  options.transport.kind = client::TransportKind::kRing;
  options.transport.shared_memory_bytes = 4096;
  const auto client = Connect(options);
  const auto sequences = Open(client.get(), 5, kVocabulary);
  const auto row = MakeRow(v1::DTYPE_F32, kVocabulary, 1);
  client::Batch batch{v1::DTYPE_F32, kVocabulary, {}};
  for (const auto& sequence : sequences) batch.rows.push_back({sequence.get(), row.data()});
  const auto outcomes = client->Step(batch);
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  for (const client::RowResult& outcome : *outcomes) {
    const auto* const error = std::get_if<RowError>(&outcome);
    EXPECT_EQ(error, nullptr) << client::Describe(*error);
  }
  EXPECT_EQ(server.observer().totals().steps, 3) << "on one stream";
}

// Lists count as fields of the message, which may have fewer bytes than payloads.
TEST(LargeRowsTest, RowsBeyondMostFieldBytesAreSplit) {
  constexpr uint32_t kVocabulary = 65536;
  const std::vector<uint32_t> drafts = {7, 8, 9, 10};
  Config config = TestConfig();
  config.limits.max_message_bytes = 64 << 20;
  TestServer server(config);
  client::ClientOptions options;
  options.targets = {server.target()};
  options.limits.message_bytes = config.limits.max_message_bytes;
  const auto client = Connect(options);
  const auto sequences = Open(client.get(), 8, kVocabulary);
  v1::SparseProbabilities list;
  for (uint32_t token = 0; token < kVocabulary; ++token) {
    list.add_tokens(token);
    list.add_probabilities(1.0f / kVocabulary);
  }
  const std::vector<v1::SparseProbabilities> lists(drafts.size(), list);
  ASSERT_GT(sequences.size() * lists.size() * list.ByteSizeLong(), service::kMaxFieldBytes);
  client::Drafts drafted;
  drafted.mode = v1::VERIFY_MODE_REJECTION;
  drafted.tokens = drafts;
  drafted.sparse_probabilities = lists;
  const std::vector<float> logits((drafts.size() + 1) * kVocabulary);
  client::Batch batch{v1::DTYPE_F32, kVocabulary, {}};
  for (const auto& sequence : sequences) {
    batch.rows.push_back({sequence.get(), logits.data()});
    batch.rows.back().drafts = &drafted;
  }
  const auto outcomes = client->Step(batch);
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  for (const client::RowResult& outcome : *outcomes) {
    const auto* const error = std::get_if<RowError>(&outcome);
    EXPECT_TRUE(std::holds_alternative<v1::VerifyResult>(outcome)) << (error ? client::Describe(*error) : "a draw");
  }
  EXPECT_EQ(server.observer().totals().steps, sequences.size()) << "two rows have more than a message may";
}

}  // namespace
}  // namespace sortition::server::large_rows_test
