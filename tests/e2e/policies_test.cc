// The operator's policies over real processes: keys rotate while servers die, and no token changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client/process/child_process.h"
#include "client/process/server_process.h"
#include "service/receipt/receipt_key.h"
#include "sortition/client.h"
#include "sortition/watermark.h"

namespace sortition::testing::policies_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint32_t kVocabulary = 512;
constexpr uint64_t kFirstKey = 11, kSecondKey = 12;

// Logits of a row with an uncertain token, as a function of its number.
std::vector<float> MakeLogits(uint32_t number) {
  std::mt19937 random(number);
  std::vector<float> logits(kVocabulary);
  for (float& logit : logits) logit = static_cast<float>(random() % 4096) / 1024;
  return logits;
}

class PoliciesTest : public ::testing::Test {
 protected:
  PoliciesTest() {
    std::string path = ::testing::TempDir() + "/policiesXXXXXX";
    folder_ = ::mkdtemp(path.data());
  }
  ~PoliciesTest() override { std::filesystem::remove_all(folder_); }

  std::string At(const std::string& name) const { return folder_ + "/" + name; }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(At(name + ".new"), std::ios::binary) << text;
    std::filesystem::rename(At(name + ".new"), At(name));
  }
  void WriteRules(const std::string& rules) { Write("policies", R"({"policies": [{"tenant": "*", )" + rules + "}]}"); }
  std::string Marked() const { return R"("watermark": {"keys": ")" + At("keys") + R"("})"; }
  std::unique_ptr<process::ServerProcess> Start(std::vector<std::string> flags = {}, int port = 0) {
    flags.push_back("--policies=" + At("policies"));
    auto server = process::ServerProcess::Start(SORTITIOND, flags, At("log"), port);
    EXPECT_TRUE(server.ok()) << server.status();
    return server.ok() ? *std::move(server) : nullptr;
  }
  static std::unique_ptr<client::Client> Connect(const std::string& address) {
    client::ClientOptions options;
    options.targets = {address};
    options.retry.backoff = {absl::Milliseconds(5), absl::Milliseconds(50)};
    auto client = client::Client::Connect(std::move(options));
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }
  static client::SequenceOptions Options(const std::string& id) {
    client::SequenceOptions options;
    options.request_id = id;
    options.vocabulary_size = kVocabulary;
    options.seed = 7;
    options.prompt = {1, 2, 3};
    return options;
  }
  // Draws a token after the sequence's tokens.
  static void Draw(client::Client* client, client::Sequence* sequence) {
    const auto logits = MakeLogits(sequence->position());
    client::Batch batch;
    batch.dtype = v1::DTYPE_F32;
    batch.vocabulary_size = kVocabulary;
    batch.rows.push_back({.sequence = sequence, .logits = logits.data()});
    const auto results = client->Step(batch);
    ASSERT_TRUE(results.ok()) << results.status();
    const auto* error = std::get_if<client::RowError>(&(*results)[0]);
    ASSERT_EQ(error, nullptr) << error->message;
  }
  // Returns the error of a row, which has one.
  static client::RowError Refused(client::Client* client, client::Sequence* sequence) {
    const auto logits = MakeLogits(1);
    client::Batch batch;
    batch.dtype = v1::DTYPE_F32;
    batch.vocabulary_size = kVocabulary;
    batch.rows.push_back({.sequence = sequence, .logits = logits.data()});
    const auto results = client->Step(batch);
    EXPECT_TRUE(results.ok()) << results.status();
    if (!results.ok() || !std::holds_alternative<client::RowError>((*results)[0])) return {};
    return std::get<client::RowError>((*results)[0]);
  }
  static double PValue(uint64_t key, std::span<const uint32_t> tokens) {
    client::WatermarkOptions options;
    options.key = key;
    return client::DetectWatermark(options, tokens).p_value;
  }

  std::string folder_;
};

TEST_F(PoliciesTest, KilledServerAndNewKeyChangeNoToken) {
  Write("keys", "first 11\n");
  WriteRules(Marked());
  std::vector<uint32_t> right;
  {
    const auto server = Start();
    const auto client = Connect(server->address());
    const auto sequence = client->Open(Options("text"));
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    for (int i = 0; i < 60; ++i) ASSERT_NO_FATAL_FAILURE(Draw(client.get(), sequence->get()));
    right = (*sequence)->tokens();
  }
  auto server = Start();
  const int port = server->port();
  const auto client = Connect(server->address());
  const auto sequence = client->Open(Options("text"));
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  EXPECT_TRUE((*sequence)->stateful());
  for (int i = 0; i < 60; ++i) {
    if (i % 20 == 10) {
      Write("keys", "later" + std::to_string(i) + " " + std::to_string(kSecondKey + i) + "\nfirst 11\n");
      server->process().Signal(SIGKILL);
      ASSERT_TRUE(server->process().Wait(absl::Seconds(60)).ok());
      server = Start({}, port);
    }
    ASSERT_NO_FATAL_FAILURE(Draw(client.get(), sequence->get()));
  }
  EXPECT_EQ((*sequence)->tokens(), right);
  EXPECT_EQ((*sequence)->policy().watermark_key_id(), "first");
  EXPECT_LT(PValue(kFirstKey, right), 1e-6);
  EXPECT_GT(PValue(kSecondKey, right), 1e-6);
  // A new text has the newest key.
  const auto next = client->Open(Options("next"));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ((*next)->policy().watermark_key_id(), "later50");
  // A key that the file has no more ends its text by a refusal, not by other tokens.
  Write("keys", "later50 62\n");
  server->process().Signal(SIGKILL);
  ASSERT_TRUE(server->process().Wait(absl::Seconds(60)).ok());
  server = Start({}, port);
  EXPECT_EQ(Refused(client.get(), sequence->get()).field, "open.watermark_key_id");
}

// A process that continues the text of another one hands over the policy's effect.
TEST_F(PoliciesTest, NewProcessKeepsTheMark) {
  Write("keys", "first 11\n");
  WriteRules(Marked() + R"(, "defaults": {"topK": 40})");
  const auto draw = [](client::Client* client, client::Sequence* sequence, int count) {
    for (int i = 0; i < count; ++i) ASSERT_NO_FATAL_FAILURE(Draw(client, sequence));
  };
  std::vector<uint32_t> right, begun;
  v1::PolicyEffect policy;
  {
    const auto server = Start();
    const auto client = Connect(server->address());
    const auto whole = client->Open(Options("whole")), first = client->Open(Options("first"));
    ASSERT_TRUE(whole.ok() && first.ok()) << whole.status() << first.status();
    ASSERT_NO_FATAL_FAILURE(draw(client.get(), whole->get(), 60));
    ASSERT_NO_FATAL_FAILURE(draw(client.get(), first->get(), 20));
    right = (*whole)->tokens();
    begun = (*first)->tokens();
    policy = (*first)->policy();
    EXPECT_EQ(policy.applied().ShortDebugString(), "top_k: 40");
  }
  Write("keys", "second 12\nfirst 11\n");
  WriteRules(Marked() + R"(, "defaults": {"topK": 10})");
  const auto server = Start();
  const auto client = Connect(server->address());
  client::SequenceOptions options = Options("again");
  options.policy = policy;
  const auto open = [&] {
    auto sequence = client->Open(options);
    const auto output = std::span(begun).subspan(options.prompt.size());
    EXPECT_TRUE(sequence.ok() && (*sequence)->Append(output).ok());
    return sequence;
  };
  const auto sequence = open();
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  ASSERT_NO_FATAL_FAILURE(draw(client.get(), sequence->get(), 40));
  EXPECT_EQ((*sequence)->tokens(), right);
  // Without it the policy of now holds.
  options.request_id = "other";
  options.policy.reset();
  const auto other = open();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ((*other)->policy().watermark_key_id(), "second");
  EXPECT_EQ((*other)->policy().applied().ShortDebugString(), "top_k: 10");
  // A mark of another kind is refused, though its key has the same name.
  WriteRules(R"("watermark": {"keys": ")" + At("keys") + R"(", "skipRepeatedContexts": true})");
  const auto changed = Start();
  options.request_id = "changed";
  options.policy = policy;
  EXPECT_THAT(Connect(changed->address())->Open(options).status().ToString(), HasSubstr("open.parameters.watermark"));
}

TEST_F(PoliciesTest, InfoShowsTheCallersPolicy) {
  Write("keys", "second 12\nfirst 11\n");
  WriteRules(Marked() + R"(, "defaults": {"topK": 40}, "limits": [{"field": "temperature", "max": 1.5},
      {"field": "dry", "banned": true, "violation": "VIOLATION_APPLY"}])");
  const auto server = Start();
  const auto info =
      process::ChildProcess::Start({SORTITIONCTL, {"info", "--server=" + server->address()}, At("info"), std::nullopt});
  ASSERT_TRUE(info.ok()) << info.status();
  ASSERT_TRUE((*info)->Wait(absl::Seconds(60)).ok());
  std::ostringstream output;
  output << std::ifstream(At("info")).rdbuf();
  EXPECT_THAT(output.str(), ContainsRegex("\nwatermark +keys second first +refused"));
  EXPECT_THAT(output.str(), ContainsRegex("\ndefaults +.*\"top_?[kK]\": ?40"));
  EXPECT_THAT(output.str(), ContainsRegex("\ntemperature +<= 1.5 +refused"));
  EXPECT_THAT(output.str(), ContainsRegex("\ndry +absent +applied"));
  EXPECT_THAT(output.str(), Not(HasSubstr(At("keys"))));
}

TEST_F(PoliciesTest, ClientCannotTurnItOff) {
  Write("keys", "first 11\n");
  WriteRules(Marked() + R"(, "defaults": {"topK": 40},
      "limits": [{"field": "temperature", "min": 0.5, "violation": "VIOLATION_APPLY"}])");
  const auto server = Start();
  const auto client = Connect(server->address());
  client::SequenceOptions options = Options("own");
  options.parameters.mutable_watermark()->set_key(5);
  EXPECT_THAT(client->Open(options).status().ToString(), HasSubstr("open.parameters.watermark"));
  options = Options("greedy");
  options.parameters.set_temperature(0);
  const auto sequence = client->Open(options);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  EXPECT_EQ((*sequence)->policy().applied().ShortDebugString(), "temperature: 0.5 top_k: 40");
  for (int i = 0; i < 60; ++i) ASSERT_NO_FATAL_FAILURE(Draw(client.get(), sequence->get()));
  EXPECT_LT(PValue(kFirstKey, (*sequence)->tokens()), 1e-4);
}

// The holder of the key finds a text although its client sets every field that might change the noise.
TEST_F(PoliciesTest, NoFieldOfAClientHidesTheMark) {
  Write("keys", "first 11\n");
  WriteRules(Marked());
  const auto server = Start();
  const auto client = Connect(server->address());
  client::SequenceOptions options = Options("text");
  options.choice_index = 5;
  options.parameters.set_min_keep(2);
  options.parameters.set_top_p(0.99f);
  options.parameters.mutable_xtc()->set_probability(0.5f);
  for (uint32_t token = 0; token < kVocabulary; token += 4) {  // most texts are taken back sometimes
    options.parameters.add_banned_phrases()->add_tokens(token);
  }
  v1::Phase& phase = *options.parameters.add_phases();
  phase.set_max_tokens(30);
  phase.add_then(3);
  phase.mutable_parameters()->set_temperature(0.8f);
  uint32_t rewinds = 0, salt = 0;
  std::unique_ptr<client::Sequence> sequence;
  const auto draw = [&](uint32_t until, const client::Drafts* drafts = nullptr) {
    while (sequence->position() < until) {
      std::vector<float> logits = MakeLogits(sequence->position());
      const std::vector<float> next = MakeLogits(sequence->position() + 1);
      logits.insert(logits.end(), next.begin(), next.end());
      client::Batch batch{v1::DTYPE_F32, kVocabulary, {{sequence.get(), logits.data(), (salt += 997) % 65536}}};
      batch.rows[0].drafts = drafts;
      const auto results = client->Step(batch);
      ASSERT_TRUE(results.ok()) << results.status();
      const auto* error = std::get_if<client::RowError>(&(*results)[0]);
      ASSERT_EQ(error, nullptr) << error->message;
      const auto* drawn = std::get_if<v1::DrawResult>(&(*results)[0]);
      rewinds += drawn != nullptr && drawn->has_rewind();
    }
  };
  auto opened = client->Open(options);
  ASSERT_TRUE(opened.ok()) << opened.status();
  sequence = *std::move(opened);
  ASSERT_NO_FATAL_FAILURE(draw(25));
  options.request_id = "fork";
  options.choice_index = 9;
  options.seed = 8;
  options.prompt.clear();
  auto forked = client->Fork(*sequence, options);
  ASSERT_TRUE(forked.ok()) << forked.status();
  sequence = *std::move(forked);
  ASSERT_NO_FATAL_FAILURE(draw(50));
  ASSERT_TRUE(sequence->Truncate(40).ok());
  ASSERT_NO_FATAL_FAILURE(draw(60));
  client::Drafts drafts;
  const std::vector<uint32_t> proposed = {7};
  drafts.tokens = proposed;
  drafts.mode = v1::VERIFY_MODE_COUPLED;
  ASSERT_NO_FATAL_FAILURE(draw(80, &drafts));
  EXPECT_GT(rewinds, 0u);
  EXPECT_LT(PValue(kFirstKey, sequence->tokens()), 1e-6);
}

// Completions of a prompt have the noise of their contexts alone, so each takes another key.
TEST_F(PoliciesTest, ChoicesDifferByTheirKeys) {
  Write("keys", "first 11\nsecond 12\n");
  WriteRules(Marked());
  const auto server = Start();
  const auto client = Connect(server->address());
  std::vector<std::vector<uint32_t>> texts;
  for (const char* const key : {"", "first", "second"}) {
    client::SequenceOptions options = Options("choice" + std::to_string(texts.size()));
    options.choice_index = static_cast<uint32_t>(texts.size());
    options.seed = texts.size();
    options.watermark_key_id = key;
    const auto sequence = client->Open(options);
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    for (int i = 0; i < 60; ++i) ASSERT_NO_FATAL_FAILURE(Draw(client.get(), sequence->get()));
    texts.push_back((*sequence)->tokens());
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_LT(PValue(kFirstKey, texts[1]), 1e-6);
  EXPECT_LT(PValue(kSecondKey, texts[2]), 1e-6);
  client::SequenceOptions options = Options("other");
  options.watermark_key_id = "third";
  EXPECT_THAT(client->Open(options).status().ToString(), HasSubstr("open.watermark_key_id"));
}

TEST_F(PoliciesTest, ChangedPolicyRefusesWhatItWouldChange) {
  WriteRules(R"("defaults": {"topK": 3})");
  auto server = Start();
  const int port = server->port();
  const auto client = Connect(server->address());
  const auto sequence = client->Open(Options("text"));
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  const auto restart = [&](const std::string& rules) {
    WriteRules(rules);
    server->process().Signal(SIGKILL);
    ASSERT_TRUE(server->process().Wait(absl::Seconds(60)).ok());
    server = Start({}, port);
  };
  // The value that the sequence began with stays.
  ASSERT_NO_FATAL_FAILURE(restart(R"("defaults": {"topK": 5})"));
  ASSERT_NO_FATAL_FAILURE(Draw(client.get(), sequence->get()));
  ASSERT_NO_FATAL_FAILURE(restart(R"("defaults": {"topP": 0.5})"));
  EXPECT_THAT(Refused(client.get(), sequence->get()).message, HasSubstr("policy has changed"));
}

// A text that began without a mark kept no tokens, because no option needed them.
TEST_F(PoliciesTest, LaterMarkEndsATextWithoutHistory) {
  WriteRules(R"("defaults": {"topK": 3})");
  auto server = Start();
  const int port = server->port();
  const auto client = Connect(server->address());
  const auto sequence = client->Open(Options("text"));
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  ASSERT_NO_FATAL_FAILURE(Draw(client.get(), sequence->get()));
  Write("keys", "first 11\n");
  WriteRules(Marked());
  server->process().Signal(SIGKILL);
  ASSERT_TRUE(server->process().Wait(absl::Seconds(60)).ok());
  server = Start({}, port);
  const client::RowError error = Refused(client.get(), sequence->get());
  EXPECT_EQ(error.reason, v1::CONTRADICTION);
  EXPECT_EQ(error.field, "open.watermark_key_id");
}

TEST_F(PoliciesTest, RequiredReceiptsAreWritten) {
  ASSERT_TRUE(service::WriteNewKey(At("key")).ok());
  WriteRules(R"("receipts": true)");
  // A server that writes none is no server for this policy.
  const auto none = process::ServerProcess::Start(SORTITIOND, {"--policies=" + At("policies")}, At("log"));
  ASSERT_FALSE(none.ok());
  auto server = Start({"--receipt_key=" + At("key"), "--receipt_folder=" + folder_});
  {
    const auto client = Connect(server->address());
    const auto sequence = client->Open(Options("text"));
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    for (int i = 0; i < 5; ++i) ASSERT_NO_FATAL_FAILURE(Draw(client.get(), sequence->get()));
  }
  ASSERT_TRUE(server->Stop(absl::Seconds(60)).ok());
  uint64_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) files += entry.path().extension() == ".bin";
  EXPECT_EQ(files, 1u);
}

}  // namespace
}  // namespace sortition::testing::policies_test
