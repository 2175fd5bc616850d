// The receipts of one text with whole rows, compact rows and shards are equal, except the names of chain and step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "service/receipt/receipt_key.h"
#include "sortition/client.h"
#include "tests/server/server_process.h"

namespace sortition::testing::receipt_forms_test {
namespace {

using client::Client;
using client::ClientOptions;
using server::ServerProcess;
using service::Receipt;

constexpr uint32_t kVocabulary = 600;
constexpr uint32_t kSplit = 333;  // within a group of the kernels
constexpr size_t kTokens = 20;

// The receipts of one text as its worker has them.
struct Text {
  std::string records;
  std::string seed_line;
  std::vector<Receipt> receipts;
};

std::vector<Receipt> ReceiptsOf(std::string_view records) {
  std::vector<Receipt> receipts;
  while (!records.empty()) {
    uint32_t length = 0;
    std::memcpy(&length, records.data() + 1, sizeof(length));
    const std::string_view body = records.substr(service::kRecordHeaderBytes, length);
    if (records[0] == static_cast<char>(service::ReceiptRecord::kReceipt)) {
      receipts.push_back(service::DecodeReceipt(body).value());
    }
    records.remove_prefix(service::kRecordHeaderBytes + length);
  }
  return receipts;
}

class ReceiptForms : public ::testing::Test {
 protected:
  ReceiptForms() {
    std::mt19937_64 random(5);
    for (float& x : logits_) x = float(random() % 8192) / 512;
  }

  std::unique_ptr<Client> Connect(client::RowFormOptions::Form form,
                                  std::optional<client::VocabularyShard> shard = {}) {
    ClientOptions options;
    options.targets = {server_.Serving("listen")};
    options.transport.kind = client::TransportKind::kGrpc;
    options.rows = {form, 64};
    if (shard) options.worker_session = "ranks";
    options.shard = shard;
    auto connected = Client::Connect(options);
    EXPECT_TRUE(connected.ok()) << connected.status();
    return *std::move(connected);
  }
  std::unique_ptr<client::Sequence> Open(Client* client, std::shared_ptr<client::ReceiptLog> log) {
    client::SequenceOptions options;
    options.request_id = "text";
    options.vocabulary_size = kVocabulary;
    options.live_vocabulary_size = kVocabulary - 7;
    options.prompt = {1, 2};
    options.seed = 99;
    options.parameters.set_temperature(0.8f);
    options.parameters.set_top_k(8);
    options.parameters.set_top_p(0.95f);
    options.parameters.set_repetition_penalty(1.2f);
    options.receipts = std::move(log);
    auto opened = client->Open(options);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }
  // Draws the text from `width` tokens of each row, beginning with token `first`.
  void Draw(Client* client, client::Sequence* sequence, uint32_t first, uint32_t width) {
    for (size_t i = 0; i < kTokens; ++i) {
      const float* const row = logits_.data() + i * kVocabulary + first;
      const auto results = client->Step({v1::DTYPE_F32, width, {{sequence, row}}});
      ASSERT_TRUE(results.ok()) << results.status();
      ASSERT_TRUE(std::holds_alternative<v1::DrawResult>(results->front()));
    }
  }
  Text End(std::unique_ptr<client::Sequence> sequence, client::ReceiptLog* log) {
    sequence.reset();
    EXPECT_TRUE(log->AwaitEnd(absl::Seconds(30)));
    Text text{log->Take(), log->SeedLine(), {}};
    text.receipts = ReceiptsOf(text.records);
    EXPECT_EQ(text.receipts.size(), kTokens);
    return text;
  }
  Text DrawAs(client::RowFormOptions::Form form) {
    const auto client = Connect(form);
    const auto log = std::make_shared<client::ReceiptLog>();
    auto sequence = Open(client.get(), log);
    Draw(client.get(), sequence.get(), 0, kVocabulary);
    return End(std::move(sequence), log.get());
  }
  Text DrawInShards() {
    using Form = client::RowFormOptions::Form;
    const auto first = Connect(Form::kAuto, client::VocabularyShard{0, 2, 0, kSplit, kVocabulary});
    const auto second = Connect(Form::kAuto, client::VocabularyShard{1, 2, kSplit, kVocabulary - kSplit, kVocabulary});
    const auto log = std::make_shared<client::ReceiptLog>();
    auto sequence = Open(first.get(), log);
    const auto other = Open(second.get(), nullptr);
    std::thread rank([&] { Draw(second.get(), other.get(), kSplit, kVocabulary - kSplit); });
    Draw(first.get(), sequence.get(), 0, kSplit);
    rank.join();
    return End(std::move(sequence), log.get());
  }
  // Has sortitionctl check all three: signatures, draws and rows.
  void Verify(const Text& text) {
    server::WriteFile(At("receipts"), text.records);
    server::WriteFile(At("seeds"), text.seed_line);
    server::WriteFile(At("logits"), {reinterpret_cast<const char*>(logits_.data()), logits_.size() * sizeof(float)});
    const std::string command = std::string(SORTITIONCTL) + " verify " + At("receipts") + " --seeds=" + At("seeds") +
                                " --logits=" + At("logits") + " --dtype=f32 --prompt=1,2 > " + At("output");
    EXPECT_EQ(std::system(command.c_str()), 0);
    std::ostringstream said;
    said << std::ifstream(At("output")).rdbuf();
    EXPECT_THAT(said.str(), ::testing::HasSubstr("row: 20 of 20 tokens"));
  }
  static std::string At(const std::string& name) { return server::TestPath("receipt_forms_" + name); }
  int CompactRows() {
    return server::Metric(server_.Serving("metrics"), "sortition_compact_rows_total{outcome=\"decided\"}");
  }

  const std::string key_ = [] {
    std::filesystem::remove(At("key"));
    EXPECT_TRUE(service::WriteNewKey(At("key")).ok());
    return At("key");
  }();
  ServerProcess server_{{{"--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", "--receipt_key=" + key_}, {}, 0}};
  std::vector<float> logits_ = std::vector<float>(kTokens * kVocabulary);
};

TEST_F(ReceiptForms, WholeCompactAndShardsAreAlike) {
  const Text whole = DrawAs(client::RowFormOptions::Form::kFull);
  EXPECT_LE(CompactRows(), 0);
  const Text compact = DrawAs(client::RowFormOptions::Form::kCompact);
  EXPECT_EQ(CompactRows(), int(kTokens));
  const Text shards = DrawInShards();
  EXPECT_EQ(CompactRows(), int(kTokens));
  for (const Text* const text : {&whole, &compact, &shards}) Verify(*text);
  for (const Text* const text : {&compact, &shards}) {
    ASSERT_EQ(text->receipts.size(), whole.receipts.size());
    for (size_t i = 0; i < kTokens; ++i) {
      Receipt receipt = text->receipts[i];
      EXPECT_TRUE(receipt.history_hash.has_value());
      // A chain has a random id, and ranks name steps by their place in the text.
      receipt.chain = whole.receipts[i].chain;
      receipt.previous = whole.receipts[i].previous;
      if (text == &shards) receipt.step_id = whole.receipts[i].step_id;
      EXPECT_EQ(receipt, whole.receipts[i]) << i;
    }
  }
}

TEST_F(ReceiptForms, LogOfAnotherRankIsRefused) {
  const auto client = Connect(client::RowFormOptions::Form::kAuto,
                              client::VocabularyShard{1, 2, kSplit, kVocabulary - kSplit, kVocabulary});
  client::SequenceOptions options;
  options.request_id = "text";
  options.vocabulary_size = kVocabulary;
  options.receipts = std::make_shared<client::ReceiptLog>();
  const absl::Status refused = client->Open(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("receipts: of rows in shards the log is rank 0's"));
}

}  // namespace
}  // namespace sortition::testing::receipt_forms_test
