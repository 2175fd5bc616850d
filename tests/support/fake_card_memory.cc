// Memory files.
#include "tests/support/fake_card_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "kernels/check.h"

namespace sortition::testing {
namespace {

std::byte* Map(int descriptor, uint64_t bytes, int protection) {
  void* const data = mmap(nullptr, bytes, protection, MAP_SHARED, descriptor, 0);
  SORTITION_CHECK(data != MAP_FAILED);
  return static_cast<std::byte*>(data);
}

int MakeFile(uint64_t bytes) {
  const int descriptor = memfd_create("fake card", MFD_CLOEXEC);
  SORTITION_CHECK(descriptor >= 0 && ftruncate(descriptor, static_cast<off_t>(bytes)) == 0);
  return descriptor;
}

class FakeImportedMemory final : public devices::ImportedMemory {
 public:
  FakeImportedMemory(std::byte* data, uint64_t bytes, uint32_t memory, std::function<absl::Status()> read)
      : ImportedMemory({data, bytes}, memory), data_(data), read_(std::move(read)) {}
  ~FakeImportedMemory() override { munmap(data_, bytes().size()); }

  absl::Status Read(uint64_t offset, std::span<std::byte> to) const override {
    SORTITION_CHECK(offset <= bytes().size() && to.size() <= bytes().size() - offset);
    const absl::Status status = read_ ? read_() : absl::OkStatus();
    if (status.ok()) std::memcpy(to.data(), data_ + offset, to.size());
    return status;
  }

 private:
  std::byte* const data_;
  const std::function<absl::Status()> read_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const devices::ImportedMemory>> ImportFakeMemory(const devices::MemoryHandle& handle,
                                                                                uint32_t memory,
                                                                                std::function<absl::Status()> read) {
  struct stat file = {};
  if (fstat(handle.descriptor, &file) != 0 || !S_ISREG(file.st_mode) ||
      static_cast<uint64_t>(file.st_size) != handle.bytes) {
    return absl::InvalidArgumentError("no memory of this size");
  }
  return std::make_shared<const FakeImportedMemory>(Map(handle.descriptor, handle.bytes, PROT_READ), handle.bytes,
                                                    memory, std::move(read));
}

FakeCardMemory::FakeCardMemory(uint64_t bytes)
    : bytes_(bytes), descriptor_(MakeFile(bytes)), data_(Map(descriptor_, bytes, PROT_READ | PROT_WRITE)) {}

FakeCardMemory::~FakeCardMemory() {
  munmap(data_, bytes_);
  close(descriptor_);
}

devices::MemoryIdentity FakeCardMemory::Identity() {
  return {devices::MemoryKind::kCuda, std::string("fake card, uuid."), {}};
}

}  // namespace sortition::testing
