// TLS: the clients that are admitted, and the owners of sequences.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kernels/law/version.h"
#include "service/net/credentials.h"
#include "tests/server/server_process.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"
#include "tests/server/test_stream.h"

namespace sortition::server::tls_test {
namespace {

class TlsTest : public ::testing::Test {
 protected:
  Config TlsConfig(bool clients_show_certificates) const {
    Config config = TestConfig();
    config.tls_certificate = certificates_.server_certificate_path();
    config.tls_key = certificates_.server_key_path();
    if (clients_show_certificates) config.tls_client_ca = certificates_.authority_path();
    return config;
  }

  static std::shared_ptr<grpc::Channel> Connect(const TestServer& server,
                                                const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetSslTargetNameOverride("localhost");
    return grpc::CreateCustomChannel(server.target(), credentials, arguments);
  }

  static bool Welcomes(const TestServer& server, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    TestStream stream(Connect(server, credentials));
    v1::StreamRequest hello;
    hello.mutable_hello()->set_worker_session("worker");
    stream.Send(hello);
    v1::StreamResponse response;
    const bool welcome = stream.Receive(&response) && response.has_welcome();
    stream.Cancel();
    stream.Finish();
    return welcome;
  }

  // Opens a sequence with state; with the tokens of its history, or without.
  static v1::SequenceOpened Open(TestStream& stream, uint64_t epoch, bool with_history) {
    v1::StreamRequest request;
    v1::OpenSequence* open = request.mutable_open();
    open->set_request_id("r");
    open->set_epoch(epoch);
    open->set_law_version(law::kLawVersion);
    open->set_seed(7);
    open->set_vocabulary_size(kTestVocabulary);
    open->mutable_parameters()->set_presence_penalty(1);
    if (with_history) {
      open->mutable_history()->add_tokens(1);
      open->mutable_history()->set_prompt_length(1);
    }
    EXPECT_TRUE(stream.Send(request));
    return stream.ReceiveOne().opened();
  }

  const TestCertificates certificates_{"tls"};
};

TEST_F(TlsTest, ServesClientsThatTrustIt) {
  TestServer server(TlsConfig(false));
  EXPECT_TRUE(Welcomes(server, certificates_.ClientCredentials("")));
  EXPECT_FALSE(Welcomes(server, grpc::InsecureChannelCredentials()));
  EXPECT_FALSE(Welcomes(server, TestCertificates("other").ClientCredentials("")));
}

TEST_F(TlsTest, ClientCertificateIsRequired) {
  TestServer server(TlsConfig(true));
  EXPECT_TRUE(Welcomes(server, certificates_.ClientCredentials("a.test")));
  EXPECT_FALSE(Welcomes(server, certificates_.ClientCredentials("")));
  EXPECT_FALSE(Welcomes(server, grpc::InsecureChannelCredentials()));
}

TEST_F(TlsTest, CertificateIdentityIsTenant) {
  TestServer server(TlsConfig(true));
  TestStream owner(Connect(server, certificates_.ClientCredentials("a.test")));
  owner.Greet("worker");
  EXPECT_TRUE(Open(owner, 1, true).has_state());

  // The same worker session and request, with a higher epoch: another caller finds nothing and takes nothing over.
  TestStream stranger(Connect(server, certificates_.ClientCredentials("b.test")));
  stranger.Greet("worker");
  EXPECT_EQ(Open(stranger, 9, false).error().reason(), v1::HISTORY_REQUIRED);

  TestStream same(Connect(server, certificates_.ClientCredentials("a.test")));
  same.Greet("worker");
  const v1::SequenceOpened opened = Open(same, 2, false);
  EXPECT_TRUE(opened.has_state()) << opened.ShortDebugString();
  EXPECT_EQ(opened.state().position(), 1u);
  bool named = false;
  for (const std::string& line : server.log_lines().all())
    named |= line.find("\"tenant\":\"a.test\"") != std::string::npos;
  EXPECT_TRUE(named);
}

// The next connection meets the new certificate; an open stream continues as if nothing had happened.
TEST_F(TlsTest, CertificatesReloadUnderLiveStreams) {
  const TestCertificates next("next");
  const TestCertificates serving("serving");
  Config config = TestConfig();
  config.tls_certificate = serving.server_certificate_path();
  config.tls_key = serving.server_key_path();
  config.tls_client_ca = serving.authority_path();
  config.tls_refresh = absl::Seconds(1);
  TestServer server(config);
  TestStream open(Connect(server, serving.ClientCredentials("a.test")));
  open.Greet();
  open.OpenSequence("r");
  ASSERT_TRUE(open.SendStep("r", 1));
  EXPECT_TRUE(open.ReceiveOne().results().rows(0).has_draw());
  EXPECT_FALSE(Welcomes(server, next.ClientCredentials("a.test")));

  for (const auto& [from, to] : {std::pair(next.authority_path(), serving.authority_path()),
                                 std::pair(next.server_key_path(), serving.server_key_path()),
                                 std::pair(next.server_certificate_path(), serving.server_certificate_path())}) {
    std::filesystem::rename(from, to);
  }
  uint64_t step = 1;
  const absl::Time deadline = absl::Now() + absl::Seconds(15);
  bool welcomes = false;
  while (!welcomes && absl::Now() < deadline) {
    ASSERT_TRUE(open.SendStep("r", ++step));
    ASSERT_TRUE(open.ReceiveOne().results().rows(0).has_draw());
    welcomes = Welcomes(server, next.ClientCredentials("a.test"));
  }
  EXPECT_TRUE(welcomes);
  EXPECT_FALSE(Welcomes(server, serving.ClientCredentials("a.test")));
  ASSERT_TRUE(open.SendStep("r", ++step));
  EXPECT_TRUE(open.ReceiveOne().results().rows(0).has_draw());
  open.HalfClose();
  EXPECT_TRUE(open.Finish().ok());
}

TEST_F(TlsTest, SpiffeIdIsTenant) {
  TestServer server(TlsConfig(true));
  const auto is_tenant = [&](const std::string& names, const std::string& tenant) {
    if (!Welcomes(server, certificates_.ClientCredentials(names))) return false;
    const std::vector<std::string> lines = server.log_lines().all();
    return std::ranges::any_of(lines, [&](const std::string& line) {
      return line.find("\"stream_open\"") != std::string::npos &&
             line.find("\"tenant\":\"" + tenant + "\"") != std::string::npos;
    });
  };
  EXPECT_TRUE(is_tenant("DNS:a.test,URI:spiffe://test/ns/engine/sa/a", "spiffe://test/ns/engine/sa/a"));
  EXPECT_TRUE(is_tenant("URI:spiffe://test/ns/engine/sa/b", "spiffe://test/ns/engine/sa/b"));
  EXPECT_TRUE(is_tenant("DNS:b.test,URI:https://b.test/", "b.test"));
  EXPECT_FALSE(Welcomes(server, certificates_.ClientCredentials("URI:spiffe://test/a,URI:spiffe://test/b")));
}

// A new connection needs a valid certificate; a stream that is open continues.
TEST_F(TlsTest, CertificateThatEndsStopsNewConnections) {
  TestServer server(TlsConfig(true));
  const auto brief = certificates_.ClientCredentials("URI:spiffe://test/a", 2);
  EXPECT_FALSE(Welcomes(server, certificates_.ClientCredentials("a.test", -1)));
  TestStream open(Connect(server, brief));
  open.Greet();
  open.OpenSequence("r");
  uint64_t step = 0;
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  bool welcomes = true;
  while (welcomes && absl::Now() < deadline) {
    ASSERT_TRUE(open.SendStep("r", ++step));
    ASSERT_TRUE(open.ReceiveOne().results().rows(0).has_draw());
    welcomes = Welcomes(server, brief);
  }
  EXPECT_FALSE(welcomes);
  ASSERT_TRUE(open.SendStep("r", ++step));
  EXPECT_TRUE(open.ReceiveOne().results().rows(0).has_draw());
}

// The server's own certificate ends in service: new connections fail until it is renewed, and need no restart then. A
// stream that is open continues throughout.
TEST_F(TlsTest, ServersCertificateThatEndsIsRenewedInService) {
  const TestCertificates ending("ending");
  ending.RenewServer(4);
  Config config = TestConfig();
  config.tls_certificate = ending.server_certificate_path();
  config.tls_key = ending.server_key_path();
  config.tls_refresh = absl::Seconds(1);
  TestServer server(config);
  const auto credentials = ending.ClientCredentials("");
  TestStream open(Connect(server, credentials));
  open.Greet();
  open.OpenSequence("r");
  uint64_t step = 0;
  const auto await_welcome = [&](bool wanted) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    bool welcomes = !wanted;
    while (welcomes != wanted && absl::Now() < deadline) {
      EXPECT_TRUE(open.SendStep("r", ++step));
      EXPECT_TRUE(open.ReceiveOne().results().rows(0).has_draw());
      welcomes = Welcomes(server, credentials);
    }
    return welcomes == wanted;
  };
  ASSERT_TRUE(await_welcome(false));
  EXPECT_LE(CertificateEnd(config.tls_certificate).value_or(absl::InfiniteFuture()), absl::Now());
  ending.RenewServer();
  EXPECT_TRUE(await_welcome(true));
  EXPECT_GT(CertificateEnd(config.tls_certificate).value_or(absl::InfinitePast()), absl::Now());
}

TEST_F(TlsTest, EndOfCertificateIsRead) {
  const std::optional<absl::Time> end = CertificateEnd(certificates_.server_certificate_path());
  ASSERT_TRUE(end.has_value());
  EXPECT_GT(*end, absl::Now() + absl::Minutes(50));
  EXPECT_LT(*end, absl::Now() + absl::Minutes(61));
  EXPECT_EQ(CertificateEnd(certificates_.server_key_path()), std::nullopt);
  EXPECT_EQ(CertificateEnd("/nowhere"), std::nullopt);
}

TEST_F(TlsTest, FilesThatDoNotFitAreRefused) {
  const TestCertificates other("misfit");
  const std::string certificate = certificates_.server_certificate_path();
  const std::string key = certificates_.server_key_path();
  const std::string empty = TestPath("empty.pem");
  WriteFile(empty, "");
  service::NullObserver observer;
  service::NullEventLog event_log;
  const auto start = [&](const TlsFiles& files) {
    return std::string(TlsMaterial::Start(files, &observer, &event_log).status().message());
  };
  EXPECT_EQ(start({certificate, key, certificates_.authority_path()}), "");
  EXPECT_EQ(start({empty, key, ""}), "--tls_certificate: " + empty + ": is empty");
  EXPECT_EQ(start({certificate, empty, ""}), "--tls_key: " + empty + ": is empty");
  EXPECT_EQ(start({certificate, key, empty}), "--tls_client_ca: " + empty + ": is empty");
  EXPECT_EQ(start({certificate, other.server_key_path(), ""}),
            "--tls_key: " + other.server_key_path() + ": is not the key of " + certificate);
  EXPECT_EQ(start({"/", key, ""}), "--tls_certificate: /: is no regular file");
  WriteFile(empty, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
  EXPECT_EQ(start({empty, key, ""}), "--tls_certificate: " + empty + ": has a certificate in PEM that cannot be read");
  unlink(empty.c_str());
}

// gRPC asserts that a key and a certificate are not empty, and drops the pair that it has for one that does not fit.
TEST_F(TlsTest, LastGoodPairStays) {
  const TestCertificates serving("kept");
  const TestCertificates other("unfit");
  Config config = TlsConfig(false);
  config.tls_certificate = serving.server_certificate_path();
  config.tls_key = serving.server_key_path();
  TestServer server(config);
  int looks = 0;
  for (const std::string& path : {config.tls_certificate, config.tls_key}) {
    const std::string kept = path + ".kept";
    std::filesystem::copy(path, kept);
    for (const std::string& text : {std::string(), std::string("no PEM")}) {
      WriteFile(path, text);
      server.server().LookAtFiles();
      EXPECT_TRUE(server.log_lines().Await("file", ++looks));
    }
    std::filesystem::rename(kept, path);
    server.server().LookAtFiles();
    EXPECT_TRUE(server.log_lines().Await("file", ++looks));
  }
  std::filesystem::copy(other.server_key_path(), config.tls_key, std::filesystem::copy_options::overwrite_existing);
  server.server().LookAtFiles();
  EXPECT_TRUE(server.log_lines().Await("file", ++looks));
  EXPECT_TRUE(Welcomes(server, serving.ClientCredentials("")));
  // Time enough for gRPC to look, too.
  std::filesystem::copy(other.server_certificate_path(), config.tls_certificate,
                        std::filesystem::copy_options::overwrite_existing);
  server.server().LookAtFiles();
  EXPECT_TRUE(server.log_lines().Await("file", ++looks));
  EXPECT_TRUE(Eventually([&] { return Welcomes(server, other.ClientCredentials("")); }));
}

}  // namespace
}  // namespace sortition::server::tls_test
