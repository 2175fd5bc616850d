// Finds the driver with the dynamic linker.
#include "devices/cuda/api.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace sortition::devices::cuda {

absl::StatusOr<Api> Api::Load(const char* library_name) {
  void* const handle = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return absl::NotFoundError(absl::StrCat("no CUDA driver: ", dlerror()));
  Api api;
  // Never unloaded: the driver has threads that run its code.
  api.library = std::shared_ptr<void>(handle, [](void*) {});
#define SORTITION_CUDA_FUNCTION(name, symbol, ...)                                                         \
  api.name = reinterpret_cast<name##Function*>(dlsym(handle, #symbol));                                    \
  if (api.name == nullptr) {                                                                               \
    return absl::FailedPreconditionError(absl::StrCat("the CUDA driver is too old: it has no ", #symbol)); \
  }
#include "devices/cuda/functions.inc"
#undef SORTITION_CUDA_FUNCTION
  const Result started = api.Init(0);
  if (started == Result::kNoDevice) return absl::NotFoundError("the CUDA driver finds no GPU");
  if (absl::Status status = ToStatus(api, started, "cuInit"); !status.ok()) return status;
  return api;
}

absl::Status ToStatus(const Api& api, Result result, const char* what) {
  if (result == Result::kSuccess) return absl::OkStatus();
  const char* name = nullptr;
  if (api.GetErrorName == nullptr || api.GetErrorName(result, &name) != Result::kSuccess) name = "unknown error";
  const std::string error = absl::StrCat(name, " (", int(result), "): ", what);
  switch (result) {
    case Result::kOutOfMemory:
      return absl::ResourceExhaustedError(absl::StrCat("the CUDA device has no memory left: ", error));
    case Result::kDeviceUnavailable:
    case Result::kEccUncorrectable:
    case Result::kNvlinkUncorrectable:
    case Result::kContained:
    case Result::kIllegalAddress:
    case Result::kLaunchTimeout:
    case Result::kContextIsDestroyed:
    case Result::kAssert:
    case Result::kHardwareStackError:
    case Result::kIllegalInstruction:
    case Result::kMisalignedAddress:
    case Result::kInvalidAddressSpace:
    case Result::kInvalidPc:
    case Result::kLaunchFailed:
    case Result::kTensorMemoryLeak:
    case Result::kExternalDevice:
      return absl::UnavailableError(absl::StrCat("the CUDA device is lost to this process: ", error));
    case Result::kInvalidImage:
    case Result::kNoBinaryForGpu:
    case Result::kUnsupportedPtxVersion:
    case Result::kSystemNotReady:
    case Result::kSystemDriverMismatch:
      return absl::FailedPreconditionError(absl::StrCat("the CUDA driver cannot run these kernels: ", error));
    default:
      return absl::InternalError(absl::StrCat("CUDA error ", error));
  }
}

}  // namespace sortition::devices::cuda
