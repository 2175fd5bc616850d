// Sampling streams over real sockets: limits, ends and drains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/server/status_details_decoder.h"
#include "tests/server/test_server.h"
#include "tests/server/test_stream.h"
#include "tests/support/messages.h"

namespace sortition::server::stream_test {
namespace {

// A close of an unknown sequence with a long name: about `bytes` in, about `bytes` out.
v1::StreamRequest Padded(size_t bytes) {
  v1::StreamRequest request;
  request.mutable_close()->set_request_id(std::string(bytes, 'x'));
  return request;
}

void ExpectServes(TestServer& server) {
  TestStream stream(server.Connect());
  stream.Greet("another");
  stream.OpenSequence("r");
  ASSERT_TRUE(stream.SendStep("r", 1));
  EXPECT_TRUE(stream.ReceiveOne().results().rows(0).has_draw());
  stream.HalfClose();
  EXPECT_TRUE(stream.Finish().ok());
}

// Number of steps that the server has received, once they are at least `count` and kWitnesses health calls that began
// afterwards have been answered. One thread of the server reads streams and answers these calls, in the order in which
// they become ready, so it reads any readable step before it answers the witnesses. A stalled machine makes the test
// slower, but cannot make it pass.
uint64_t StepsReceived(TestServer& server, uint64_t count) {
  constexpr int kWitnesses = 200;
  auto channel = server.Connect();
  const auto call = [&] {
    std::string response;
    // An answered call; health checks have a small budget.
    return CallRaw(*channel, "/sortition.v1.InformationService/GetServerInformation", "", &response).ok();
  };
  const auto deadline = CallDeadline();
  while (server.observer().totals().steps < count && std::chrono::system_clock::now() < deadline) EXPECT_TRUE(call());
  for (int i = 0; i < kWitnesses; ++i) EXPECT_TRUE(call());
  return server.observer().totals().steps;
}

TEST(StreamTest, AnswersAStep) {
  TestServer server;
  ExpectServes(server);
  EXPECT_TRUE(server.log_lines().Await("stream_open"));
  EXPECT_TRUE(server.log_lines().Await("stream_close"));
  for (const std::string& line : server.log_lines().all()) {
    EXPECT_THAT(line, ::testing::HasSubstr("\"worker_session\":\"another\""));
    if (!absl::StrContains(line, "\"event\":\"stream_")) continue;
    EXPECT_THAT(line, ::testing::HasSubstr("\"peer\":\"ipv4:127.0.0.1:"));
  }
}

TEST(StreamTest, SeveralThreadsServeSeveralStreams) {
  Config config = TestConfig();
  config.stream_threads = 2;
  TestServer server(config);
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) clients.emplace_back([&] { ExpectServes(server); });
  for (std::thread& client : clients) client.join();
}

TEST(StreamTest, OversizedMessageIsRejectedStreamStays) {
  Config config = TestConfig();
  config.limits.max_message_bytes = 4096;
  TestServer server(config);
  TestStream stream(server.Connect());
  stream.Greet();
  ASSERT_TRUE(stream.Send(Padded(5000)));
  const v1::StreamResponse response = stream.ReceiveOne();
  ASSERT_TRUE(response.has_rejected());
  EXPECT_EQ(response.rejected().message_index(), 2u);
  EXPECT_EQ(response.rejected().error().reason(), v1::TOO_MANY);
  EXPECT_EQ(response.rejected().error().field(), "message");
  EXPECT_EQ(response.rejected().error().limit(), "max_message_bytes 4096");
  stream.OpenSequence("r");
  stream.HalfClose();
  EXPECT_TRUE(stream.Finish().ok());
}

TEST(StreamTest, MessageOverTwiceTheLimitEndsStream) {
  Config config = TestConfig();
  config.limits.max_message_bytes = 4096;
  TestServer server(config);
  TestStream stream(server.Connect());
  stream.Greet();
  stream.Send(Padded(10000));
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  ExpectServes(server);
}

TEST(StreamTest, MalformedMessageIsRejected) {
  TestServer server;
  auto channel = server.Connect();
  std::string response;
  EXPECT_TRUE(CallRaw(*channel, "/sortition.v1.SamplingService/Stream", "\xff\xff\xff", &response).ok());
  v1::StreamResponse parsed;
  ASSERT_TRUE(parsed.ParseFromString(response));
  EXPECT_EQ(parsed.rejected().error().reason(), v1::MALFORMED_MESSAGE);
}

TEST(StreamTest, StreamsBeyondMaxAreRefused) {
  Config config = TestConfig();
  config.limits.max_streams = 2;
  TestServer server(config);
  auto channel = server.Connect();
  TestStream first(channel);
  first.Greet();
  TestStream second(channel);
  second.Greet();
  const grpc::Status refused = TestStream(channel).Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const DecodedDetails details = DecodeStatusDetails(refused.error_details());
  ASSERT_TRUE(details.valid);
  EXPECT_EQ(details.reason, "OVERLOADED");
  EXPECT_EQ(details.metadata.at("limit"), "max_streams 2");
  EXPECT_GT(details.retry_seconds, 0);
  EXPECT_TRUE(server.log_lines().Await("stream_refused"));
  EXPECT_EQ(server.observer().totals().errors, 1u);

  second.HalfClose();
  EXPECT_TRUE(second.Finish().ok());
  // The place is free once the server has seen the end, which may be a moment after the client.
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  v1::StreamResponse response;
  bool admitted = false;
  while (!admitted && absl::Now() < deadline) {
    TestStream third(channel);
    v1::StreamRequest hello;
    hello.mutable_hello()->set_worker_session("third");
    third.Send(hello);
    admitted = third.Receive(&response);
    third.Cancel();
    third.Finish();
  }
  EXPECT_TRUE(admitted);
}

// The histories' index takes some tenths of a second, during which one thread serves both streams.
TEST(StreamTest, LongHistoryBlocksNoOtherStream) {
  TestServer server;
  TestStream other(server.Connect());
  other.Greet("another");
  other.OpenSequence("r");
  TestStream stream(server.Connect());
  stream.Greet();
  v1::OpenSequence open = testing::MakeOpen("long", 1, kTestVocabulary);
  open.mutable_parameters()->mutable_dry()->set_multiplier(1);
  for (uint32_t i = 0; i < 150'000; ++i) open.mutable_history()->add_tokens(kTestVocabulary - 1 - i % 256);
  ASSERT_TRUE(stream.Send(testing::Message(open)));
  std::atomic<bool> opened = false;
  std::thread receiver([&] {
    EXPECT_TRUE(stream.ReceiveOne().opened().has_state());
    opened = true;
  });
  uint64_t steps = 0;
  while (!opened) {
    ASSERT_TRUE(other.SendStep("r", steps + 1));
    EXPECT_TRUE(other.ReceiveOne().results().rows(0).has_draw());
    ++steps;
  }
  receiver.join();
  EXPECT_GE(steps, 10u);
}

TEST(StreamTest, UnreadingClientIsBoundedThenEnded) {
  Config config = TestConfig();
  config.limits.stalled_write = absl::Milliseconds(500);
  TestServer server(config);
  TestStream stalled(server.Connect());
  std::atomic<int> sent = 0;
  std::thread sender([&] {
    const v1::StreamRequest request = Padded(1000);
    while (sent < 200000 && stalled.Send(request)) ++sent;
  });
  ExpectServes(server);  // meanwhile
  EXPECT_TRUE(server.log_lines().Await("stream_stalled"));
  sender.join();
  // 1024 answers that wait, and those in the windows and buffers of two transports: about 3000 in all.
  EXPECT_LT(sent, 8000);
  EXPECT_FALSE(stalled.Finish().ok());
  ExpectServes(server);
}

// Sends compact rows of one token, whose answers name the tokens that they lack.
void ExpectUnreadAnswersStopReading(const Config& config) {
  constexpr uint32_t kBiased = 60'000;
  constexpr uint64_t kSteps = 80;  // answers of 14 MB, more than the transport takes
  TestServer server(config);
  TestStream stream(server.Connect());
  stream.Greet();
  v1::OpenSequence open = testing::MakeOpen("a", 1, kBiased + 1);
  for (uint32_t token = 1; token <= kBiased; ++token) {
    v1::LogitBias& bias = *open.mutable_parameters()->add_logit_bias();
    bias.set_token(token);
    bias.set_bias(1);
  }
  ASSERT_TRUE(stream.Send(testing::Message(open)));
  ASSERT_TRUE(stream.ReceiveOne().opened().has_state());
  v1::StreamRequest step;
  v1::LogitsTensor& logits = *step.mutable_step()->mutable_logits();
  logits.mutable_pairs()->mutable_inline_()->set_payload(0);
  logits.set_dtype(v1::DTYPE_F32);
  logits.set_vocabulary_size(kBiased + 1);
  v1::StepRow& row = *step.mutable_step()->add_rows();
  row.set_request_id("a");
  row.add_compact()->set_first(1);
  // Token 0, logit 0, and bytes without which the message were too short for an answer of that length.
  step.add_payloads(std::string(kBiased / 16, '\0'));
  for (uint64_t id = 1; id <= kSteps; ++id) {
    step.mutable_step()->set_batch_id(id);
    row.set_step_id(id);
    ASSERT_TRUE(stream.Send(step));
  }
  for (int i = 0; i < 20; ++i) EXPECT_LT(StepsReceived(server, 0), kSteps);
  for (uint64_t id = 1; id <= kSteps; ++id) {
    const v1::StreamResponse response = stream.ReceiveOne();
    ASSERT_EQ(response.results().rows_size(), 1) << id;
    const v1::Error& error = response.results().rows(0).error();
    ASSERT_EQ(error.required_size(), 1) << id;
    EXPECT_EQ(error.required(0).tokens_size(), static_cast<int>(kBiased)) << id;
  }
}

TEST(StreamTest, UnreadAnswersOfStreamStopReading) {
  Config config = TestConfig();
  config.limits.max_message_bytes = config.limits.stream_unanswered_bytes = 1 << 20;
  ExpectUnreadAnswersStopReading(config);
}

TEST(StreamTest, UnreadAnswersOfClientStopReading) {
  Config config = TestConfig();
  config.limits.max_message_bytes = config.limits.client_answer_bytes = 1 << 20;
  ExpectUnreadAnswersStopReading(config);
}

TEST(StreamTest, AnswersArriveAfterHalfClose) {
  TestServer server;
  server.device().Hold();
  TestStream stream(server.Connect());
  stream.Greet();
  stream.OpenSequence("r");
  ASSERT_TRUE(stream.SendStep("r", 1));
  stream.HalfClose();
  server.device().AwaitBatch();
  server.device().Release();
  const v1::StreamResponse response = stream.ReceiveOne();
  EXPECT_EQ(response.results().batch_id(), 1u);
  EXPECT_TRUE(response.results().rows(0).has_draw());
  EXPECT_TRUE(stream.Finish().ok());
}

TEST(StreamTest, ClientMayVanishDuringStep) {
  TestServer server;
  server.device().Hold();
  {
    TestStream stream(server.Connect());
    stream.Greet();
    stream.OpenSequence("r");
    ASSERT_TRUE(stream.SendStep("r", 1));
    server.device().AwaitBatch();
    stream.Cancel();
    EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(server.log_lines().Await("stream_close"));
  server.device().Release();
  ExpectServes(server);
}

TEST(StreamTest, FullWindowStopsReadingUntilAnswersLeave) {
  Config config = TestConfig();
  config.limits.max_step_positions = 1;
  config.limits.stream_unanswered_rows = 1;
  TestServer server(config);
  server.device().Hold();
  TestStream stream(server.Connect());
  stream.Greet();
  stream.OpenSequence("a");
  stream.OpenSequence("b");
  ASSERT_TRUE(stream.SendStep("a", 1));
  ASSERT_TRUE(stream.SendStep("b", 2));
  server.device().AwaitBatch();
  EXPECT_EQ(StepsReceived(server, 1), 1u);
  server.device().Release();
  EXPECT_EQ(stream.ReceiveOne().results().batch_id(), 1u);
  EXPECT_EQ(stream.ReceiveOne().results().batch_id(), 2u);
  stream.HalfClose();
  EXPECT_TRUE(stream.Finish().ok());
}

// `limit`: the bytes of messages that are held. `name`: its own and its value.
void ExpectFullLimitReadsNoStream(uint64_t service::Limits::*limit, const char* name) {
  Config config = TestConfig();
  config.limits.max_message_bytes = 4096;
  config.limits.stream_unanswered_bytes = 4096;
  config.limits.*limit = 4096;
  TestServer server(config);
  server.device().Hold();
  TestStream first(server.Connect());
  first.Greet("first");
  first.OpenSequence("r");
  TestStream second(server.Connect());
  second.Greet("second");
  second.OpenSequence("r");
  // Two steps of a little over 2048 bytes each fill the budget.
  ASSERT_TRUE(first.SendStep("r", 1));
  ASSERT_TRUE(second.SendStep("r", 1));
  EXPECT_EQ(StepsReceived(server, 2), 2u);
  ASSERT_TRUE(first.SendStep("r", 2));
  ASSERT_TRUE(second.SendStep("r", 2));
  // The stream whose step came first had begun to read its next message when the budget was full; the other had not.
  EXPECT_EQ(StepsReceived(server, 3), 3u);
  grpc::ClientContext context;
  v1::SampleResponse response;
  const grpc::Status status =
      v1::SamplingService::NewStub(server.Connect())->Sample(&context, v1::SampleRequest(), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DecodeStatusDetails(status.error_details()).metadata.at("limit"), name);
  server.device().Release();
  for (TestStream* stream : {&first, &second}) {
    EXPECT_TRUE(stream->ReceiveOne().has_results());
    EXPECT_TRUE(stream->ReceiveOne().has_results());
  }
}

TEST(StreamTest, FullServerReadsNoStream) {
  ExpectFullLimitReadsNoStream(&service::Limits::max_received_bytes, "max_received_bytes 4096");
}

TEST(StreamTest, NoStreamOfFullClientIsRead) {
  ExpectFullLimitReadsNoStream(&service::Limits::client_received_bytes, "client_received_bytes 4096");
}

TEST(StreamTest, AgedStreamIsAskedToReopen) {
  Config config = TestConfig();
  config.limits.max_stream_age = absl::Milliseconds(200);
  TestServer server(config);
  TestStream stream(server.Connect());
  stream.Greet();
  const v1::StreamResponse response = stream.ReceiveOne();
  ASSERT_TRUE(response.has_draining());
  EXPECT_EQ(response.draining().cause(), v1::DrainingNotice::CAUSE_STREAM_AGE);
  const grpc::Status status = stream.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DecodeStatusDetails(status.error_details()).reason, "DRAINING");
}

TEST(StreamTest, CompressedCallsAreRefused) {
  TestServer server;
  grpc::ClientContext context;
  context.set_deadline(CallDeadline());
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  const auto stub = v1::SamplingService::NewStub(server.Connect());
  const auto stream = stub->Stream(&context);
  stream->Write(Padded(10000));
  v1::StreamResponse response;
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

// Half of a rolling upgrade: a worker of a later contract, with fields that this server does not know.
TEST(StreamTest, NewerClientIsServed) {
  constexpr int kLaterField = 700;
  const auto add = [](google::protobuf::Message* message) {
    message->GetReflection()->MutableUnknownFields(message)->AddLengthDelimited(kLaterField, "later");
  };
  TestServer server;
  TestStream stream(server.Connect());
  v1::StreamRequest request;
  request.mutable_hello()->set_worker_session("newer");
  add(request.mutable_hello());
  ASSERT_TRUE(stream.Send(request));
  const v1::Rejected rejected = stream.ReceiveOne().rejected();
  EXPECT_EQ(rejected.error().reason(), v1::UNKNOWN_FIELD);
  EXPECT_EQ(rejected.error().field(), "hello.#700");
  testing::IgnoreUnknownFields(request.mutable_hello());
  ASSERT_TRUE(stream.Send(request));
  EXPECT_THAT(stream.ReceiveOne().welcome().ignored_fields(), ::testing::ElementsAre("hello.#700"));

  v1::StreamRequest open;
  open.mutable_open()->set_request_id("r");
  open.mutable_open()->set_law_version(1);
  open.mutable_open()->set_vocabulary_size(4);
  add(open.mutable_open());
  ASSERT_TRUE(stream.Send(open));
  EXPECT_THAT(stream.ReceiveOne().ignored_fields().fields(), ::testing::ElementsAre("open.#700"));
  EXPECT_TRUE(stream.ReceiveOne().opened().has_state());

  v1::StreamRequest step;
  v1::LogitsTensor& logits = *step.mutable_step()->mutable_logits();
  logits.mutable_source()->mutable_inline_()->set_payload(0);
  logits.set_dtype(v1::DTYPE_F32);
  logits.set_vocabulary_size(4);
  v1::StepRow& row = *step.mutable_step()->add_rows();
  row.set_request_id("r");
  row.set_step_id(1);
  add(&row);
  constexpr float kLogits[] = {0, 0, 90, 0};
  step.add_payloads(reinterpret_cast<const char*>(kLogits), sizeof(kLogits));
  ASSERT_TRUE(stream.Send(step));
  EXPECT_EQ(stream.ReceiveOne().results().rows(0).error().field(), "step.rows[0].#700") << "it may be a task";
  row.mutable_draw();
  ASSERT_TRUE(stream.Send(step));
  EXPECT_THAT(stream.ReceiveOne().ignored_fields().fields(), ::testing::ElementsAre("step.rows[].#700"));
  EXPECT_EQ(stream.ReceiveOne().results().rows(0).draw().token(), 2u);
  stream.HalfClose();
  EXPECT_TRUE(stream.Finish().ok());
}

}  // namespace
}  // namespace sortition::server::stream_test
