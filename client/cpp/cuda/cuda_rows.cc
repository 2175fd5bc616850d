// Allocates and maps device memory, and exports its descriptor.
#include "client/cpp/cuda/cuda_rows.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "devices/cuda/imported_memory.h"

namespace sortition::client {

using devices::cuda::Allocation;
using devices::cuda::Api;
using devices::cuda::CurrentContext;
using devices::cuda::Hardware;
using devices::cuda::Mapping;

absl::StatusOr<std::unique_ptr<CudaRows>> CudaRows::Create(int device, uint64_t bytes) {
  const auto api = Api::Load();
  if (!api.ok()) return api.status();
  const auto hardware = devices::cuda::FindHardware(*api, device);
  if (!hardware.ok()) return hardware.status();
  return CreateOn(*api, *hardware, bytes);
}

absl::StatusOr<std::unique_ptr<CudaRows>> CudaRows::CreateOn(const Api& api, const Hardware& hardware, uint64_t bytes) {
  std::unique_ptr<CudaRows> rows(new CudaRows(api, hardware));
  if (absl::Status status = rows->Open(bytes); !status.ok()) return status;
  return rows;
}

absl::Status CudaRows::Open(uint64_t bytes) {
  if (!hardware_.shares_memory) {
    return absl::UnimplementedError(absl::StrCat("CUDA device ", hardware_.index, " does not share memory"));
  }
  if (bytes == 0 || bytes > hardware_.memory_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("bytes: ", bytes, " of 1..", hardware_.memory_bytes));
  }
  SORTITION_CUDA_RETURN_IF_ERROR(api_, DevicePrimaryCtxRetain(&context_, hardware_.handle));
  const auto granularity = devices::cuda::Granularity(api_, hardware_);
  if (!granularity.ok()) return granularity.status();
  bytes_ = (bytes + *granularity - 1) / *granularity * *granularity;
  const auto allocation = Allocation::Create(api_, hardware_, bytes_);
  if (!allocation.ok()) return allocation.status();
  auto mapping = Mapping::Create(api_, hardware_, *allocation, bytes_, devices::cuda::AccessFlags::kReadWrite);
  if (!mapping.ok()) return mapping.status();
  mapping_ = *std::move(mapping);
  const auto descriptor = allocation->Export();
  if (!descriptor.ok()) return descriptor.status();
  descriptor_ = service::Descriptor(*descriptor);
  return absl::OkStatus();
}

CudaRows::~CudaRows() {
  if (mapping_ != nullptr) {
    // Errors are ignored: a lost device has no work to wait for.
    const CurrentContext current(api_, context_);
    if (current.status().ok()) devices::cuda::WaitForDevice(api_).IgnoreError();
    mapping_.reset();
  }
  if (context_ != nullptr) api_.DevicePrimaryCtxRelease(hardware_.handle);
}

void* CudaRows::data() const { return reinterpret_cast<void*>(mapping_->address()); }

devices::MemoryHandle CudaRows::handle() const {
  return {.kind = devices::MemoryKind::kCuda, .descriptor = descriptor_.get(), .bytes = bytes_};
}

DeviceRows CudaRows::rows() const {
  return {.identity = identity(),
          .handle = handle(),
          .data = static_cast<const std::byte*>(data()),
          .bytes = bytes_,
          .read = [this](uint64_t offset, std::span<std::byte> to) { return Read(offset, to); }};
}

absl::Status CudaRows::Read(uint64_t offset, std::span<std::byte> to) const {
  if (offset > bytes_ || to.size() > bytes_ - offset) {
    return absl::OutOfRangeError(absl::StrCat(to.size(), " bytes from ", offset, " of ", bytes_));
  }
  return devices::cuda::ReadMemory(api_, context_, mapping_->address() + offset, to);
}

absl::Status CudaRows::WaitFor(CUstream_st* stream) const {
  const CurrentContext current(api_, context_);
  if (!current.status().ok()) return current.status();
  int capture = 0;
  SORTITION_CUDA_RETURN_IF_ERROR(api_, StreamIsCapturing(stream, &capture));
  if (capture != 0) return absl::FailedPreconditionError("stream: captures a graph");
  SORTITION_CUDA_RETURN_IF_ERROR(api_, StreamSynchronize(stream));
  return absl::OkStatus();
}

}  // namespace sortition::client
