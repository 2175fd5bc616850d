// A memory socket's answers: each is for the request before it, or for none; and signals are no errors.
#include "client/cpp/memory_link.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "service/memory/packet.h"

namespace sortition::testing {
namespace {

using service::Descriptor;

constexpr uint64_t kBytes = 4096;

// Takes one connection, welcomes it, and has `serve` do the rest once a request has come.
class FakeMemoryServer {
 public:
  explicit FakeMemoryServer(std::function<void(const Descriptor&)> serve) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_.get(), 1), 0);
    thread_ = std::thread([this, serve = std::move(serve)] {
      const Descriptor client(accept(listener_.get(), nullptr, nullptr));
      v1::MemoryResponse welcome;
      welcome.mutable_welcome()->set_token("0123456789abcdef");
      service::SendPacket(client.get(), welcome.SerializeAsString(), -1, 0);
      std::array<char, 4096> packet;
      if (recv(client.get(), packet.data(), packet.size(), 0) > 0) serve(client);
      while (recv(client.get(), packet.data(), packet.size(), 0) > 0) {
      }
    });
  }
  ~FakeMemoryServer() {
    shutdown(listener_.get(), SHUT_RDWR);  // nobody may have come
    thread_.join();
    unlink(path_.c_str());
  }
  std::string address() const { return "unix:" + path_; }

  static void SendRegion(const Descriptor& client) {
    const Descriptor memory(memfd_create("region", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(memory.get(), kBytes), 0);
    v1::MemoryResponse response;
    response.mutable_registered()->set_region_id(1);
    response.mutable_registered()->set_bytes(kBytes);
    service::SendPacket(client.get(), response.SerializeAsString(), memory.get(), 0);
  }

 private:
  const std::string path_ = absl::StrCat(::testing::TempDir(), "sortition_", getpid(), "_memory_link");
  const Descriptor listener_{socket(AF_UNIX, SOCK_SEQPACKET, 0)};
  std::thread thread_;
};

// An answer that was waited for in vain may come yet; here one that cannot be understood stands for the waiting.
TEST(MemoryLinkTest, AnAnswerThatComesLateIsNotTakenForTheNext) {
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

// Those of a profiler, or of a child that ends, come to any thread; most of these while it waits for the answer.
TEST(MemoryLinkTest, SignalsDoNotEndTheWait) {
  struct sigaction counts = {};
  counts.sa_handler = [](int) { ++signals; };
  counts.sa_flags = SA_RESTART;  // not where a timeout is set
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

}  // namespace
}  // namespace sortition::testing
