// Loads and launches the kernels.
#include "devices/cuda/context.h"

#include <span>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/image.h"

namespace sortition::devices::cuda {

absl::Status CheckImages(const kernels::cuda::Images& images) {
  if (!images.sample.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError("this build has no CUDA kernels: it was made without nvcc");
}

absl::StatusOr<std::shared_ptr<Context>> Context::Create(const Api& api, const Hardware& hardware,
                                                         const kernels::cuda::Images& images) {
  if (absl::Status status = CheckImages(images); !status.ok()) return status;
  std::shared_ptr<Context> context(new Context(api, hardware));
  if (absl::Status status = context->Open(images); !status.ok()) return status;
  return context;
}

absl::StatusOr<std::shared_ptr<Context>> Context::OfDevice(int device) {
  const auto api = Api::Load();
  if (!api.ok()) return api.status();
  const auto hardware = FindHardware(*api, device);
  if (!hardware.ok()) return hardware.status();
  return Create(*api, *hardware, kernels::cuda::CompiledImages());
}

Context::~Context() {
  for (const ModuleHandle module : {sample_module_, chain_module_, sequence_module_}) {
    if (module == nullptr) continue;
    const CurrentContext current(*this);
    api_.ModuleUnload(module);
  }
  if (handle_ != nullptr) api_.DevicePrimaryCtxRelease(hardware_.handle);
}

absl::Status Context::Open(const kernels::cuda::Images& images) {
  SORTITION_CUDA_RETURN_IF_ERROR(api_, DevicePrimaryCtxRetain(&handle_, hardware_.handle));
  const CurrentContext current(*this);
  if (!current.status().ok()) return current.status();
  const struct {
    ModuleHandle* module;
    std::span<const std::byte> image;
  } modules[] = {
      {&sample_module_, images.sample}, {&chain_module_, images.chain}, {&sequence_module_, images.sequence}};
  for (const auto& [module, image] : modules) {
    const absl::Status loaded = ToStatus(api_, api_.ModuleLoadData(module, image.data()), "ModuleLoadData");
    if (loaded.ok()) continue;
    if (!absl::IsFailedPrecondition(loaded)) return loaded;
    return absl::FailedPreconditionError(
        absl::StrCat(loaded.message(), "; this build needs driver ", kernels::cuda::LeastDriver(), " or newer"));
  }
  const struct {
    FunctionHandle* function;
    ModuleHandle module;
    const char* name;
  } kernels[] = {{&read_, sample_module_, kernels::cuda::kReadKernel},
                 {&weigh_, sample_module_, kernels::cuda::kWeighKernel},
                 {&chain_, chain_module_, kernels::cuda::kChainKernel},
                 {&advance_, sequence_module_, kernels::cuda::kAdvanceKernel}};
  for (const auto& [function, module, name] : kernels) {
    SORTITION_CUDA_RETURN_IF_ERROR(api_, ModuleGetFunction(function, module, name));
    // Makes the driver load the kernel now; it would otherwise do so at the first launch, or during a graph's capture.
    int registers = 0;
    SORTITION_CUDA_RETURN_IF_ERROR(api_, FuncGetAttribute(&registers, kFunctionRegisters, *function));
  }
  return absl::OkStatus();
}

absl::Status WaitForDevice(const Api& api) {
  DevicePointer memory = 0;
  const Result result = api.MemAlloc(&memory, 1);
  if (result == Result::kOutOfMemory) return ToStatus(api, api.CtxSynchronize(), "CtxSynchronize()");
  if (result != Result::kSuccess) return ToStatus(api, result, "cuMemAlloc");
  return ToStatus(api, api.MemFree(memory), "cuMemFree");
}

absl::Status Clear(const Api& api, DevicePointer memory, uint64_t bytes) {
  StreamHandle stream = nullptr;
  SORTITION_CUDA_RETURN_IF_ERROR(api, StreamCreate(&stream, kStreamNonBlocking));
  Result result = api.MemsetD8Async(memory, 0, bytes, stream);
  if (result == Result::kSuccess) result = api.StreamSynchronize(stream);
  api.StreamDestroy(stream);
  return ToStatus(api, result, "cuMemsetD8Async");
}

absl::Status Context::Launch(kernels::cuda::BatchView view, uint32_t rows, uint32_t sections,
                             kernels::cuda::LaterKernels needed, StreamHandle stream) const {
  void* arguments[] = {&view};
  const struct {
    FunctionHandle function;
    uint32_t blocks;  // of a row
    bool is_needed;
  } kernels[] = {{read_, sections, true}, {weigh_, sections, needed.weigh}, {chain_, 1, needed.chain}};
  for (const auto& [function, blocks, is_needed] : kernels) {
    if (!is_needed) continue;
    SORTITION_CUDA_RETURN_IF_ERROR(
        api_, LaunchKernel(function, blocks, rows, 1, kernels::cuda::kThreads, 1, 1, 0, stream, arguments, nullptr));
  }
  return absl::OkStatus();
}

absl::Status Context::Advance(kernels::cuda::SequenceView view, uint32_t rows, StreamHandle stream) const {
  void* arguments[] = {&view};
  SORTITION_CUDA_RETURN_IF_ERROR(
      api_, LaunchKernel(advance_, 1, rows, 1, kernels::cuda::kThreads, 1, 1, 0, stream, arguments, nullptr));
  return absl::OkStatus();
}

}  // namespace sortition::devices::cuda
