// A memory socket with answers that the test chooses.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "service/memory/descriptor.h"
#include "service/memory/packet.h"
#include "sortition/v1/memory.pb.h"

namespace sortition::testing {

// Accepts one connection after the other, welcomes it, and calls `serve` at the first request. Later requests are read
// and not answered.
class FakeMemoryServer {
 public:
  static constexpr uint64_t kRegionBytes = 4096;
  static constexpr char kInstance[] = "this very server";
  static constexpr char kToken[] = "0123456789abcdef";

  // `user`: the user of the listening process, if it is not the test's. Only root can choose another one.
  explicit FakeMemoryServer(std::function<void(const service::Descriptor&)> serve,
                            std::optional<uid_t> user = std::nullopt) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    unlink(path_.c_str());
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(seteuid(user.value_or(geteuid())), 0);
    EXPECT_EQ(listen(listener_.get(), 1), 0);
    EXPECT_EQ(seteuid(getuid()), 0);
    thread_ = std::thread([this, serve = std::move(serve)] {
      for (;;) {
        const service::Descriptor client(accept(listener_.get(), nullptr, nullptr));
        if (!client) return;
        Serve(client, serve);
      }
    });
  }
  ~FakeMemoryServer() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    unlink(path_.c_str());
  }
  std::string address() const { return "unix:" + path_; }
  // Counted over all connections that have ended.
  int requests() const { return requests_; }

  static void SendRegion(const service::Descriptor& client) {
    const service::Descriptor memory(memfd_create("region", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(memory.get(), kRegionBytes), 0);
    v1::MemoryResponse response;
    response.mutable_registered()->set_region_id(1);
    response.mutable_registered()->set_bytes(kRegionBytes);
    service::SendPacket(client.get(), response.SerializeAsString(), memory.get(), 0);
  }

 private:
  void Serve(const service::Descriptor& client, const std::function<void(const service::Descriptor&)>& serve) {
    v1::MemoryResponse response;
    response.mutable_welcome()->set_token(kToken);
    response.mutable_welcome()->set_server_instance(kInstance);
    response.mutable_welcome()->set_most_bytes(kRegionBytes);
    service::SendPacket(client.get(), response.SerializeAsString(), -1, 0);
    std::array<char, 4096> packet;
    for (bool first = true; recv(client.get(), packet.data(), packet.size(), 0) > 0; first = false) {
      ++requests_;
      if (first) serve(client);
    }
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "sortition_", getpid(), "_fake_memory");
  const service::Descriptor listener_{socket(AF_UNIX, SOCK_SEQPACKET, 0)};
  std::atomic<int> requests_ = 0;
  std::thread thread_;
};

}  // namespace sortition::testing
