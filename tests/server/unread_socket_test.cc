// A client that opens its HTTP/2 windows and reads nothing from its socket: answers and refusals of its streams wait
// there, where gRPC cannot take them back.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/server/client_list_file.h"
#include "tests/server/http2_client.h"
#include "tests/server/raw_http2.h"
#include "tests/server/test_server.h"
#include "tests/server/test_stream.h"
#include "tests/support/messages.h"

namespace sortition::server::unread_socket_test {
namespace {

constexpr uint32_t kRows = 64;
constexpr uint32_t kTop = 512;
constexpr uint64_t kSteps = 16;  // answers of 16 MB, more than sockets take

void OpenStream(uint32_t stream, Http2Client* client) {
  client->Call(stream, "/sortition.v1.SamplingService/Stream", Http2Header("authorization", "Bearer token-a"));
  client->SendMessage(stream, testing::Hello(absl::StrCat("worker", stream)).SerializeAsString());
}

// Sends short steps with long answers.
void SendSteps(uint32_t stream, Http2Client* client) {
  for (uint32_t row = 0; row < kRows; ++row) {
    v1::OpenSequence open = testing::MakeOpen(absl::StrCat(row), 1, kTop);
    v1::SamplingParameters& parameters = *open.mutable_parameters();
    for (auto* logprobs : {parameters.mutable_raw_logprobs(), parameters.mutable_processed_logprobs(),
                           parameters.mutable_tempered_logprobs()}) {
      logprobs->set_top(kTop);
    }
    client->SendMessage(stream, testing::Message(open).SerializeAsString());
  }
  for (uint64_t id = 1; id <= kSteps; ++id) {
    v1::StreamRequest request;
    v1::Step& step = *request.mutable_step();
    step.set_batch_id(id);
    step.mutable_logits()->set_dtype(v1::DTYPE_F32);
    step.mutable_logits()->set_vocabulary_size(kTop);
    step.mutable_logits()->set_tensor_rows(1);
    step.mutable_logits()->mutable_source()->mutable_inline_()->set_payload(0);
    request.add_payloads(std::string(kTop * sizeof(float), '\0'));
    for (uint32_t row = 0; row < kRows; ++row) {
      v1::StepRow& its = *step.add_rows();
      its.set_request_id(absl::StrCat(row));
      its.set_step_id(id);
      its.set_tensor_row(0);
    }
    client->SendMessage(stream, request.SerializeAsString());
  }
}

TEST(UnreadSocketTest, ItsStreamsLoseTheirPlaces) {
  const std::string others = absl::StrCat("engine-b sample ", Sha256("token-b"), "\n");
  ClientListFile list(absl::StrCat(others, "engine-a sample ", Sha256("token-a"), "\n"));
  Config config = TestConfig();
  config.clients = list.path();
  config.limits.max_streams = 2;
  config.limits.stalled_write = absl::Milliseconds(500);
  TestServer server(config);
  Http2Client client(server.target());
  ASSERT_TRUE(client.connected());
  client.OpenWindows();
  OpenStream(1, &client);
  OpenStream(3, &client);
  SendSteps(3, &client);
  ASSERT_TRUE(server.log_lines().Await("stream_stalled"));
  // The refusal of the other stream waits behind the answers.
  list.Replace(others);
  server.server().LookAtFiles();
  ASSERT_TRUE(server.log_lines().Await("stream_refused"));
  EXPECT_TRUE(Eventually([&] { return server.server().streams() == 0; }));
  for (const char* const session : {"one", "two"}) {
    TestStream stream(server.Connect(), "Bearer token-b");
    stream.Greet(session);
  }
}

}  // namespace
}  // namespace sortition::server::unread_socket_test
