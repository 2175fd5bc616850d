// Administration: its actions, its callers, and that no other listener serves it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/law/version.h"
#include "service/shard/shard_table.h"
#include "sortition/v1/admin.grpc.pb.h"
#include "sortition/v1/information.grpc.pb.h"
#include "tests/server/client_list_file.h"
#include "tests/server/status_details_decoder.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"
#include "tests/server/test_stream.h"

namespace sortition::server::admin_test {
namespace {

using Stub = v1::AdminService::Stub;

template <typename Request, typename Response>
grpc::Status Call(Stub* stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, Response* response, const std::string& token = "") {
  grpc::ClientContext context;
  context.set_deadline(CallDeadline());
  if (!token.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
  return (stub->*method)(&context, request, response);
}

class AdminTest : public ::testing::Test {
 protected:
  static Config AdminConfig() {
    Config config = TestConfig();
    config.admin_listen = absl::StrCat("unix:", TestPath("admin.sock"));
    return config;
  }
  std::shared_ptr<grpc::Channel> AdminChannel() {
    return grpc::CreateChannel(server_.server().admin_address()->ToString(), grpc::InsecureChannelCredentials());
  }
  bool Logged(const std::string& text) const {
    for (const std::string& line : server_.log_lines().all()) {
      if (absl::StrContains(line, text)) return true;
    }
    return false;
  }

  TestServer server_{AdminConfig()};
  const std::unique_ptr<Stub> stub_ = v1::AdminService::NewStub(AdminChannel());
};

// A sequence with state.
void OpenStateful(TestStream& stream, const std::string& request_id) {
  v1::StreamRequest request;
  v1::OpenSequence* open = request.mutable_open();
  open->set_request_id(request_id);
  open->set_epoch(1);
  open->set_law_version(law::kLawVersion);
  open->set_seed(7);
  open->set_vocabulary_size(kTestVocabulary);
  open->mutable_parameters()->set_presence_penalty(1);
  open->mutable_history()->add_tokens(1);
  open->mutable_history()->set_prompt_length(1);
  ASSERT_TRUE(stream.Send(request));
  ASSERT_TRUE(stream.ReceiveOne().opened().has_state());
}

TEST_F(AdminTest, OnlyAdminIsServedOnItsSocket) {
  grpc::ClientContext context;
  v1::ServerInformation information;
  EXPECT_EQ(
      v1::InformationService::NewStub(AdminChannel())->GetServerInformation(&context, {}, &information).error_code(),
      grpc::StatusCode::UNIMPLEMENTED);
  TestStream stream(AdminChannel());
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
  v1::ListClientsResponse clients;
  EXPECT_EQ(Call(v1::AdminService::NewStub(server_.Connect()).get(), &Stub::ListClients, {}, &clients).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(Call(stub_.get(), &Stub::ListClients, {}, &clients).ok());
}

TEST_F(AdminTest, DrainRequestsShutdown) {
  v1::DrainResponse response;
  EXPECT_TRUE(Call(stub_.get(), &Stub::Drain, {}, &response).ok());
  EXPECT_EQ(server_.stops(), 1);
  EXPECT_TRUE(Logged("\"action\":\"drain\",\"identity\":\"default\""));
}

TEST_F(AdminTest, SetsLogLevel) {
  v1::SetLogLevelRequest request;
  v1::SetLogLevelResponse response;
  request.set_level(v1::LOG_LEVEL_ERROR);
  EXPECT_TRUE(Call(stub_.get(), &Stub::SetLogLevel, request, &response).ok());
  EXPECT_EQ(response.previous(), v1::LOG_LEVEL_DEBUG);
  const size_t lines = server_.log_lines().all().size();
  v1::ListClientsResponse clients;
  EXPECT_TRUE(Call(stub_.get(), &Stub::ListClients, {}, &clients).ok());
  EXPECT_EQ(server_.log_lines().all().size(), lines) << "an info line at level error";
  request.set_level(v1::LOG_LEVEL_UNSPECIFIED);
  const grpc::Status refused = Call(stub_.get(), &Stub::SetLogLevel, request, &response);
  EXPECT_EQ(DecodeStatusDetails(refused.error_details()).metadata["limit"], "debug, info, warning or error");
}

TEST_F(AdminTest, ListsTenantsAndDropsTheirSequences) {
  {
    TestStream stream(server_.Connect());
    stream.Greet();
    OpenStateful(stream, "a");
    OpenStateful(stream, "b");
    v1::ListClientsResponse clients;
    ASSERT_TRUE(Call(stub_.get(), &Stub::ListClients, {}, &clients).ok());
    ASSERT_EQ(clients.clients_size(), 1);
    EXPECT_EQ(clients.clients(0).identity(), "default");
    EXPECT_EQ(clients.clients(0).streams(), 1u);
    EXPECT_EQ(clients.clients(0).sequences(), 2u);
    EXPECT_GT(clients.clients(0).state_bytes(), 0u);
    stream.HalfClose();
    EXPECT_TRUE(stream.Finish().ok());
  }
  ASSERT_TRUE(server_.log_lines().Await("stream_close"));
  v1::ForgetSequencesRequest request;
  request.set_identity("another");
  v1::ForgetSequencesResponse response;
  ASSERT_TRUE(Call(stub_.get(), &Stub::ForgetSequences, request, &response).ok());
  EXPECT_EQ(response.forgotten(), 0u);
  request.set_identity("default");
  ASSERT_TRUE(Call(stub_.get(), &Stub::ForgetSequences, request, &response).ok());
  EXPECT_EQ(response.forgotten(), 2u);
  EXPECT_EQ(response.busy(), 0u);
  EXPECT_EQ(server_.engine().sequences().live_sequences(), 0u);
  // Memory that the stream held is freed shortly after its end is logged.
  EXPECT_TRUE(Eventually([&] { return server_.engine().sequences().state_bytes() == 0; }));
  request.clear_identity();
  EXPECT_EQ(Call(stub_.get(), &Stub::ForgetSequences, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(AdminTest, DropsAnswersKeptForTenantsRanks) {
  TestStream stream(server_.Connect());
  stream.Greet();
  v1::StreamRequest bring;
  bring.mutable_bring_answer()->mutable_asked()->set_request_id("a");
  bring.mutable_bring_answer()->mutable_asked()->set_step_id(1);
  bring.mutable_bring_answer()->mutable_result()->set_step_id(1);
  bring.mutable_bring_answer()->mutable_result()->mutable_draw()->set_token(7);
  ASSERT_TRUE(stream.Send(bring));
  OpenStateful(stream, "b");  // is answered after that
  EXPECT_EQ(server_.engine().shards().kept(), 1u);
  v1::ForgetSequencesRequest request;
  v1::ForgetSequencesResponse response;
  request.set_identity("another");
  ASSERT_TRUE(Call(stub_.get(), &Stub::ForgetSequences, request, &response).ok());
  EXPECT_EQ(server_.engine().shards().kept(), 1u);
  request.set_identity("default");
  ASSERT_TRUE(Call(stub_.get(), &Stub::ForgetSequences, request, &response).ok());
  EXPECT_EQ(server_.engine().shards().kept(), 0u);
}

TEST_F(AdminTest, InvalidSelfTestDevicesAreRefused) {
  v1::SelfTestDeviceRequest prove;
  prove.set_device("cpu0");
  v1::SelfTestDeviceResponse verdict;
  EXPECT_EQ(Call(stub_.get(), &Stub::SelfTestDevice, prove, &verdict).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  prove.set_device(std::string(129, 'x'));
  const grpc::Status refused = Call(stub_.get(), &Stub::SelfTestDevice, prove, &verdict);
  EXPECT_EQ(DecodeStatusDetails(refused.error_details()).metadata["field"], "device");
}

TEST(AdminAuthorizationTest, OverTcpTheRoleIsRequired) {
  const TestCertificates certificates("admin");
  const ClientListFile file(
      absl::StrCat("operator admin ", Sha256("operators-token"), "\nengine sample ", Sha256("engines-token"), "\n"));
  Config config = TestConfig();
  config.clients = file.path();
  config.tls_certificate = certificates.server_certificate_path();
  config.tls_key = certificates.server_key_path();
  config.admin_listen = "127.0.0.1:0";
  TestServer server(config);
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("localhost");
  const auto stub = v1::AdminService::NewStub(grpc::CreateCustomChannel(server.server().admin_address()->ToString(),
                                                                        certificates.ClientCredentials(""), arguments));
  v1::ListClientsResponse clients;
  EXPECT_TRUE(Call(stub.get(), &Stub::ListClients, {}, &clients, "operators-token").ok());
  EXPECT_EQ(Call(stub.get(), &Stub::ListClients, {}, &clients, "engines-token").error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Call(stub.get(), &Stub::ListClients, {}, &clients, "").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  v1::DrainResponse response;
  EXPECT_FALSE(Call(stub.get(), &Stub::Drain, {}, &response, "engines-token").ok());
  EXPECT_EQ(server.stops(), 0);
  EXPECT_TRUE(server.log_lines().Await("admin_refused", 3));
}

}  // namespace
}  // namespace sortition::server::admin_test
