// memory_maker: another process, which puts its standard input into device memory, passes that on by the socket that is
// its standard output, and ends.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "service/memory/packet.h"
#include "tests/vulkan/exported_memory.h"

namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "memory_maker: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace

int main() {
  std::vector<char> content;
  char part[4096];
  while (const size_t read = std::fread(part, 1, sizeof(part), stdin)) content.insert(content.end(), part, part + read);
  auto instance = sortition::devices::vulkan::Instance::Create();
  if (!instance.ok()) return Fail(instance.status());
  const auto memory = sortition::testing::ExportedMemory::Make(*std::move(instance), content.size());
  if (!memory.ok()) return Fail(memory.status());
  std::memcpy((*memory)->mapped(), content.data(), content.size());

  const sortition::devices::MemoryHandle handle = (*memory)->handle();
  const std::string_view packet(reinterpret_cast<const char*>(&handle), sizeof(handle));
  if (!sortition::service::SendPacket(STDOUT_FILENO, packet, handle.descriptor, 0)) {
    return Fail(absl::InternalError("cannot send"));
  }
  return 0;
}
