// Receipts from a server to sortitionctl verify, right ones and damaged ones, and after a kill.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "client/process/child_process.h"
#include "client/process/server_process.h"
#include "service/receipt/receipt_key.h"
#include "sortition/client.h"

namespace sortition::testing::receipts_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Ended {
  int code = 0;
  std::string output;
};

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

// A folder for receipts, and the programs that write and read them.
class ReceiptsTest : public ::testing::Test {
 protected:
  ReceiptsTest() {
    std::string path = ::testing::TempDir() + "/receiptsXXXXXX";
    folder_ = ::mkdtemp(path.data());
  }
  ~ReceiptsTest() override { std::filesystem::remove_all(folder_); }

  std::string At(const std::string& name) const { return folder_ + "/" + name; }
  Ended Run(const std::string& program, const std::vector<std::string>& arguments) {
    std::filesystem::remove(At("output"));
    const auto process = process::ChildProcess::Start({program, arguments, At("output"), std::nullopt});
    EXPECT_TRUE(process.ok()) << process.status();
    const auto code = (*process)->Wait(absl::Seconds(120));
    EXPECT_TRUE(code.ok()) << code.status();
    return {code.ok() ? *code : -1, ReadFile(At("output"))};
  }
  Ended Verify(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "verify");
    return Run(SORTITIONCTL, arguments);
  }
  // Draws three texts of 20 tokens. With `logged` their receipts and seeds are written.
  void DrawTexts(const std::string& address, bool logged) {
    const auto client = client::Client::Connect({.targets = {address}});
    ASSERT_TRUE(client.ok()) << client.status();
    const std::vector<float> logits = {1, 2, 3, 4, 5, 6, 7, 8};
    std::string receipts;
    std::string seeds;
    for (const float temperature : {0.0f, 0.8f, 1.0f}) {
      client::SequenceOptions options;
      options.request_id = std::to_string(temperature);
      options.vocabulary_size = uint32_t(logits.size());
      options.parameters.set_temperature(temperature);
      options.parameters.mutable_processed_logprobs()->set_top(3);
      const auto log = logged ? std::make_shared<client::ReceiptLog>() : nullptr;
      options.receipts = log;
      auto sequence = (*client)->Open(options);
      ASSERT_TRUE(sequence.ok()) << sequence.status();
      for (int i = 0; i < 20; ++i) {
        const auto results =
            (*client)->Step({v1::DTYPE_F32, options.vocabulary_size, {{sequence->get(), logits.data()}}});
        ASSERT_TRUE(results.ok() && std::holds_alternative<v1::DrawResult>(results->front()));
      }
      sequence->reset();
      if (!logged) continue;
      ASSERT_TRUE(log->AwaitEnd(absl::Seconds(10)));
      receipts += log->Take();
      seeds += log->SeedLine() + "\n";
    }
    if (!logged) return;
    WriteFile(At("receipts"), receipts);
    WriteFile(At("seeds"), seeds);
  }
  void WriteReceipts() {
    const auto key = service::WriteNewKey(At("key"));
    ASSERT_TRUE(key.ok()) << key.status();
    WriteFile(At("public.key"), *key + "\n");
    const auto server = process::ServerProcess::Start(SORTITIOND, {"--receipt_key=" + At("key")}, At("log"));
    ASSERT_TRUE(server.ok()) << server.status();
    DrawTexts((*server)->address(), true);
  }
  std::string keys() const { return "--keys=" + At("public.key"); }
  std::string seeds() const { return "--seeds=" + At("seeds"); }

  std::string folder_;
};

// An opening with 65,536 biases, and 64 accepted drafts with 4,096 kept tokens each: megabytes of both, in parts.
TEST_F(ReceiptsTest, LongReceiptsPassARing) {
  constexpr uint32_t kVocabulary = 70'000;
  constexpr size_t kDrafts = 64;
  const auto key = service::WriteNewKey(At("key"));
  ASSERT_TRUE(key.ok()) << key.status();
  WriteFile(At("public.key"), *key + "\n");
  const auto server = process::ServerProcess::Start(
      SORTITIOND, {"--receipt_key=" + At("key"), "--memory_listen=unix:" + At("memory.sock")}, At("log"));
  ASSERT_TRUE(server.ok()) << server.status();
  client::ClientOptions asked;
  asked.targets = {"unix:" + At("memory.sock")};
  asked.transport.kind = client::TransportKind::kRing;
  const auto client = client::Client::Connect(asked);
  ASSERT_TRUE(client.ok()) << client.status();
  client::SequenceOptions options;
  options.request_id = "long";
  options.vocabulary_size = kVocabulary;
  options.parameters.set_top_k(4096);
  for (uint32_t id = 0; id < 65'536; ++id) {
    v1::LogitBias& bias = *options.parameters.add_logit_bias();
    bias.set_token(id);
    bias.set_bias(0.5f);
  }
  options.receipts = std::make_shared<client::ReceiptLog>();
  auto sequence = (*client)->Open(options);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  std::vector<float> logits((kDrafts + 1) * kVocabulary);
  for (size_t i = 0; i <= kDrafts; ++i) logits[i * kVocabulary + 7] = 30;
  const std::vector<uint32_t> drafted(kDrafts, 7);
  client::Drafts drafts;
  drafts.tokens = drafted;
  client::Row row;
  row.sequence = sequence->get();
  row.logits = logits.data();
  row.drafts = &drafts;
  const auto results = (*client)->Step({v1::DTYPE_F32, kVocabulary, {row}});
  ASSERT_TRUE(results.ok()) << results.status();
  const auto* const verified = std::get_if<v1::VerifyResult>(&results->front());
  ASSERT_NE(verified, nullptr);
  EXPECT_EQ(verified->accepted(), kDrafts);
  sequence->reset();
  ASSERT_TRUE(options.receipts->AwaitEnd(absl::Seconds(10)));
  EXPECT_EQ((*client)->transport_in_use().kind, client::TransportKind::kRing);
  const std::string receipts = options.receipts->Take();
  EXPECT_GT(receipts.size(), size_t{3} << 20);
  WriteFile(At("receipts"), receipts);
  WriteFile(At("seeds"), options.receipts->SeedLine() + "\n");
  const Ended checked = Verify({At("receipts"), keys(), seeds()});
  EXPECT_EQ(checked.code, 0) << checked.output;
  EXPECT_THAT(checked.output, HasSubstr("AGREES in what was checked"));
}

TEST_F(ReceiptsTest, AllAreVerified) {
  WriteReceipts();
  Ended verified = Verify({At("receipts"), keys(), seeds(), "--report=" + At("report.html")});
  EXPECT_EQ(verified.code, 0) << verified.output;
  EXPECT_THAT(verified.output, HasSubstr("of 3 sequences"));
  EXPECT_THAT(verified.output, HasSubstr("AGREES in what was checked"));
  EXPECT_THAT(verified.output, HasSubstr("row: not checked"));
  EXPECT_THAT(ReadFile(At("report.html")), HasSubstr("AGREES"));

  // Without other arguments it names the checks that it did not make.
  verified = Verify({At("receipts")});
  EXPECT_EQ(verified.code, 0) << verified.output;
  EXPECT_THAT(verified.output, HasSubstr("not checked: whose key it is"));
  EXPECT_THAT(verified.output, HasSubstr("without an opened seed"));
}

TEST_F(ReceiptsTest, OneIsShownAloneAndAllAsJson) {
  WriteReceipts();
  const Ended root = Run(SORTITIONCTL, {"receipts", "root", At("receipts")});
  EXPECT_EQ(root.code, 0) << root.output;
  EXPECT_THAT(root.output, HasSubstr("{\"leaves\":\"60\",\"root\":\""));
  const std::string json = Run(SORTITIONCTL, {"receipts", "export", At("receipts")}).output;
  EXPECT_THAT(json,
              HasSubstr("\"integers\":[{\"greedy\":true,\"inverse_repetition\":0,\"repetition\":0,\"stages\":[]}]"));
  EXPECT_THAT(json, HasSubstr("\"request_id\":\"0.800000\""));
  const std::string_view name = "{\"chain\":\"";
  ASSERT_THAT(json, HasSubstr(std::string(name)));
  const std::string chain = json.substr(json.find(name) + name.size(), 32);
  const Ended shown = Run(SORTITIONCTL, {"receipts", "prove", At("receipts"), "--chain=" + chain, "--index=19"});
  EXPECT_EQ(shown.code, 0) << shown.output;
  EXPECT_THAT(shown.output, HasSubstr("{\"leaf\":\"19\",\"leaves\":\"60\",\"opening\":{\"choice_index\":0,"));
}

TEST_F(ReceiptsTest, ChangedByteIsFound) {
  WriteReceipts();
  std::string bytes = ReadFile(At("receipts"));
  bytes[bytes.size() / 2] ^= 1;
  WriteFile(At("receipts"), bytes);
  const Ended verified = Verify({At("receipts"), keys(), seeds(), "--json", "--report=" + At("report.html")});
  EXPECT_EQ(verified.code, 4) << verified.output;
  EXPECT_THAT(verified.output, HasSubstr("\"verdict\": \"differs\""));
  EXPECT_THAT(ReadFile(At("report.html")), HasSubstr("DIFFERS"));
}

TEST_F(ReceiptsTest, BadInputIsNamed) {
  WriteReceipts();
  const std::string bytes = ReadFile(At("receipts"));
  WriteFile(At("cut"), bytes.substr(0, bytes.size() - 1));
  Ended verified = Verify({At("cut"), keys()});
  EXPECT_EQ(verified.code, 4);
  EXPECT_THAT(verified.output, HasSubstr("cut_record"));

  WriteFile(At("other.key"), std::string(64, '1'));
  verified = Verify({At("receipts"), "--keys=" + At("other.key")});
  EXPECT_EQ(verified.code, 4);
  EXPECT_THAT(verified.output, HasSubstr("unknown_key"));

  WriteFile(At("other.seeds"), "1 000102030405060708090a0b0c0d0e0f\n");
  verified = Verify({At("receipts"), "--seeds=" + At("other.seeds")});
  EXPECT_EQ(verified.code, 4);
  EXPECT_THAT(verified.output, HasSubstr("wrong_seed"));

  WriteFile(At("no.seeds"), "a seed\n");
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{At("none")},
                                             {},
                                             {At("receipts"), "--keys=" + At("none")},
                                             {At("receipts"), "--keys=" + At("receipts")},
                                             {At("receipts"), "--seeds=" + At("no.seeds")},
                                             {At("receipts"), "--report=" + At("none/report.html")}}) {
    verified = Verify(arguments);
    EXPECT_EQ(verified.code, 1) << verified.output;
    EXPECT_THAT(verified.output, HasSubstr("sortitionctl: "));
  }
}

// After a kill the written part of a file lacks the signature at its end, and is right otherwise.
TEST_F(ReceiptsTest, FilesSurviveKill) {
  ASSERT_TRUE(service::WriteNewKey(At("key")).ok());
  auto server = process::ServerProcess::Start(
      SORTITIOND, {"--receipt_key=" + At("key"), "--receipt_folder=" + folder_, "--receipt_all"}, At("log"));
  ASSERT_TRUE(server.ok()) << server.status() << ReadFile(At("log"));
  DrawTexts((*server)->address(), false);
  (*server)->process().Signal(SIGKILL);
  (void)(*server)->process().Wait(absl::Seconds(30));
  std::vector<std::string> arguments = {"--json"};
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.path().extension() == ".bin") arguments.push_back(entry.path());
  }
  ASSERT_EQ(arguments.size(), 2u);
  const Ended verified = Verify(arguments);
  EXPECT_TRUE(verified.code == 0 || verified.code == 5) << verified.output;
  EXPECT_THAT(verified.output, HasSubstr("\"problems\": {}"));
  EXPECT_THAT(verified.output, Not(HasSubstr("\"receipts\": 0,")));
}

// A text with penalties, its receipts and its logits; then the rows again in this process, and on the server.
TEST_F(ReceiptsTest, RowsAgainAndReplay) {
  constexpr uint32_t kVocabulary = 50;
  constexpr size_t kTokens = 24;
  ASSERT_TRUE(service::WriteNewKey(At("key")).ok());
  auto server = process::ServerProcess::Start(SORTITIOND, {"--receipt_key=" + At("key")}, At("log"));
  ASSERT_TRUE(server.ok()) << server.status();
  const auto client = client::Client::Connect({.targets = {(*server)->address()}});
  ASSERT_TRUE(client.ok()) << client.status();
  client::SequenceOptions options;
  options.request_id = "a";
  options.vocabulary_size = kVocabulary;
  options.prompt = {1, 2};
  options.parameters.set_top_k(8);
  options.parameters.set_repetition_penalty(1.2f);
  const auto log = options.receipts = std::make_shared<client::ReceiptLog>();
  auto sequence = (*client)->Open(options);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  std::mt19937_64 random(1);
  std::vector<float> logits(kTokens * kVocabulary);
  for (float& x : logits) x = float(random() % 8192) / 1024;
  const std::vector<uint32_t> mask = {0xfffffff0, 0x3ffff};
  for (size_t i = 0; i < kTokens; ++i) {
    client::Row row = {sequence->get(), logits.data() + i * kVocabulary};
    if (i % 3 == 0) row.allowed_bits = mask.data();
    const auto results = (*client)->Step({v1::DTYPE_F32, kVocabulary, {row}});
    ASSERT_TRUE(results.ok() && std::holds_alternative<v1::DrawResult>(results->front()));
  }
  sequence->reset();
  ASSERT_TRUE(log->AwaitEnd(absl::Seconds(10)));
  WriteFile(At("receipts"), log->Take());
  WriteFile(At("seeds"), log->SeedLine());
  const auto write_logits = [&] {
    WriteFile(At("logits"), {reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float)});
  };
  write_logits();
  WriteFile(At("masks"), {reinterpret_cast<const char*>(mask.data()), mask.size() * sizeof(uint32_t)});
  std::vector<std::string> flags = {At("receipts"), "--seeds=" + At("seeds"), "--logits=" + At("logits"),
                                    "--dtype=f32",  "--prompt=1,2",           "--masks=" + At("masks")};
  const auto run = [&](const std::string& command) {
    std::vector<std::string> arguments = flags;
    arguments.insert(arguments.begin(), command);
    arguments.push_back("--server=" + (*server)->address());
    return Run(SORTITIONCTL, arguments);
  };
  Ended ended = run("verify");
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("row: 24 of 24 tokens"));
  ended = run("replay");
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("24 tokens replayed, 0 differ, 0 not compared"));
  flags.pop_back();
  ended = run("replay");
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("24 tokens replayed, 0 differ, 8 not compared"));
  flags.push_back("--masks=" + At("masks"));

  for (uint32_t i = 0; i < kVocabulary; ++i) logits[5 * kVocabulary + i] = float(i % 7);
  write_logits();
  ended = run("verify");
  EXPECT_EQ(ended.code, 4) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("problem wrong_row: 1"));
  ended = run("replay");
  EXPECT_EQ(ended.code, 4) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("position 7: "));
  EXPECT_THAT(ended.output, HasSubstr("1 differ"));

  ended = Verify({At("receipts"), "--logits=" + At("logits"), "--dtype=f32", "--tolerance=0.1"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.output, HasSubstr("--tolerance needs --seeds"));
  for (const char* const tolerance : {"--tolerance=nan", "--tolerance=inf", "--tolerance=-1"}) {
    ended = Verify({At("receipts"), "--logits=" + At("logits"), "--seeds=" + At("seeds"), "--dtype=f32", tolerance});
    EXPECT_EQ(ended.code, 1);
    EXPECT_THAT(ended.output, HasSubstr("--tolerance must be a finite number")) << tolerance;
  }
  ended = Verify({At("receipts"), "--seeds=" + At("seeds"), "--logits=" + At("receipts"), "--dtype=f32"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.output, HasSubstr("are no rows of 200 bytes"));
}

// Bans and salts of the draws after a rewind are in their receipts, so the draws are checked and drawn again.
TEST_F(ReceiptsTest, DrawsAfterRewindsAreReplayed) {
  constexpr uint32_t kVocabulary = 32;
  constexpr size_t kTokens = 40;
  ASSERT_TRUE(service::WriteNewKey(At("key")).ok());
  auto server = process::ServerProcess::Start(SORTITIOND, {"--receipt_key=" + At("key")}, At("log"));
  ASSERT_TRUE(server.ok()) << server.status();
  const auto client = client::Client::Connect({.targets = {(*server)->address()}});
  ASSERT_TRUE(client.ok()) << client.status();
  client::SequenceOptions options;
  options.request_id = "a";
  options.vocabulary_size = kVocabulary;
  options.prompt = {1, 2};
  for (uint32_t token = 0; token < 8; ++token) options.parameters.add_banned_phrases()->add_tokens(token);
  const auto log = options.receipts = std::make_shared<client::ReceiptLog>();
  auto sequence = (*client)->Open(options);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  const std::vector<float> logits(kTokens * kVocabulary);
  std::vector<uint32_t> masks;
  for (size_t i = 0; i < kTokens; ++i) {
    uint32_t mask = ~0u;
    for (const client::BannedAt& ban : (*sequence)->rewound().bans) {
      if (ban.position == (*sequence)->position()) mask &= ~(1u << ban.token);
    }
    masks.push_back(mask);
    const auto results = (*client)->Step({v1::DTYPE_F32, kVocabulary, {{sequence->get(), logits.data()}}});
    ASSERT_TRUE(results.ok() && std::holds_alternative<v1::DrawResult>(results->front()));
  }
  EXPECT_GT((*sequence)->rewound().count, 0u);
  sequence->reset();
  ASSERT_TRUE(log->AwaitEnd(absl::Seconds(10)));
  WriteFile(At("receipts"), log->Take());
  WriteFile(At("seeds"), log->SeedLine());
  WriteFile(At("logits"), {reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float)});
  WriteFile(At("masks"), {reinterpret_cast<const char*>(masks.data()), masks.size() * sizeof(uint32_t)});
  for (const std::string command : {"verify", "replay"}) {
    const Ended ended =
        Run(SORTITIONCTL, {command, At("receipts"), "--seeds=" + At("seeds"), "--dtype=f32", "--logits=" + At("logits"),
                           "--masks=" + At("masks"), "--prompt=1,2", "--server=" + (*server)->address()});
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(command == "verify" ? "row: 40 of 40 tokens"
                                                            : "40 tokens replayed, 0 differ, 0 not compared"));
  }
}

TEST_F(ReceiptsTest, ServerNamesBadSettings) {
  const auto start = [&](const std::vector<std::string>& flags) { return Run(SORTITIOND, flags); };
  Ended ended = start({"--listen=127.0.0.1:0", "--metrics_listen=", "--receipt_key=" + At("none")});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.output, HasSubstr("--receipt_key"));
  ended = start({"--receipt_folder=" + folder_});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.output, HasSubstr("--receipt_folder: it needs --receipt_key"));
}

}  // namespace
}  // namespace sortition::testing::receipts_test
