// Maps the host's page into the device's addresses, and queues the writes of the word.
#include "client/cpp/cuda/cuda_ready.h"

#include <utility>

namespace sortition::client {

using devices::cuda::Api;
using devices::cuda::CurrentContext;
using devices::cuda::Hardware;

absl::StatusOr<std::unique_ptr<CudaReady>> CudaReady::Create(int device, std::shared_ptr<std::byte> memory) {
  const auto api = Api::Load();
  if (!api.ok()) return api.status();
  const auto hardware = devices::cuda::FindHardware(*api, device);
  if (!hardware.ok()) return hardware.status();
  return CreateOn(*api, *hardware, std::move(memory));
}

absl::StatusOr<std::unique_ptr<CudaReady>> CudaReady::CreateOn(const Api& api, const Hardware& hardware,
                                                               std::shared_ptr<std::byte> memory) {
  if (memory == nullptr || reinterpret_cast<uintptr_t>(memory.get()) % kBytes != 0) {
    return absl::InvalidArgumentError("memory: a page, of Client::AllocateRows");
  }
  std::unique_ptr<CudaReady> ready(new CudaReady(api, hardware, std::move(memory)));
  if (absl::Status status = ready->Open(); !status.ok()) return status;
  return ready;
}

CudaReady::CudaReady(const Api& api, const Hardware& hardware, std::shared_ptr<std::byte> memory)
    : api_(api), hardware_(hardware), memory_(std::move(memory)) {}

absl::Status CudaReady::Open() {
  SORTITION_CUDA_RETURN_IF_ERROR(api_, DevicePrimaryCtxRetain(&context_, hardware_.handle));
  const CurrentContext current(api_, context_);
  if (!current.status().ok()) return current.status();
  SORTITION_CUDA_RETURN_IF_ERROR(api_, MemHostRegister(memory_.get(), kBytes, devices::cuda::kHostRegisterDeviceMap));
  is_registered_ = true;
  SORTITION_CUDA_RETURN_IF_ERROR(api_, MemHostGetDevicePointer(&address_, memory_.get(), 0));
  // The page may hold the value of an earlier use.
  value_ = *reinterpret_cast<const uint32_t*>(memory_.get());
  return absl::OkStatus();
}

CudaReady::~CudaReady() {
  if (is_registered_) {
    // Errors are ignored: a lost device has no work to wait for.
    const CurrentContext current(api_, context_);
    if (current.status().ok()) devices::cuda::WaitForDevice(api_).IgnoreError();
    api_.MemHostUnregister(memory_.get());
  }
  if (context_ != nullptr) api_.DevicePrimaryCtxRelease(hardware_.handle);
}

absl::StatusOr<ReadyWord> CudaReady::Raise(CUstream_st* stream) {
  const CurrentContext current(api_, context_);
  if (!current.status().ok()) return current.status();
  int capture = 0;
  SORTITION_CUDA_RETURN_IF_ERROR(api_, StreamIsCapturing(stream, &capture));
  if (capture != 0) return absl::FailedPreconditionError("stream: captures a graph");
  // By default the write becomes visible after all writes of earlier work.
  SORTITION_CUDA_RETURN_IF_ERROR(api_, StreamWriteValue32(stream, address_, value_ + 1, 0));
  return ReadyWord{reinterpret_cast<const uint32_t*>(memory_.get()), ++value_};
}

}  // namespace sortition::client
