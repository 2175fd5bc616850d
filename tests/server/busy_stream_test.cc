// A stream whose thread is at work on one message: everybody else is served meanwhile.
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/server/client_list_file.h"
#include "tests/server/test_server.h"
#include "tests/server/test_stream.h"

namespace sortition::server::busy_stream_test {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// The server has one thread for streams, and the device keeps it until the fixture lets it go.
class BusyStreamTest : public ::testing::Test {
 protected:
  static Config ListConfig(const std::string& path) {
    Config config = TestConfig();
    config.clients = path;
    config.health_listen = "127.0.0.1:0";
    config.drain_grace = absl::Seconds(20);
    return config;
  }

  BusyStreamTest() {
    idle_.Greet();
    busy_.Greet();
    busy_.OpenSequence("r");
    // The thread has noted the end of each write. A stream with one under way is told nothing until the thread is free.
    EXPECT_TRUE(Eventually([&] {
      const auto metrics = prometheus::TextSerializer().Serialize(server_.observer().registry()->Collect());
      return absl::StrContains(metrics, "sortition_sent_messages_total{transport=\"tcp\"} 3");
    }));
    server_.device().HoldThreads();
    EXPECT_TRUE(busy_.SendStep("r", 1));
    server_.device().AwaitThread();
  }
  ~BusyStreamTest() { server_.device().Release(); }

  HealthCheckResponse::ServingStatus Check(const std::string& address) {
    grpc::ClientContext context;
    context.set_deadline(CallDeadline());
    HealthCheckResponse response;
    const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    const grpc::Status status = Health::NewStub(channel)->Check(&context, HealthCheckRequest(), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.status();
  }

  ClientListFile file_{absl::StrCat("engine-a sample ", Sha256("token-a"), "\nengine-b sample ", Sha256("token-b"))};
  TestServer server_{ListConfig(file_.path())};
  TestStream busy_{server_.Connect(), "Bearer token-a"};
  TestStream idle_{server_.Connect(), "Bearer token-b"};
};

TEST_F(BusyStreamTest, HealthIsAnswered) {
  for (const std::string& address : {server_.target(), server_.server().health_address()->ToString()}) {
    EXPECT_EQ(Check(address), HealthCheckResponse::SERVING) << address;
  }
}

TEST_F(BusyStreamTest, ItsStruckOffClientLosesIt) {
  file_.Replace(absl::StrCat("engine-b sample ", Sha256("token-b")));
  EXPECT_EQ(busy_.Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(BusyStreamTest, OtherStruckOffClientsLoseTheirs) {
  file_.Replace(absl::StrCat("engine-a sample ", Sha256("token-a")));
  EXPECT_EQ(idle_.Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(BusyStreamTest, DrainReachesEveryStream) {
  std::thread drain([this] { server_.server().Drain(); });
  const absl::Cleanup join = [&] { drain.join(); };
  for (TestStream* stream : {&idle_, &busy_}) EXPECT_TRUE(stream->ReceiveOne().has_draining());
  EXPECT_EQ(Check(server_.target()), HealthCheckResponse::NOT_SERVING);
  server_.device().Release();
  const v1::StreamResponse answer = busy_.ReceiveOne();
  ASSERT_EQ(answer.results().rows_size(), 1);
  EXPECT_TRUE(answer.results().rows(0).has_draw());
  for (TestStream* stream : {&idle_, &busy_}) EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace sortition::server::busy_stream_test
