// The CUDA driver's functions, found at run time: a machine without a driver runs the same binary.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "devices/cuda/driver.h"

namespace sortition::devices::cuda {

// A table of functions, as a value: tests replace single functions to make them fail. Thread-safe once filled.
struct Api {
  std::shared_ptr<void> library;  // keeps the functions alive

#define SORTITION_CUDA_FUNCTION(name, symbol, ...) \
  using name##Function = __VA_ARGS__;              \
  name##Function* name = nullptr;
#include "devices/cuda/functions.inc"
#undef SORTITION_CUDA_FUNCTION

  // Finds and starts the driver. NOT_FOUND if this machine has no driver or no GPU; FAILED_PRECONDITION if the driver
  // is too old or does not fit its kernel module. Blocks for as long as the driver takes, up to seconds.
  static absl::StatusOr<Api> Load(const char* library_name = "libcuda.so.1");
};

// Converts a result: RESOURCE_EXHAUSTED for memory; UNAVAILABLE for errors after which the process cannot use the
// device (CUDA calls them sticky); FAILED_PRECONDITION for a driver that cannot run these kernels; INTERNAL for other
// errors. `what` names the call.
absl::Status ToStatus(const Api& api, Result result, const char* what);

#define SORTITION_CUDA_RETURN_IF_ERROR(api, call) \
  if (absl::Status status = ::sortition::devices::cuda::ToStatus((api), (api).call, #call); !status.ok()) return status

}  // namespace sortition::devices::cuda
