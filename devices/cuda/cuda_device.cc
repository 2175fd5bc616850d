// Lanes, and the state after the device is lost.
#include "devices/cuda/cuda_device.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "devices/cuda/imported_memory.h"
#include "kernels/check.h"

namespace sortition::devices {

using cuda::Context;
using cuda::Lane;

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Start(const cuda::Api& api, const cuda::Hardware& hardware,
                                                              const CudaDeviceOptions& options) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(hardware, options));
  if (absl::Status status = device->Open(api, hardware); !status.ok()) return status;
  return device;
}

CudaDevice::CudaDevice(const cuda::Hardware& hardware, const CudaDeviceOptions& options) : options_(options) {
  SORTITION_CHECK(options.batches_in_flight >= 1 && options.max_batch_rows >= 1 && options.max_batch_rows <= 65535);
  description_.name = options.name;
  description_.kind = "cuda";
  description_.hardware = absl::StrCat(hardware.name, ", ", hardware.uuid);
  description_.max_batch_rows = options.max_batch_rows;
  description_.batches_in_flight = options.batches_in_flight;
  description_.features = kernels::cuda::kFeatures;
  description_.memory = options.memory;
  if (options.memory != kHostMemory) description_.identity = cuda::IdentityOf(hardware);
}

absl::Status CudaDevice::Open(const cuda::Api& api, const cuda::Hardware& hardware) {
  auto context = Context::Create(api, hardware, options_.images);
  if (!context.ok()) return context.status();
  context_ = *std::move(context);
  for (uint32_t i = 0; i < options_.batches_in_flight; ++i) {
    auto lane = Lane::Create(context_, options_.max_batch_bytes);
    if (!lane.ok()) return lane.status();
    lanes_.push_back(*std::move(lane));
  }
  for (const auto& lane : lanes_) {
    threads_.Add([this, lane = lane.get()](const std::vector<DeviceRow>& rows) { return Run(lane, rows); });
  }
  return absl::OkStatus();
}

void CudaDevice::Submit(std::vector<DeviceRow> rows, Done done) {
  SORTITION_CHECK(!rows.empty() && rows.size() <= description_.max_batch_rows);
  for (const DeviceRow& row : rows) SORTITION_CHECK(row.memory == kHostMemory || row.memory == description_.memory);
  threads_.Submit(std::move(rows), std::move(done));
}

absl::StatusOr<std::shared_ptr<const ImportedMemory>> CudaDevice::Import(const MemoryHandle& handle) {
  if (description_.identity.kind == MemoryKind::kNone) return Device::Import(handle);
  return cuda::ImportMemory(context_, handle, description_.memory);
}

// Returns UNAVAILABLE if the driver does nothing more after an error that is not known to lose the device. CUDA
// documents for many errors, and for more in each version, that all later calls fail.
absl::Status CudaDevice::AskAfter(absl::Status status) const {
  if (!absl::IsInternal(status)) return status;
  const cuda::CurrentContext current(*context_);
  absl::Status now = current.status();
  if (now.ok()) now = cuda::WaitForDevice(context_->api());
  if (now.ok()) return status;
  return absl::UnavailableError(
      absl::StrCat("the CUDA device is lost to this process: ", status.message(), ", and then ", now.message()));
}

// Returns the reason why the device is lost, if it is; otherwise `status`.
absl::Status CudaDevice::LostOr(absl::Status status) {
  {
    absl::MutexLock lock(&mutex_);
    if (!lost_.ok()) return lost_;
    if (!absl::IsUnavailable(status)) return status;
    lost_ = status;
  }
  if (options_.lost != nullptr) options_.lost(status);
  return status;
}

BatchOutput CudaDevice::Run(Lane* lane, const std::vector<DeviceRow>& rows) {
  BatchOutput result;
  result.status = LostOr(absl::OkStatus());
  if (result.status.ok())
    result.status = LostOr(AskAfter(lane->Run(rows, &result.outputs, &result.kernel_nanoseconds)));
  return result;
}

}  // namespace sortition::devices
