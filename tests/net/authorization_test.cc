// Authorization: the list of clients, the identities that it recognises, and the end of those that it no longer names.
#include "service/net/authorization.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cpp/transport/memory_link.h"
#include "client/cpp/transport/wire_errors.h"
#include "service/net/listen_socket.h"
#include "sortition/v1/information.grpc.pb.h"
#include "tests/server/client_list_file.h"
#include "tests/server/server_process.h"
#include "tests/server/status_details_decoder.h"
#include "tests/server/test_certificates.h"
#include "tests/server/test_server.h"
#include "tests/server/test_stream.h"

namespace sortition::server::authorization_test {
namespace {

using service::Reason;
using service::Refusal;

constexpr char kToken[] = "e3b1a2-token-of-a";
constexpr uid_t kNobody = 65534;

absl::StatusOr<std::unique_ptr<Authorization>> Read(const std::string& file) {
  static service::NullObserver& observer = *new service::NullObserver();
  static service::NullEventLog& event_log = *new service::NullEventLog();
  return Authorization::Read(file, &observer, &event_log);
}

std::string IdentityOf(const Authorization& authorization, const Evidence& evidence, Roles any_of = kSample) {
  const auto authorized = authorization.Authorize(evidence, any_of);
  if (const auto* refusal = std::get_if<Refusal>(&authorized)) return std::string(service::ReasonName(refusal->reason));
  return std::get<std::string>(authorized);
}

TEST(ClientListTest, ReadsEveryIdentityKind) {
  const auto list = ClientList::Parse(absl::StrCat("# clients\n\nengine-a sample ", Sha256(kToken),
                                                   "\r\nengine-a  admin,sample\tcertificate:a.test  # by certificate\n"
                                                   "operator admin uid:1000"));
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_EQ(*list->FindToken(DigestOfToken(kToken)), (ClientList::Entry{"engine-a", kSample}));
  EXPECT_EQ(*list->FindCertificate("a.test"), (ClientList::Entry{"engine-a", kAnyRole}));
  EXPECT_EQ(*list->FindUser(1000), (ClientList::Entry{"operator", kAdmin}));
  EXPECT_EQ(list->FindToken(DigestOfToken("another")), nullptr);
  EXPECT_EQ(list->FindCertificate("b.test"), nullptr);
  EXPECT_EQ(list->FindUser(0), nullptr);
}

TEST(ClientListTest, ErrorNamesLineWithoutItsText) {
  const std::string wrong[] = {
      "engine-a sample",
      absl::StrCat("engine-a sample ", Sha256(kToken), " more"),
      absl::StrCat("engine-a Sample ", Sha256(kToken)),
      absl::StrCat("engine-a sample, ", Sha256(kToken)),
      absl::StrCat(std::string(129, 'x'), " sample ", Sha256(kToken)),
      absl::StrCat("engine-\xc3\xa4 sample ", Sha256(kToken)),
      absl::StrCat("engine-a sample ", kToken),
      "engine-a sample sha256:0123",
      absl::StrCat("engine-a sample sha256:", std::string(64, 'g')),
      "engine-a sample certificate:",
      "engine-a sample uid:-1",
      "engine-a sample uid:root",
  };
  for (const std::string& line : wrong) {
    const auto list = ClientList::Parse("# comment\n" + line + "\n");
    ASSERT_FALSE(list.ok()) << line;
    EXPECT_TRUE(absl::StartsWith(list.status().message(), "line 2: ")) << list.status();
    EXPECT_FALSE(absl::StrContains(list.status().message(), kToken)) << list.status();
  }
  const auto twice = ClientList::Parse("a sample uid:7\nb sample uid:7");
  EXPECT_EQ(std::string(twice.status().message()), "line 2: this credential stands on an earlier line, too");
  EXPECT_FALSE(ClientList::Parse(std::string(ClientList::kMostLines, '\n')).ok());
  EXPECT_TRUE(ClientList::Parse(std::string(ClientList::kMostLines - 1, '\n')).ok());
}

TEST(AuthorizationTest, NoListAllSampleOwnUserAdministers) {
  const auto authorization = Read("");
  ASSERT_TRUE(authorization.ok());
  EXPECT_EQ(IdentityOf(**authorization, {}), "default");
  EXPECT_EQ(IdentityOf(**authorization, {.certificate = "a.test"}), "a.test");
  EXPECT_EQ(IdentityOf(**authorization, {.certificate = ""}), "UNAUTHENTICATED");
  EXPECT_EQ(IdentityOf(**authorization, {.user = geteuid()}, kAdmin), "default");
  EXPECT_EQ(IdentityOf(**authorization, {.user = kNobody}, kAdmin), "PERMISSION_DENIED");
  EXPECT_EQ(IdentityOf(**authorization, {.certificate = "a.test"}, kAdmin), "PERMISSION_DENIED");
  EXPECT_EQ(IdentityOf(**authorization, {}, kAdmin), "PERMISSION_DENIED");
  EXPECT_TRUE((*authorization)->MayConnect(geteuid()));
  EXPECT_FALSE((*authorization)->MayConnect(kNobody));
}

TEST(AuthorizationTest, ListAdmitsOnlyItsNames) {
  const ClientListFile file(absl::StrCat("engine-a sample ", Sha256(kToken),
                                         "\nengine-b sample certificate:b.test\noperator admin uid:65534\n"));
  const auto read = Read(file.path());
  ASSERT_TRUE(read.ok()) << read.status();
  const Authorization& authorization = **read;
  const Evidence token = {.has_token = true, .token = DigestOfToken(kToken)};
  EXPECT_EQ(IdentityOf(authorization, token), "engine-a");
  EXPECT_EQ(IdentityOf(authorization, token, kAnyRole), "engine-a");
  EXPECT_EQ(IdentityOf(authorization, token, kAdmin), "PERMISSION_DENIED");
  EXPECT_EQ(IdentityOf(authorization, {.certificate = "b.test"}), "engine-b");
  EXPECT_EQ(IdentityOf(authorization, {.certificate = "a.test"}), "UNAUTHENTICATED");
  EXPECT_EQ(IdentityOf(authorization, {.user = kNobody}, kAdmin), "operator");
  EXPECT_EQ(IdentityOf(authorization, {.user = kNobody}, kSample), "PERMISSION_DENIED");
  EXPECT_EQ(IdentityOf(authorization, {.user = 4711}), "UNAUTHENTICATED");
  EXPECT_EQ(IdentityOf(authorization, {.user = geteuid()}), "default");
  EXPECT_EQ(IdentityOf(authorization, {}), "UNAUTHENTICATED");
  // A token that is wrong is not made good by anything else.
  EXPECT_EQ(IdentityOf(authorization, {.has_token = true, .certificate = "b.test", .user = geteuid()}),
            "UNAUTHENTICATED");
  EXPECT_EQ(IdentityOf(authorization, {.has_token = true, .token = DigestOfToken("x"), .user = geteuid()}),
            "UNAUTHENTICATED");
  const auto denied = authorization.Authorize(token, kAdmin);
  EXPECT_EQ(std::get<Refusal>(denied).field, "role");
  EXPECT_EQ(std::get<Refusal>(denied).limit, "admin");
}

TEST(AuthorizationTest, FollowsFileKeepsLastValidList) {
  LogLines lines;
  Log log(LogLevel::kInfo, [&](std::string_view line) { lines.Add(line); });
  ClientListFile file(absl::StrCat("engine-a sample ", Sha256(kToken)));
  service::NullObserver observer;
  LoggedEvents event_log(&log);
  const auto authorization = Authorization::Read(file.path(), &observer, &event_log);
  ASSERT_TRUE(authorization.ok());
  const Evidence token = {.has_token = true, .token = DigestOfToken(kToken)};
  absl::Time now = absl::Now();
  const uint64_t version = (*authorization)->version();
  (*authorization)->files().Follow(now);
  EXPECT_EQ((*authorization)->version(), version) << "nothing has changed";

  file.Replace("engine-a sample\n");
  (*authorization)->files().Follow(now += absl::Milliseconds(500));
  EXPECT_FALSE(lines.all().size()) << "too early to look";
  (*authorization)->files().Follow(now += absl::Milliseconds(500));
  ASSERT_EQ(lines.all().size(), 1u);
  EXPECT_TRUE(absl::StrContains(lines.all()[0], "\"file\":\"clients\",\"state\":\"refused\""));
  EXPECT_TRUE(absl::StrContains(lines.all()[0], "line 1: expected IDENTITY"));
  EXPECT_EQ(IdentityOf(**authorization, token), "engine-a");

  file.Replace(absl::StrCat("engine-b sample ", Sha256(kToken)));
  (*authorization)->files().Follow(now += absl::Seconds(1));
  EXPECT_EQ(IdentityOf(**authorization, token), "engine-b");
  EXPECT_GT((*authorization)->version(), version);

  unlink(file.path().c_str());
  (*authorization)->files().Follow(now += absl::Seconds(1));
  EXPECT_EQ(IdentityOf(**authorization, token), "engine-b");
  ASSERT_EQ(lines.all().size(), 3u);
  EXPECT_TRUE(absl::StrContains(lines.all()[2], "cannot be read"));
}

// How a stream ends that begins with `authorization`, if that is not empty; OK if it is welcomed.
grpc::Status TryStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& authorization) {
  TestStream stream(channel, authorization);
  v1::StreamRequest hello;
  hello.mutable_hello()->set_worker_session("worker");
  stream.Send(hello);
  v1::StreamResponse response;
  const bool welcome = stream.Receive(&response) && response.has_welcome();
  if (!welcome) return stream.Finish();
  stream.Cancel();
  stream.Finish();
  return grpc::Status::OK;
}

grpc::Status TryInformation(const std::shared_ptr<grpc::Channel>& channel, const std::string& authorization) {
  grpc::ClientContext context;
  context.set_deadline(CallDeadline());
  if (!authorization.empty()) context.AddMetadata("authorization", authorization);
  v1::ServerInformation information;
  return v1::InformationService::NewStub(channel)->GetServerInformation(&context, {}, &information);
}

Config ListConfig(const ClientListFile& file) {
  Config config = TestConfig();
  config.clients = file.path();
  return config;
}

bool Logged(const TestServer& server, const std::string& text) {
  for (const std::string& line : server.log_lines().all()) {
    if (absl::StrContains(line, text)) return true;
  }
  return false;
}

TEST(AuthorizedServerTest, KnownTokenIsServed) {
  const ClientListFile file(
      absl::StrCat("engine-a sample ", Sha256(kToken), "\noperator admin ", Sha256("admin-token")));
  TestServer server(ListConfig(file));
  const auto channel = server.Connect();
  for (const auto& attempt : {TryStream, TryInformation}) {
    EXPECT_TRUE(attempt(channel, absl::StrCat("Bearer ", kToken)).ok());
    for (const std::string& wrong : {std::string(), absl::StrCat("Bearer ", kToken, "x"), std::string("Bearer "),
                                     absl::StrCat("Basic ", kToken), std::string(kToken)}) {
      const grpc::Status status = attempt(channel, wrong);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << wrong;
      EXPECT_EQ(DecodeStatusDetails(status.error_details()).reason, "UNAUTHENTICATED") << wrong;
      EXPECT_EQ(DecodeStatusDetails(status.error_details()).metadata.at("field"), "authorization") << wrong;
    }
  }
  EXPECT_TRUE(Logged(server, "\"tenant\":\"engine-a\""));
  EXPECT_FALSE(Logged(server, kToken));

  const grpc::Status denied = TryStream(channel, "Bearer admin-token");
  EXPECT_EQ(denied.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(DecodeStatusDetails(denied.error_details()).metadata.at("limit"), "sample");
  EXPECT_TRUE(TryInformation(channel, "Bearer admin-token").ok()) << "for any role";
}

TEST(AuthorizedServerTest, RemovedTenantLosesItsStreams) {
  ClientListFile file(absl::StrCat("engine-a sample ", Sha256(kToken), "\nengine-b sample ", Sha256("token-b")));
  TestServer server(ListConfig(file));
  TestStream struck(server.Connect(), absl::StrCat("Bearer ", kToken));
  struck.Greet();
  TestStream other(server.Connect(), "Bearer token-b");
  other.Greet();
  file.Replace(absl::StrCat("engine-b sample ", Sha256("token-b")));
  const grpc::Status status = struck.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(DecodeStatusDetails(status.error_details()).reason, "UNAUTHENTICATED");
  other.OpenSequence("r");
  other.HalfClose();
  EXPECT_TRUE(other.Finish().ok());
}

TEST(AuthorizedServerTest, StrangersTakeNoPlaceOfAStream) {
  const ClientListFile file(absl::StrCat("engine-a sample ", Sha256(kToken)));
  Config config = ListConfig(file);
  config.limits.max_streams = 1;
  TestServer server(config);
  TestStream stream(server.Connect(), absl::StrCat("Bearer ", kToken));
  stream.Greet();
  EXPECT_EQ(TryStream(server.Connect(), "").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  std::string bytes;
  EXPECT_EQ(CallRaw(*server.Connect(), "/sortition.v1.SamplingService/Sample", "", &bytes).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(TryStream(server.Connect(), absl::StrCat("Bearer ", kToken)).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST(AuthorizedServerTest, ListedCertificateIsServed) {
  const TestCertificates certificates("authorization");
  const ClientListFile file("engine-a sample certificate:a.test\n");
  Config config = ListConfig(file);
  config.tls_certificate = certificates.server_certificate_path();
  config.tls_key = certificates.server_key_path();
  config.tls_client_ca = certificates.authority_path();
  TestServer server(config);
  const auto connect = [&](const char* identity) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetSslTargetNameOverride("localhost");
    return grpc::CreateCustomChannel(server.target(), certificates.ClientCredentials(identity), arguments);
  };
  EXPECT_TRUE(TryStream(connect("a.test"), "").ok());
  const grpc::Status unknown = TryStream(connect("b.test"), "");
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(DecodeStatusDetails(unknown.error_details()).metadata.at("field"), "client_certificate");
}

// A connection of a process of `user`, which only root can be.
std::shared_ptr<grpc::Channel> ConnectAs(uid_t user, const ListenAddress& address) {
  const int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  // Changes the user of this thread alone, not of the process.
  EXPECT_EQ(syscall(SYS_setresuid, -1, user, -1), 0);
  const bool connected = connect(connection, address.address(), address.size()) == 0;
  EXPECT_EQ(syscall(SYS_setresuid, -1, 0, -1), 0);
  if (!connected) {
    close(connection);
    return nullptr;
  }
  EXPECT_EQ(fcntl(connection, F_SETFL, O_NONBLOCK), 0);
  return grpc::CreateInsecureChannelFromFd("localhost", connection);
}

TEST(AuthorizedServerTest, UnixSocketPeersAreKnownByUser) {
  const ClientListFile file(absl::StrCat("me sample uid:", geteuid(), "\nengine-a sample ", Sha256(kToken)));
  Config config = ListConfig(file);
  config.listen = {absl::StrCat("unix:", TestPath("users.sock"))};
  TestServer server(config);
  const grpc::Status status = TryStream(server.Connect(), "");
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(Logged(server, "\"tenant\":\"me\""));
  EXPECT_TRUE(TryStream(server.Connect(), absl::StrCat("Bearer ", kToken)).ok());
  EXPECT_TRUE(Logged(server, "\"tenant\":\"engine-a\""));
}

TEST(AuthorizedServerTest, ListedUsersMayConnect) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  ClientListFile file(absl::StrCat("stranger sample uid:", kNobody));
  Config config = ListConfig(file);
  config.listen = {absl::StrCat("unix:", TestPath("strangers.sock"))};
  TestServer server(config);
  const ListenAddress& address = server.server().addresses().front();
  const auto stranger = ConnectAs(kNobody, address);
  ASSERT_NE(stranger, nullptr) << "the socket is open to others once one of them is listed";
  EXPECT_TRUE(TryStream(stranger, "").ok());
  EXPECT_TRUE(Logged(server, "\"tenant\":\"stranger\""));
  EXPECT_TRUE(TryStream(server.Connect(), "").ok());
  EXPECT_TRUE(Logged(server, "\"tenant\":\"default\"")) << "the own user is told from the other";

  const auto unlisted = ConnectAs(kNobody - 1, address);
  ASSERT_NE(unlisted, nullptr);
  EXPECT_EQ(TryStream(unlisted, "").error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(server.log_lines().Await("connection_refused"));
}

TEST(AuthorizedServerTest, MemoryAndRingsBelongToUsersIdentity) {
  ClientListFile file(absl::StrCat("me sample uid:", geteuid()));
  Config config = ListConfig(file);
  config.memory_listen = absl::StrCat("unix:", TestPath("memory.sock"));
  TestServer server(config);
  auto link = client::MemoryLink::Connect(config.memory_listen);
  ASSERT_TRUE(link.ok()) << link.status();
  ASSERT_TRUE((*link)->OpenRing().ok());
  auto without_ring = client::MemoryLink::Connect(config.memory_listen);
  ASSERT_TRUE(without_ring.ok()) << without_ring.status();
  ASSERT_TRUE((*without_ring)->Register(4096).ok());
  const auto clients = server.engine().clients().all();
  ASSERT_EQ(clients.size(), 1u);
  EXPECT_EQ(clients[0]->identity(), "me");
  EXPECT_EQ(clients[0]->use().streams, 1u);
  EXPECT_EQ(clients[0]->use().regions, 2u);

  file.Replace(absl::StrCat("me admin uid:", geteuid()));
  ASSERT_TRUE(server.log_lines().Await("file"));
  const auto denied = client::MemoryLink::Connect(config.memory_listen);
  ASSERT_FALSE(denied.ok());
  EXPECT_EQ(client::ErrorOf(denied.status())->reason, v1::PERMISSION_DENIED) << denied.status();
  const auto left = [&] { return clients[0]->use().streams + clients[0]->use().regions; };
  for (const absl::Time end = absl::Now() + absl::Seconds(20); absl::Now() < end && left() > 0;) {
    std::this_thread::yield();
  }
  EXPECT_EQ(clients[0]->use().streams, 0u) << "the ring of a client that may no longer sample";
  EXPECT_EQ(clients[0]->use().regions, 0u) << "its memory";
}

TEST(AuthorizedServerTest, NoListedUsersKeepsSocketPrivate) {
  const ClientListFile file(absl::StrCat("engine-a sample ", Sha256(kToken)));
  Config config = ListConfig(file);
  config.listen = {absl::StrCat("unix:", TestPath("private.sock"))};
  TestServer server(config);
  struct stat status;
  ASSERT_EQ(stat(server.server().addresses().front().unix_path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST(AuthorizedServerTest, UnreadableListPreventsStart) {
  for (const std::string& path : {TestPath("missing"), std::string("/")}) {
    const auto authorization = Read(path);
    ASSERT_FALSE(authorization.ok());
    EXPECT_TRUE(absl::StartsWith(authorization.status().message(), absl::StrCat("--clients: ", path, ": ")))
        << authorization.status();
  }
}

}  // namespace
}  // namespace sortition::server::authorization_test
