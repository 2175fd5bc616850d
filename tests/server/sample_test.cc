// Unary calls of Sample over real sockets.
#include <gtest/gtest.h>

#include <string>

#include "tests/server/http2_client.h"
#include "tests/server/status_details_decoder.h"
#include "tests/server/test_server.h"
#include "tests/server/test_stream.h"

namespace sortition::server::sample_test {
namespace {

constexpr uint32_t kFew = 4;

// Rows of four logits, each with one far above the others: row i's is i modulo 4.
v1::SampleRequest Peaks(int rows) {
  v1::SampleRequest request;
  request.set_dtype(v1::DTYPE_F32);
  request.set_vocabulary_size(kFew);
  for (int i = 0; i < rows; ++i) {
    for (uint32_t token = 0; token < kFew; ++token) {
      const float logit = token == static_cast<uint32_t>(i) % kFew ? 90.0f : 0.0f;
      request.mutable_logits()->append(reinterpret_cast<const char*>(&logit), sizeof(logit));
    }
    request.add_rows()->set_seed(static_cast<uint64_t>(i));
  }
  return request;
}

grpc::Status Sample(TestServer& server, const v1::SampleRequest& request, v1::SampleResponse* response) {
  grpc::ClientContext context;
  context.set_deadline(CallDeadline());
  return v1::SamplingService::NewStub(server.Connect())->Sample(&context, request, response);
}

TEST(SampleTest, DrawsATokenForEachRow) {
  TestServer server;
  v1::SampleResponse response;
  const grpc::Status status = Sample(server, Peaks(9), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.rows_size(), 9);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(response.rows(i).draw().token(), static_cast<uint32_t>(i) % kFew);
  EXPECT_EQ(server.observer().totals().rows, 9u);
  EXPECT_EQ(server.observer().totals().tokens, 9u);
  // The call leaves the server a moment after its client has the response.
  EXPECT_TRUE(Eventually([&] { return server.server().streams() == 0; }));
}

TEST(SampleTest, BadRowFailsAlone) {
  TestServer server;
  v1::SampleRequest request = Peaks(2);
  request.mutable_rows(0)->mutable_parameters()->set_presence_penalty(1);
  v1::SampleResponse response;
  ASSERT_TRUE(Sample(server, request, &response).ok());
  EXPECT_EQ(response.rows(0).error().reason(), v1::CONTRADICTION);
  EXPECT_EQ(response.rows(0).error().field(), "rows[0].parameters.presence_penalty");
  EXPECT_EQ(response.rows(1).draw().token(), 1u);
}

// The thread serves others between the pieces in which it reads them.
TEST(SampleTest, LongOptionsAreAnswered) {
  constexpr int kRows = 3;
  constexpr uint32_t kWide = 30'000;
  TestServer server;
  v1::SampleRequest request = Peaks(kRows);
  request.set_vocabulary_size(kWide);
  request.mutable_logits()->assign(size_t{kRows} * kWide * sizeof(float), '\0');
  for (int i = 0; i < kRows; ++i) {
    const auto token = static_cast<uint32_t>(i);
    v1::SamplingParameters& parameters = *request.mutable_rows(i)->mutable_parameters();
    for (uint32_t other = 0; other < kWide; ++other) {
      if (other != token) parameters.add_banned_token_ids(other);
    }
  }
  v1::SampleResponse response;
  const grpc::Status status = Sample(server, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  for (int i = 0; i < kRows; ++i) EXPECT_EQ(response.rows(i).draw().token(), static_cast<uint32_t>(i));
}

TEST(SampleTest, RefusalsOfTheCallAreTyped) {
  TestServer server;
  v1::SampleRequest request = Peaks(2);
  request.mutable_logits()->pop_back();
  v1::SampleResponse response;
  const grpc::Status status = Sample(server, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  DecodedDetails details = DecodeStatusDetails(status.error_details());
  EXPECT_EQ(details.reason, "SIZE_MISMATCH");
  EXPECT_EQ(details.metadata["field"], "logits");
  std::string bytes;
  const grpc::Status malformed = CallRaw(*server.Connect(), "/sortition.v1.SamplingService/Sample", "\x0a\xff", &bytes);
  EXPECT_EQ(DecodeStatusDetails(malformed.error_details()).reason, "MALFORMED_MESSAGE");
  EXPECT_TRUE(server.log_lines().Await("sample_refused", 2));
  ASSERT_TRUE(Sample(server, Peaks(1), &response).ok());
}

TEST(SampleTest, CountsAsAStream) {
  Config config = TestConfig();
  config.limits.max_streams = 1;
  TestServer server(config);
  v1::SampleResponse response;
  {
    TestStream stream(server.Connect());
    stream.Greet();
    const grpc::Status status = Sample(server, Peaks(1), &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(DecodeStatusDetails(status.error_details()).reason, "OVERLOADED");
    stream.HalfClose();
    EXPECT_TRUE(stream.Finish().ok());
  }
  for (int i = 0; i < 3; ++i) {
    grpc::Status status;
    do {  // the stream's end is counted just after the worker has seen it
      status = Sample(server, Peaks(1), &response);
    } while (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
}

// A call whose answer is larger than a connection's first window, and whose client never opens the window.
class UnreadCall {
 public:
  explicit UnreadCall(const TestServer& server) : client_(server.target()) {
    constexpr uint32_t kVocabulary = 1024;
    v1::SampleRequest request;
    request.set_dtype(v1::DTYPE_F32);
    request.set_vocabulary_size(kVocabulary);
    for (int i = 0; i < kRows; ++i) {
      request.mutable_logits()->append(kVocabulary * sizeof(float), '\0');
      request.add_rows()->mutable_parameters()->mutable_raw_logprobs()->set_top(512);
    }
    const std::string message = request.SerializeAsString();
    std::string bytes(1, '\0');
    for (const uint32_t shift : {24u, 16u, 8u, 0u}) bytes.push_back(static_cast<char>(message.size() >> shift & 0xff));
    bytes += message;
    client_.Call(1, "/sortition.v1.SamplingService/Sample");
    std::string_view left = bytes;
    while (!left.empty() && !client_.ended(1)) {
      left.remove_prefix(client_.SendData(1, left));
      client_.Receive(0);
    }
    client_.HalfClose(1);
    EXPECT_TRUE(Eventually([&] { return server.observer().totals().rows == kRows; }));
  }
  bool AwaitEnd() {
    return Eventually([this] { return client_.Receive(5), client_.ended(1); });
  }

 private:
  static constexpr int kRows = 64;
  Http2Client client_;
};

TEST(SampleTest, UnreadAnswersAreBounded) {
  Config config = TestConfig();
  config.limits.max_streams = 1;
  config.limits.client_answer_bytes = 1024;
  TestServer server(config);
  v1::SampleResponse response;
  {
    const UnreadCall unread(server);
    EXPECT_TRUE(Eventually([&] { return server.server().streams() == 0; })) << "it has no place among the streams";
    const grpc::Status status = Sample(server, Peaks(1), &response);
    DecodedDetails details = DecodeStatusDetails(status.error_details());
    EXPECT_EQ(details.reason, "CLIENT_LIMIT") << status.error_message();
    EXPECT_EQ(details.metadata["limit"], "client_answer_bytes 1024");
  }
  EXPECT_TRUE(Eventually([&] { return Sample(server, Peaks(1), &response).ok(); }));
}

TEST(SampleTest, UnreadAnswerEndsItsCall) {
  Config config = TestConfig();
  config.limits.stalled_write = absl::Milliseconds(100);
  TestServer server(config);
  EXPECT_TRUE(UnreadCall(server).AwaitEnd());
}

TEST(SampleTest, DrainingServerRefuses) {
  TestServer server;
  server.server().Drain();
  v1::SampleResponse response;
  const grpc::Status status = Sample(server, Peaks(1), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DecodeStatusDetails(status.error_details()).reason, "DRAINING");
}

}  // namespace
}  // namespace sortition::server::sample_test
