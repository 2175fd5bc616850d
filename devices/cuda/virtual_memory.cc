// Reserves, maps and gives access; and undoes it.
#include "devices/cuda/virtual_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sortition::devices::cuda {
namespace {

MemoryLocation LocationOf(const Hardware& hardware) { return {LocationType::kDevice, int(hardware.index)}; }

AllocationProperties PropertiesOn(const Hardware& hardware) {
  AllocationProperties properties;
  properties.location = LocationOf(hardware);
  return properties;
}

// Returns an error that another process may have caused as INVALID_ARGUMENT of `field`; others unchanged.
absl::Status Blame(const char* field, const absl::Status& status) {
  if (!absl::IsInternal(status)) return status;
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", status.message()));
}

}  // namespace

absl::StatusOr<Allocation> Allocation::Create(const Api& api, const Hardware& hardware, uint64_t bytes) {
  const AllocationProperties properties = PropertiesOn(hardware);
  AllocationHandle handle = 0;
  SORTITION_CUDA_RETURN_IF_ERROR(api, MemCreate(&handle, bytes, &properties, 0));
  return Allocation(api, handle);
}

absl::StatusOr<Allocation> Allocation::Import(const Api& api, const Hardware& hardware, int descriptor) {
  if (descriptor < 0) return absl::InvalidArgumentError("descriptor: there is none");
  AllocationHandle handle = 0;
  // The driver takes the descriptor's number in place of a pointer.
  void* const number = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
  const Result result = api.MemImportFromShareableHandle(&handle, number, ShareableHandleType::kFileDescriptor);
  absl::Status imported = Blame("descriptor", ToStatus(api, result, "cuMemImportFromShareableHandle"));
  if (!imported.ok()) return imported;
  Allocation allocation(api, handle);
  AllocationProperties properties;
  const Result known = api.MemGetAllocationPropertiesFromHandle(&properties, handle);
  absl::Status described = Blame("descriptor", ToStatus(api, known, "cuMemGetAllocationPropertiesFromHandle"));
  if (!described.ok()) return described;
  const MemoryLocation here = LocationOf(hardware);
  if (properties.location.type != here.type || properties.location.id != here.id) {
    return absl::InvalidArgumentError(absl::StrCat("descriptor: not memory of CUDA device ", here.id));
  }
  return allocation;
}

Allocation::Allocation(Allocation&& other) noexcept
    : api_(std::exchange(other.api_, nullptr)), handle_(other.handle_) {}

void Allocation::Release() {
  if (api_ != nullptr) api_->MemRelease(handle_);
}

absl::StatusOr<int> Allocation::Export() const {
  int descriptor = -1;
  SORTITION_CUDA_RETURN_IF_ERROR(
      *api_, MemExportToShareableHandle(&descriptor, handle_, ShareableHandleType::kFileDescriptor, 0));
  if (fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0) {
    const absl::Status status = absl::ErrnoToStatus(errno, "the descriptor of a CUDA device's memory");
    close(descriptor);
    return status;
  }
  return descriptor;
}

absl::StatusOr<uint64_t> Granularity(const Api& api, const Hardware& hardware) {
  const AllocationProperties properties = PropertiesOn(hardware);
  size_t granularity = 0;
  SORTITION_CUDA_RETURN_IF_ERROR(api, MemGetAllocationGranularity(&granularity, &properties, kMinimumGranularity));
  return granularity;
}

absl::StatusOr<std::unique_ptr<Mapping>> Mapping::Create(const Api& api, const Hardware& hardware,
                                                         const Allocation& allocation, uint64_t bytes,
                                                         AccessFlags access) {
  std::unique_ptr<Mapping> mapping(new Mapping(api, bytes));
  if (absl::Status status = mapping->Open(hardware, allocation, access); !status.ok()) return status;
  return mapping;
}

absl::Status Mapping::Open(const Hardware& hardware, const Allocation& allocation, AccessFlags access) {
  SORTITION_CUDA_RETURN_IF_ERROR(api_, MemAddressReserve(&address_, bytes_, 0, 0, 0));
  const Result result = api_.MemMap(address_, bytes_, 0, allocation.handle(), 0);
  const absl::Status mapped = ToStatus(api_, result, "cuMemMap");
  if (!mapped.ok()) return result == Result::kInvalidValue ? Blame("bytes", mapped) : mapped;
  is_mapped_ = true;
  AccessDescription description = {LocationOf(hardware), access};
  const absl::Status allowed = ToStatus(api_, api_.MemSetAccess(address_, bytes_, &description, 1), "cuMemSetAccess");
  const bool is_refused = !allowed.ok() && !absl::IsResourceExhausted(allowed) && !absl::IsUnavailable(allowed);
  if (!is_refused || access != AccessFlags::kRead) return allowed;
  // CUDA declares read-only memory but does not say which drivers support it, nor how others refuse it.
  description.flags = AccessFlags::kReadWrite;
  const absl::Status written =
      ToStatus(api_, api_.MemSetAccess(address_, bytes_, &description, 1), "cuMemSetAccess to write");
  if (written.ok()) return written;
  return absl::Status(written.code(), absl::StrCat(written.message(), "; to read: ", allowed.message()));
}

Mapping::~Mapping() {
  if (is_mapped_) api_.MemUnmap(address_, bytes_);
  if (address_ != 0) api_.MemAddressFree(address_, bytes_);
}

}  // namespace sortition::devices::cuda
