// Allocates and seals memory files.
#include "service/memory/sealed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace sortition::service {
namespace {

absl::Status Failed(const char* what) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(errno)));
}

}  // namespace

uint64_t SealedMemory::WholePages(uint64_t bytes) {
  SORTITION_CHECK(bytes > 0 && bytes <= uint64_t{1} << 62);
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

absl::StatusOr<std::unique_ptr<SealedMemory>> SealedMemory::Make(uint64_t bytes, Access access) {
  const uint64_t size = WholePages(bytes);
  Descriptor descriptor(memfd_create("sortition", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor) return Failed("memfd_create");
  const int fd = descriptor.get();
  if (ftruncate(fd, static_cast<off_t>(size)) != 0) return Failed("ftruncate");
  // Takes all pages now: a file larger than the free memory would end this process with SIGBUS later.
  if (fallocate(fd, 0, 0, static_cast<off_t>(size)) != 0) return Failed("fallocate");
  SORTITION_CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* const data = mmap(nullptr, size, protection, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) return Failed("mmap");
  return std::unique_ptr<SealedMemory>(
      new SealedMemory(static_cast<std::byte*>(data), size, access, std::move(descriptor)));
}

SealedMemory::~SealedMemory() { SORTITION_CHECK(munmap(data_, size_) == 0); }

std::byte* SealedMemory::data() const {
  SORTITION_CHECK(access_ == Access::kReadWrite);
  return data_;
}

}  // namespace sortition::service
