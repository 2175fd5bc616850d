// Everything except sampling: health, reflection, information, and calls of unknown methods.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/law/version.h"
#include "service/limits.h"
#include "service/version.h"
#include "service/wire/parameter_table.h"
#include "sortition/v1/information.grpc.pb.h"
#include "tests/server/http2_client.h"
#include "tests/server/status_details_decoder.h"
#include "tests/server/test_server.h"
#include "tests/server/test_stream.h"

namespace sortition::server::services_test {
namespace {

using ::testing::HasSubstr;

// grpc.health.v1.HealthCheckRequest.
std::string HealthRequest(const std::string& service) {
  return service.empty() ? "" : absl::StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service);
}

std::string Health(grpc::Channel& channel, const std::string& service) {
  std::string response;
  const grpc::Status status = CallRaw(channel, "/grpc.health.v1.Health/Check", HealthRequest(service), &response);
  return status.ok() ? response : status.error_message();
}

TEST(ServicesTest, UnknownMethodsAreUnimplemented) {
  TestServer server;
  auto channel = server.Connect();
  std::string response;
  EXPECT_EQ(CallRaw(*channel, "/sortition.v1.SamplingService/Guess", "", &response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(CallRaw(*channel, "/sortition.v2.SamplingService/Stream", "", &response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(response, "");
}

TEST(ServicesTest, EveryServiceIsServing) {
  TestServer server;
  auto channel = server.Connect();
  const std::string serving = "\x08\x01";
  EXPECT_EQ(Health(*channel, ""), serving);
  EXPECT_EQ(Health(*channel, "sortition.v1.SamplingService"), serving);
  EXPECT_EQ(Health(*channel, "sortition.v1.InformationService"), serving);
  EXPECT_NE(Health(*channel, "sortition.v1.NoService"), serving);
}

TEST(ServicesTest, HealthListenerServesHealthAlone) {
  Config config = TestConfig();
  config.health_listen = "127.0.0.1:0";
  TestServer server(config);
  ASSERT_TRUE(server.server().health_address());
  auto channel = grpc::CreateChannel(server.server().health_address()->ToString(), grpc::InsecureChannelCredentials());
  EXPECT_EQ(Health(*channel, "sortition.v1.SamplingService"), "\x08\x01");
  std::string response;
  EXPECT_EQ(CallRaw(*channel, "/sortition.v1.SamplingService/Stream", "", &response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(CallRaw(*channel, "/sortition.v1.InformationService/GetServerInformation", "", &response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  server.server().Drain();
  EXPECT_EQ(Health(*channel, "sortition.v1.SamplingService"), "\x08\x02");
}

TEST(ServicesTest, ReflectionListsTheServices) {
  TestServer server;
  auto channel = server.Connect();
  std::string response;
  // grpc.reflection.v1alpha.ServerReflectionRequest with list_services = "*".
  EXPECT_TRUE(
      CallRaw(*channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x3a\x01*", &response).ok());
  EXPECT_THAT(response, HasSubstr("sortition.v1.SamplingService"));
  EXPECT_THAT(response, HasSubstr("sortition.v1.InformationService"));
  EXPECT_THAT(response, HasSubstr("grpc.health.v1.Health"));
}

class InformationTest : public ::testing::Test {
 protected:
  static Config FewWatchers() {
    Config config = TestConfig();
    config.limits.max_watchers = 1;
    return config;
  }

  InformationTest() { context_.set_deadline(CallDeadline()); }

  TestServer server_{FewWatchers()};
  std::unique_ptr<v1::InformationService::Stub> stub_ = v1::InformationService::NewStub(server_.Connect());
  grpc::ClientContext context_;
};

TEST_F(InformationTest, DescribesTheServer) {
  v1::ServerInformation information;
  ASSERT_TRUE(stub_->GetServerInformation(&context_, {}, &information).ok());
  EXPECT_EQ(information.version(), std::string(service::Version()));
  EXPECT_EQ(information.grpc_version(), grpc::Version());
  ASSERT_EQ(information.contracts_size(), 1);
  EXPECT_EQ(information.contracts(0), "sortition.v1");
  ASSERT_EQ(information.law_versions_size(), 1);
  EXPECT_EQ(information.law_versions(0), law::kLawVersion);
  ASSERT_EQ(information.devices_size(), 1);
  EXPECT_EQ(information.devices(0).name(), "cpu0");
  EXPECT_EQ(information.devices(0).kind(), v1::DeviceInformation::KIND_CPU);
  EXPECT_GT(information.devices(0).max_batch_rows(), 0u);
  EXPECT_EQ(information.devices(0).state(), v1::DeviceInformation::STATE_SERVING);
  EXPECT_EQ(information.devices(0).max_vocabulary(), kernels::kMaxVocabulary);
  EXPECT_GT(information.devices(0).launch_nanoseconds(), 0);
  EXPECT_EQ(static_cast<size_t>(information.parameters_size()), service::Parameters().size());
  const auto limits = service::DescribeLimits(FewWatchers().limits);
  ASSERT_EQ(static_cast<size_t>(information.limits_size()), limits.size());
  for (size_t i = 0; i < limits.size(); ++i) {
    EXPECT_EQ(information.limits(static_cast<int>(i)).name(), std::string(limits[i].name));
    EXPECT_EQ(information.limits(static_cast<int>(i)).value(), limits[i].value);
  }
}

// A client that never opens its windows gets the answers of its first calls only.
TEST(InformationServiceTest, UnreadAnswerEndsItsCall) {
  Config config = TestConfig();
  config.limits.stalled_write = absl::Milliseconds(100);
  TestServer server(config);
  constexpr char kPath[] = "/sortition.v1.InformationService/GetServerInformation";
  std::string answer;
  ASSERT_TRUE(CallRaw(*server.Connect(), kPath, "", &answer).ok());
  constexpr uint32_t kFirstWindow = 65'535;
  const auto calls = static_cast<uint32_t>(kFirstWindow / answer.size() + 1);
  Http2Client client(server.target());
  for (uint32_t i = 0; i < calls; ++i) {
    client.Call(2 * i + 1, kPath);
    EXPECT_EQ(client.SendData(2 * i + 1, std::string(5, '\0')), 5u);
    client.HalfClose(2 * i + 1);
  }
  for (uint32_t i = 0; i < calls; ++i) {
    EXPECT_TRUE(Eventually([&] { return client.Receive(5), client.ended(2 * i + 1); })) << i;
  }
}

TEST(MissingDevicesTest, ListedLastWithReasonWithoutFigures) {
  TestServer server(TestConfig(), nullptr,
                    {{"vulkan:no-such", "vulkan", "", "no driver"}, {"cuda0", "cuda", "Some GPU", "out of memory"}});
  grpc::ClientContext context;
  context.set_deadline(CallDeadline());
  v1::ServerInformation information;
  const auto stub = v1::InformationService::NewStub(server.Connect());
  ASSERT_TRUE(stub->GetServerInformation(&context, {}, &information).ok());
  ASSERT_EQ(information.devices_size(), 3);
  EXPECT_EQ(information.devices(0).state(), v1::DeviceInformation::STATE_SERVING);
  v1::DeviceInformation expected;
  expected.set_name("vulkan:no-such");
  expected.set_kind(v1::DeviceInformation::KIND_VULKAN);
  expected.set_state(v1::DeviceInformation::STATE_MISSING);
  expected.set_reason("no driver");
  EXPECT_EQ(information.devices(1).SerializeAsString(), expected.SerializeAsString());
  expected.set_name("cuda0");
  expected.set_kind(v1::DeviceInformation::KIND_CUDA);
  expected.set_hardware("Some GPU");
  expected.set_reason("out of memory");
  EXPECT_EQ(information.devices(2).SerializeAsString(), expected.SerializeAsString());
}

TEST_F(InformationTest, CountersFollowEvents) {
  TestStream stream(server_.Connect());
  stream.Greet();
  stream.OpenSequence("r");
  v1::WatchCountersRequest request;
  request.mutable_interval()->set_nanos(100'000'000);
  const auto watch = stub_->WatchCounters(&context_, request);
  v1::Counters counters;
  ASSERT_TRUE(watch->Read(&counters));
  EXPECT_EQ(counters.streams(), 1u);
  EXPECT_EQ(counters.steps(), 0u);
  ASSERT_TRUE(stream.SendStep("r", 1));
  EXPECT_TRUE(stream.ReceiveOne().has_results());
  // Readings from before the step may still be on their way.
  while (counters.batches() == 0 && watch->Read(&counters)) {
  }
  EXPECT_EQ(counters.steps(), 1u);
  EXPECT_EQ(counters.rows(), 1u);
  EXPECT_EQ(counters.tokens(), 1u);
  EXPECT_EQ(counters.batches(), 1u);
  EXPECT_EQ(counters.queued_rows(), 0u);
  EXPECT_GT(counters.uptime().seconds() * 1'000'000'000 + counters.uptime().nanos(), 100'000'000);
  context_.TryCancel();
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(InformationTest, WatchersAreBounded) {
  const auto first = stub_->WatchCounters(&context_, {});
  v1::Counters counters;
  ASSERT_TRUE(first->Read(&counters));
  grpc::ClientContext context;
  context.set_deadline(CallDeadline());
  const auto second = stub_->WatchCounters(&context, {});
  EXPECT_FALSE(second->Read(&counters));
  const grpc::Status status = second->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DecodeStatusDetails(status.error_details()).metadata.at("limit"), "max_watchers 1");
}

TEST_F(InformationTest, IntervalsOutOfRangeAreRefused) {
  v1::WatchCountersRequest request;
  request.mutable_interval()->set_seconds(61);
  const auto watch = stub_->WatchCounters(&context_, request);
  v1::Counters counters;
  EXPECT_FALSE(watch->Read(&counters));
  const grpc::Status status = watch->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  const DecodedDetails details = DecodeStatusDetails(status.error_details());
  EXPECT_EQ(details.reason, "OUT_OF_RANGE");
  EXPECT_EQ(details.metadata.at("field"), "interval");
}

TEST_F(InformationTest, UnknownFieldsAreRefused) {
  auto channel = server_.Connect();
  std::string response;
  // Field 9, varint 1.
  const grpc::Status status =
      CallRaw(*channel, "/sortition.v1.InformationService/GetServerInformation", "\x48\x01", &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DecodeStatusDetails(status.error_details()).reason, "UNKNOWN_FIELD");
}

TEST_F(InformationTest, StopEndsWatchers) {
  v1::WatchCountersRequest request;
  request.mutable_interval()->set_seconds(60);
  const auto watch = stub_->WatchCounters(&context_, request);
  v1::Counters counters;
  ASSERT_TRUE(watch->Read(&counters));
  server_.server().Stop();
  EXPECT_FALSE(watch->Finish().ok());
}

}  // namespace
}  // namespace sortition::server::services_test
