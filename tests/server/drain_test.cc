// Draining, as clients see it from the announcement to the end.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "tests/server/status_details_decoder.h"
#include "tests/server/test_server.h"
#include "tests/server/test_stream.h"

namespace sortition::server::drain_test {
namespace {

// grpc.health.v1.HealthCheckResponse with status NOT_SERVING.
constexpr char kNotServing[] = "\x08\x02";

class DrainTest : public ::testing::Test {
 protected:
  void Start(absl::Duration grace) {
    Config config = TestConfig();
    config.drain_grace = grace;
    server_.emplace(config);
    channel_ = server_->Connect();
    stream_ = std::make_unique<TestStream>(channel_);
    stream_->Greet();
    stream_->OpenSequence("r");
  }

  // A step that does not end before the device is released.
  void HoldStep() {
    server_->device().Hold();
    ASSERT_TRUE(stream_->SendStep("r", 1));
    server_->device().AwaitBatch();
  }

  void ExpectNotice() {
    const v1::StreamResponse response = stream_->ReceiveOne();
    ASSERT_TRUE(response.has_draining());
    EXPECT_EQ(response.draining().cause(), v1::DrainingNotice::CAUSE_SHUTDOWN);
  }

  void ExpectEndsAsDrained() {
    const grpc::Status status = stream_->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    const DecodedDetails details = DecodeStatusDetails(status.error_details());
    EXPECT_TRUE(details.valid);
    EXPECT_EQ(details.reason, "DRAINING");
  }

  std::optional<TestServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<TestStream> stream_;
};

TEST_F(DrainTest, StepsInFlightAreAnsweredLaterRefused) {
  Start(absl::Seconds(20));
  HoldStep();
  std::thread drain([this] { server_->server().Drain(); });
  ExpectNotice();

  std::string health;
  EXPECT_TRUE(CallRaw(*channel_, "/grpc.health.v1.Health/Check", "", &health).ok());
  EXPECT_EQ(health, kNotServing);
  const grpc::Status refused = TestStream(channel_).Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(DecodeStatusDetails(refused.error_details()).reason, "DRAINING");
  ASSERT_TRUE(stream_->SendStep("r", 2));
  const v1::StreamResponse late = stream_->ReceiveOne();
  EXPECT_EQ(late.results().batch_id(), 2u);
  EXPECT_EQ(late.results().error().reason(), v1::DRAINING);

  server_->device().Release();
  const v1::StreamResponse answer = stream_->ReceiveOne();
  EXPECT_EQ(answer.results().batch_id(), 1u);
  EXPECT_TRUE(answer.results().rows(0).has_draw());
  ExpectEndsAsDrained();
  drain.join();
  EXPECT_EQ(server_->server().streams(), 0u);
}

TEST_F(DrainTest, IdleStreamEndsAtOnce) {
  Start(absl::Seconds(20));
  server_->server().Drain();
  EXPECT_EQ(server_->server().streams(), 0u);
  ExpectNotice();
  ExpectEndsAsDrained();
}

TEST_F(DrainTest, GraceEndsAStuckStep) {
  Start(absl::Milliseconds(200));
  HoldStep();
  server_->server().Drain();
  EXPECT_EQ(server_->server().streams(), 0u);
  ExpectNotice();
  ExpectEndsAsDrained();
}

TEST_F(DrainTest, StopWithoutDrainEndsStreams) {
  Start(absl::Seconds(20));
  HoldStep();
  server_->server().Stop();
  EXPECT_FALSE(stream_->Finish().ok());
}

}  // namespace
}  // namespace sortition::server::drain_test
