// The standard health check, on the listener that serves everything, and on the listener for health only.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/server/status_details_decoder.h"
#include "tests/server/test_server.h"

namespace sortition::server::health_test {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

enum class Listener { kOfAll, kOfHealth };

class HealthTest : public ::testing::TestWithParam<Listener> {
 protected:
  static Config WithHealthListener() {
    Config config = TestConfig();
    config.health_listen = "127.0.0.1:0";
    config.limits.connection_watchers = 3;
    config.limits.max_watchers = 5;
    return config;
  }

  HealthTest() { context_.set_deadline(CallDeadline()); }

  std::shared_ptr<grpc::Channel> Connect() {
    if (GetParam() == Listener::kOfAll) return server_.Connect();
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection for each channel
    return grpc::CreateCustomChannel(server_.server().health_address()->ToString(), grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  static HealthCheckRequest Of(const std::string& service) {
    HealthCheckRequest request;
    request.set_service(service);
    return request;
  }

  TestServer server_{WithHealthListener()};
  std::unique_ptr<Health::Stub> stub_ = Health::NewStub(Connect());
  grpc::ClientContext context_;
};

TEST_P(HealthTest, EveryCheckIsAnswered) {
  for (const char* service :
       {"", "sortition.v1.SamplingService", "sortition.v1.InformationService", "sortition.v1.SamplingService"}) {
    grpc::ClientContext context;
    context.set_deadline(CallDeadline());
    HealthCheckResponse response;
    ASSERT_TRUE(stub_->Check(&context, Of(service), &response).ok()) << service;
    EXPECT_EQ(response.status(), HealthCheckResponse::SERVING) << service;
  }
}

TEST_P(HealthTest, UnknownServiceIsNotFound) {
  HealthCheckResponse response;
  EXPECT_EQ(stub_->Check(&context_, Of("sortition.v1.NoService"), &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_P(HealthTest, WatchersLearnOfDrain) {
  constexpr const char* kServices[] = {"", "sortition.v1.SamplingService", "sortition.v1.InformationService"};
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<HealthCheckResponse>>> watches;
  HealthCheckResponse response;
  for (const char* service : kServices) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    contexts.back()->set_deadline(CallDeadline());
    watches.push_back(stub_->Watch(contexts.back().get(), Of(service)));
    ASSERT_TRUE(watches.back()->Read(&response)) << service;
    EXPECT_EQ(response.status(), HealthCheckResponse::SERVING) << service;
  }
  server_.server().Drain();
  for (const auto& watch : watches) {
    ASSERT_TRUE(watch->Read(&response));
    EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  }
  for (size_t i = 0; i < watches.size(); ++i) {
    contexts[i]->TryCancel();
    EXPECT_EQ(watches[i]->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
}

TEST_P(HealthTest, WatchersOfAConnectionAreBounded) {
  HealthCheckResponse response;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<HealthCheckResponse>>> watches;
  for (int i = 0; i < 4; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    contexts.back()->set_deadline(CallDeadline());
    watches.push_back(stub_->Watch(contexts.back().get(), Of("")));
    EXPECT_EQ(watches.back()->Read(&response), i < 3);
  }
  const grpc::Status status = watches.back()->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DecodeStatusDetails(status.error_details()).metadata.at("limit"), "connection_watchers 3");
  const auto other = Health::NewStub(Connect());
  const auto watch = other->Watch(&context_, Of(""));
  EXPECT_TRUE(watch->Read(&response)) << "another connection has its own";
  context_.TryCancel();
}

TEST_P(HealthTest, WatchersOfAllConnectionsAreBounded) {
  constexpr int kMost = 5;
  HealthCheckResponse response;
  std::vector<std::unique_ptr<Health::Stub>> stubs;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<HealthCheckResponse>>> watches;
  for (int i = 0; i <= kMost; ++i) {
    if (i % 3 == 0) stubs.push_back(Health::NewStub(Connect()));
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    contexts.back()->set_deadline(CallDeadline());
    watches.push_back(stubs.back()->Watch(contexts.back().get(), Of("")));
    EXPECT_EQ(watches.back()->Read(&response), i < kMost) << i;
  }
  const grpc::Status status = watches.back()->Finish();
  EXPECT_EQ(DecodeStatusDetails(status.error_details()).metadata.at("limit"), "max_watchers 5");
}

TEST_P(HealthTest, WatchOfUnknownServiceWaits) {
  const auto watch = stub_->Watch(&context_, Of("sortition.v1.NoService"));
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  grpc::ClientContext other_context;
  other_context.set_deadline(CallDeadline());
  const auto other = stub_->Watch(&other_context, Of(""));
  ASSERT_TRUE(other->Read(&response));
  server_.server().Drain();
  ASSERT_TRUE(other->Read(&response));  // sent in the same turn as the first call's change would be
  context_.TryCancel();
  EXPECT_FALSE(watch->Read(&response));
}

TEST_P(HealthTest, StopEndsWatchers) {
  const auto watch = stub_->Watch(&context_, Of(""));
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  server_.server().Stop();
  EXPECT_FALSE(watch->Finish().ok());
}

INSTANTIATE_TEST_SUITE_P(On, HealthTest, ::testing::Values(Listener::kOfAll, Listener::kOfHealth),
                         [](const auto& info) {
                           return info.param == Listener::kOfAll ? "TheListenerOfAll" : "TheListenerOfHealth";
                         });

}  // namespace
}  // namespace sortition::server::health_test
