// A memory socket's answers: each is for the request before it, or for none.
#include "client/cpp/memory_link.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "service/memory/packet.h"

namespace sortition::testing {
namespace {

constexpr uint64_t kBytes = 4096;

// An answer that was waited for in vain may come yet; here one that cannot be understood stands for the waiting.
TEST(MemoryLinkTest, AnAnswerThatComesLateIsNotTakenForTheNext) {
  const std::string path = absl::StrCat(::testing::TempDir(), "sortition_", getpid(), "_late");
  const service::Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  std::thread server([&listener] {
    const service::Descriptor client(accept(listener.get(), nullptr, nullptr));
    v1::MemoryResponse welcome;
    welcome.mutable_welcome()->set_token("0123456789abcdef");
    service::SendPacket(client.get(), welcome.SerializeAsString(), -1, 0);
    std::array<char, 4096> packet;
    const service::Descriptor memory(memfd_create("region", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(memory.get(), kBytes), 0);
    EXPECT_GT(recv(client.get(), packet.data(), packet.size(), 0), 0);
    service::SendPacket(client.get(), "\xff", -1, 0);
    v1::MemoryResponse late;
    late.mutable_registered()->set_region_id(1);
    late.mutable_registered()->set_bytes(kBytes);
    service::SendPacket(client.get(), late.SerializeAsString(), memory.get(), 0);
    while (recv(client.get(), packet.data(), packet.size(), 0) > 0) {
    }
  });
  {
    const auto link = client::MemoryLink::Connect("unix:" + path);
    ASSERT_TRUE(link.ok()) << link.status();
    EXPECT_FALSE((*link)->Register(kBytes).ok());
    EXPECT_FALSE((*link)->Register(kBytes).ok()) << "of the request before";
    EXPECT_FALSE((*link)->IsConnected());
  }
  server.join();
  unlink(path.c_str());
}

}  // namespace
}  // namespace sortition::testing
