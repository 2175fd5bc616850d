// Secrets that a server never logs or shows: logits, seeds, tokens of texts, and its callers' credentials.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/law/version.h"
#include "tests/server/client_list_file.h"
#include "tests/server/server_process.h"
#include "tests/server/test_stream.h"

namespace sortition::server::secrets_test {
namespace {

// Values that occur nowhere else in a log, a metric or a page.
constexpr uint64_t kSeed = 7239461850123459871u;
constexpr uint32_t kVocabulary = 910'000;
constexpr uint32_t kPromptToken = 876'541;
constexpr uint32_t kDrawnToken = 898'989;
constexpr uint32_t kBannedToken = 765'437;
constexpr float kLogit = 31.415926f;
constexpr char kBearer[] = "tok-5f2c9b1e-never-to-be-seen";
constexpr char kKey[] = "checkpoint-key-00112233445566778899aabbccddeeff";
constexpr char kRequest[] = "request-c0ffee-4711";

std::vector<std::string> Secrets() {
  std::string seed_bytes(sizeof(kSeed), '\0');
  std::memcpy(seed_bytes.data(), &kSeed, sizeof(kSeed));
  return {absl::StrCat(kSeed),
          absl::StrCat(absl::Hex(kSeed)),
          absl::BytesToHexString(seed_bytes),
          absl::StrCat(static_cast<int64_t>(kSeed)),
          absl::StrCat(kPromptToken),
          absl::StrCat(kDrawnToken),
          absl::StrCat(kBannedToken),
          "31.4159",
          kBearer,
          kKey,
          kRequest,
          absl::BytesToHexString(kKey)};
}

void ExpectNoSecret(const std::string& text, const char* where) {
  EXPECT_FALSE(text.empty()) << where;
  for (const std::string& secret : Secrets()) EXPECT_FALSE(absl::StrContains(text, secret)) << where << ": " << text;
}

v1::StreamRequest MakeOpen(const std::string& request_id) {
  v1::StreamRequest request;
  v1::OpenSequence* open = request.mutable_open();
  open->set_request_id(request_id);
  open->set_epoch(1);
  open->set_law_version(law::kLawVersion);
  open->set_seed(kSeed);
  open->set_vocabulary_size(kVocabulary);
  open->set_model("model-7b");
  open->mutable_parameters()->set_presence_penalty(0.5f);
  open->mutable_parameters()->add_banned_token_ids(kBannedToken);
  open->mutable_history()->add_tokens(kPromptToken);
  open->mutable_history()->set_prompt_length(1);
  return request;
}

v1::StreamRequest MakeStep(uint64_t step_id, uint64_t hash, float logit) {
  v1::StreamRequest request;
  v1::Step* step = request.mutable_step();
  step->set_batch_id(step_id);
  step->mutable_logits()->mutable_source()->mutable_inline_()->set_payload(0);
  step->mutable_logits()->set_dtype(v1::DTYPE_F32);
  step->mutable_logits()->set_vocabulary_size(kVocabulary);
  step->mutable_trace()->set_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  v1::StepRow* row = step->add_rows();
  row->set_request_id(kRequest);
  row->set_step_id(step_id);
  row->set_position(1);
  row->set_history_hash(hash);
  std::vector<float> logits(kVocabulary, -60000.0f);
  logits[kDrawnToken] = logit;
  request.add_payloads(logits.data(), logits.size() * sizeof(float));
  return request;
}

// Served and refused traffic at the most talkative level: every line, metric and page.
TEST(SecretsTest, OutputsHoldNoSecrets) {
  const ClientListFile clients(absl::StrCat("engine sample ", Sha256(kBearer)));
  const std::string key = TestPath("checkpoint.key");
  WriteFile(key, kKey);
  ServerProcess process(
      {{"--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0", "--cpu_threads=1", "--log_level=debug",
        absl::StrCat("--clients=", clients.path()), absl::StrCat("--checkpoint_key=", key)},
       {},
       0});
  const auto channel = grpc::CreateChannel(process.Serving("listen"), grpc::InsecureChannelCredentials());
  TestStream stream(channel, absl::StrCat("Bearer ", kBearer));
  stream.Greet("engine-3");

  ASSERT_TRUE(stream.Send(MakeOpen(kRequest)));
  const v1::StreamResponse opened = stream.ReceiveOne();
  ASSERT_TRUE(opened.opened().has_state()) << opened.ShortDebugString();
  const uint64_t hash = opened.opened().state().history_hash();
  ASSERT_TRUE(stream.Send(MakeStep(1, hash + 1, kLogit)));
  EXPECT_TRUE(stream.ReceiveOne().results().rows(0).has_error()) << "another history";
  ASSERT_TRUE(stream.Send(MakeStep(2, hash, std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(stream.ReceiveOne().results().rows(0).has_error()) << "a logit that is none";
  ASSERT_TRUE(stream.Send(MakeStep(3, hash, kLogit)));
  const v1::StreamResponse answered = stream.ReceiveOne();
  ASSERT_EQ(answered.results().rows(0).draw().token(), kDrawnToken) << answered.ShortDebugString();
  // Refused because of its options and its history.
  v1::StreamRequest wrong = MakeOpen(kRequest);
  wrong.mutable_open()->set_epoch(2);
  wrong.mutable_open()->mutable_history()->set_tokens(0, kVocabulary + 1);
  wrong.mutable_open()->mutable_parameters()->set_top_p(7);
  ASSERT_TRUE(stream.Send(wrong));
  EXPECT_TRUE(stream.ReceiveOne().opened().has_error());
  {
    TestStream stranger(channel, absl::StrCat("Bearer ", kBearer, "x"));
    EXPECT_FALSE(stranger.Finish().ok());
  }
  const std::string metrics = process.Serving("metrics");
  ExpectNoSecret(HttpGet(metrics, "/metrics"), "metrics");
  ExpectNoSecret(HttpGet(metrics, "/"), "status page");
  ExpectNoSecret(HttpGet(metrics, "/health"), "health");
  stream.HalfClose();
  EXPECT_TRUE(stream.Finish().ok());
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
  std::string log;
  for (const std::string& line : process.lines()) absl::StrAppend(&log, line, "\n");
  ExpectNoSecret(log, "log");
  // The traffic did leave its traces there.
  for (const char* event : {"sequence_opened", "\"step\"", "stream_refused", "stream_close", "model-7b"}) {
    EXPECT_TRUE(absl::StrContains(log, event)) << event;
  }
  unlink(key.c_str());
}

}  // namespace
}  // namespace sortition::server::secrets_test
