// Connections to a memory socket: the user of its process, the matching of answers to requests, and signals, which are
// no errors.
#include "client/cpp/transport/memory_link.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "client/cpp/transport/shared_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "service/memory/packet.h"
#include "tests/client/fake_memory_server.h"

namespace sortition::testing::memory_link_test {
namespace {

using service::Descriptor;

constexpr uint64_t kBytes = FakeMemoryServer::kRegionBytes;

// An answer after its timeout must not pass for the next request's. An invalid answer stands for the timeout.
TEST(MemoryLinkTest, LateAnswerIsNotTakenForTheNext) {
  FakeMemoryServer server([](const Descriptor& client) {
    service::SendPacket(client.get(), "\xff", -1, 0);
    FakeMemoryServer::SendRegion(client);
  });
  const auto link = client::MemoryLink::Connect(server.address());
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_FALSE((*link)->Register(kBytes).ok());
  EXPECT_FALSE((*link)->Register(kBytes).ok()) << "of the request before";
  EXPECT_FALSE((*link)->IsConnected());
}

std::atomic<int> signals = 0;

// Signals of a profiler, or of a child that ends, reach any thread. Most of these arrive while it waits for the answer.
TEST(MemoryLinkTest, SignalsDoNotEndTheWait) {
  struct sigaction counts = {};
  counts.sa_handler = [](int) { ++signals; };
  counts.sa_flags = SA_RESTART;  // has no effect on calls with a timeout
  struct sigaction before = {};
  ASSERT_EQ(sigaction(SIGUSR1, &counts, &before), 0);
  const pthread_t waiting = pthread_self();
  {
    FakeMemoryServer server([waiting](const Descriptor& client) {
      for (int sent = 0; sent < 20; ++sent) {
        pthread_kill(waiting, SIGUSR1);
        while (signals <= sent) std::this_thread::yield();
      }
      FakeMemoryServer::SendRegion(client);
    });
    const auto link = client::MemoryLink::Connect(server.address());
    ASSERT_TRUE(link.ok()) << link.status();
    const auto region = (*link)->Register(kBytes);
    EXPECT_TRUE(region.ok()) << region.status();
  }
  EXPECT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
}

constexpr uid_t kNobody = 65534;

TEST(MemoryLinkTest, ForeignUsersSocketIsNotUsed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can listen as another user";
  FakeMemoryServer server([](const Descriptor&) {}, kNobody);
  const auto connect = [&](std::optional<uint32_t> user) {
    return client::MemoryLink::Connect(server.address(), client::MemoryLink::DefaultBudget(), user).status();
  };
  EXPECT_EQ(connect(std::nullopt).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(connect(std::nullopt).message()), ::testing::HasSubstr("user 65534"));
  EXPECT_FALSE(connect(kNobody - 1).ok());
  EXPECT_TRUE(connect(kNobody).ok());
}

TEST(MemoryLinkTest, OnlyStreamsOwnServerIsAskedForMemory) {
  FakeMemoryServer server(FakeMemoryServer::SendRegion);
  v1::Welcome welcome;
  const auto connect = [&] {
    return client::SharedMemory::Connect(welcome, std::nullopt, client::MemoryLink::DefaultBudget()).status();
  };
  EXPECT_EQ(connect().code(), absl::StatusCode::kFailedPrecondition) << "no address";
  welcome.set_memory_address(server.address());
  EXPECT_EQ(connect().code(), absl::StatusCode::kFailedPrecondition) << "a server that does not say which it is";
  welcome.set_server_instance("another");
  EXPECT_EQ(connect().code(), absl::StatusCode::kFailedPrecondition);
  welcome.set_server_instance(FakeMemoryServer::kInstance);
  EXPECT_TRUE(connect().ok()) << connect();
  EXPECT_EQ(server.requests(), 0);
}

}  // namespace
}  // namespace sortition::testing::memory_link_test
