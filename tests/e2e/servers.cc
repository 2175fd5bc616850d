// Starting servers and programs, and connecting to them.
#include "tests/e2e/servers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/check.h"

namespace sortition::testing {

std::unique_ptr<process::ServerProcess> StartServer(const std::vector<std::string>& flags, int port) {
  auto server = process::ServerProcess::Start(SORTITIOND, flags, ::testing::TempDir() + "sortitiond.log", port);
  EXPECT_TRUE(server.ok()) << server.status();
  SORTITION_CHECK(server.ok());
  return *std::move(server);
}

namespace {

std::string OutputPath(const std::string& part) {
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  return absl::StrCat(::testing::TempDir(), "output-", test.test_suite_name(), "-", test.name(), part);
}

}  // namespace

std::unique_ptr<process::ChildProcess> StartProgram(const std::string& program,
                                                    const std::vector<std::string>& arguments,
                                                    const std::string& part) {
  std::filesystem::remove(OutputPath(part));
  auto process = process::ChildProcess::Start({program, arguments, OutputPath(part), std::nullopt});
  EXPECT_TRUE(process.ok()) << process.status();
  SORTITION_CHECK(process.ok());
  return *std::move(process);
}

std::string OutputOf(const std::string& part) { return ReadFile(OutputPath(part)); }

Ended RunProgram(const std::string& program, const std::vector<std::string>& arguments, const std::string& part) {
  const auto code = StartProgram(program, arguments, part)->Wait(kLongestWait);
  EXPECT_TRUE(code.ok()) << code.status();
  return {code.ok() ? *code : -1, OutputOf(part)};
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

int UnusedPort() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  SORTITION_CHECK(listener >= 0 && bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0);
  SORTITION_CHECK(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  close(listener);
  return ntohs(address.sin_port);
}

client::ClientOptions QuickOptions(std::vector<std::string> targets) {
  client::ClientOptions options;
  options.targets = std::move(targets);
  options.retry.backoff = {absl::Milliseconds(5), absl::Milliseconds(50)};
  return options;
}

std::unique_ptr<client::Client> Connect(client::ClientOptions options) {
  auto client = client::Client::Connect(std::move(options));
  EXPECT_TRUE(client.ok()) << client.status();
  SORTITION_CHECK(client.ok());
  return *std::move(client);
}

}  // namespace sortition::testing
