// memory_maker: another process, which puts its standard input into device memory, passes that on by the socket that is
// its standard output, and ends.
#include <sys/socket.h>

#include <cstdio>
#include <cstring>
#include <vector>

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

  sortition::devices::MemoryHandle handle = (*memory)->handle();
  iovec bytes = {&handle, sizeof(handle)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &handle.descriptor, sizeof(int));
  if (sendmsg(1, &message, 0) != ssize_t(sizeof(handle))) return Fail(absl::InternalError("cannot send"));
  return 0;
}
