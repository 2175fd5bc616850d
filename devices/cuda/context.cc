// Loading and launching.
#include "devices/cuda/context.h"

#include "absl/strings/str_cat.h"
#include "kernels/cuda/image.h"

namespace sortition::devices::cuda {

absl::Status CheckImage(std::span<const std::byte> image) {
  if (!image.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError("this build has no CUDA kernels: it was made without nvcc");
}

absl::StatusOr<std::shared_ptr<Context>> Context::Create(const Api& api, const Hardware& hardware,
                                                         std::span<const std::byte> image) {
  if (absl::Status status = CheckImage(image); !status.ok()) return status;
  std::shared_ptr<Context> context(new Context(api, hardware));
  if (absl::Status status = context->Open(image); !status.ok()) return status;
  return context;
}

Context::~Context() {
  if (module_ != nullptr) {
    const CurrentContext current(*this);
    api_.ModuleUnload(module_);
  }
  if (handle_ != nullptr) api_.DevicePrimaryCtxRelease(hardware_.handle);
}

absl::Status Context::Open(std::span<const std::byte> image) {
  SORTITION_CUDA_RETURN_IF_ERROR(api_, DevicePrimaryCtxRetain(&handle_, hardware_.handle));
  const CurrentContext current(*this);
  if (!current.status().ok()) return current.status();
  SORTITION_CUDA_RETURN_IF_ERROR(api_, ModuleLoadData(&module_, image.data()));
  const struct {
    FunctionHandle* function;
    const char* name;
  } kernels[] = {{&read_, kernels::cuda::kReadKernel}, {&weigh_, kernels::cuda::kWeighKernel}};
  for (const auto& [function, name] : kernels) {
    SORTITION_CUDA_RETURN_IF_ERROR(api_, ModuleGetFunction(function, module_, name));
    // Drivers load a kernel when it is first asked about; the first batch, or a graph's capture, is too late for that.
    int registers = 0;
    SORTITION_CUDA_RETURN_IF_ERROR(api_, FuncGetAttribute(&registers, kFunctionRegisters, *function));
  }
  return absl::OkStatus();
}

absl::Status Context::Launch(kernels::cuda::BatchView view, uint32_t rows, uint32_t chunks, bool weighs,
                             StreamHandle stream) const {
  void* arguments[] = {&view};
  SORTITION_CUDA_RETURN_IF_ERROR(
      api_, LaunchKernel(read_, chunks, rows, 1, kernels::cuda::kThreads, 1, 1, 0, stream, arguments, nullptr));
  if (!weighs) return absl::OkStatus();
  SORTITION_CUDA_RETURN_IF_ERROR(
      api_, LaunchKernel(weigh_, chunks, rows, 1, kernels::cuda::kThreads, 1, 1, 0, stream, arguments, nullptr));
  return absl::OkStatus();
}

}  // namespace sortition::devices::cuda
