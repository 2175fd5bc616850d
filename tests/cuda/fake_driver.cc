// The driver's functions, except memory's. Kernels run at once when they are launched.
#include "tests/cuda/fake_driver.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "kernels/check.h"
#include "kernels/cuda/image.h"
#include "tests/cuda/emulated_kernels.h"
#include "tests/cuda/fake_driver_state.h"

namespace sortition::testing {
namespace fake_cuda {
namespace {

constexpr char kSampleImage[] = "the emulated kernels of sample.cu";
constexpr char kChainImage[] = "the emulated kernel of chain.cu";
constexpr char kSequenceImage[] = "the emulated kernel of sequence.cu";
// Kernels, by the handles of their functions less 1, and the images that have them.
constexpr struct {
  const char* name;
  const char* image;
  std::optional<CudaKernel> kernel;  // of batches
} kKernels[] = {{kernels::cuda::kReadKernel, kSampleImage, CudaKernel::kRead},
                {kernels::cuda::kWeighKernel, kSampleImage, CudaKernel::kWeigh},
                {kernels::cuda::kChainKernel, kChainImage, CudaKernel::kChain},
                {kernels::cuda::kAdvanceKernel, kSequenceImage, std::nullopt}};

bool Exists(const std::string& file) { return !file.empty() && access(file.c_str(), F_OK) == 0; }

}  // namespace

Result AfterKernels() {
  if (Exists(state->options.fault_file)) state->kernel_fault = Result::kIllegalAddress;
  state->sticky = state->kernel_fault;
  return state->sticky;
}

void WaitForAll() {
  std::vector<std::thread> writers;
  {
    const std::lock_guard lock(state->mutex);
    writers = std::exchange(state->writers, {});
  }
  for (std::thread& writer : writers) writer.join();
  DoDeferred(SIZE_MAX);
}

Result FakeInit(unsigned) {
  return Call("Init", [] { return kOk; });
}
Result FakeGetErrorName(Result, const char** name) {
  *name = "CUDA_ERROR_OF_A_TEST";
  return kOk;
}
Result FakeDeviceGetCount(int* count) {
  return Call("DeviceGetCount", [&] {
    *count = state->options.devices;
    return kOk;
  });
}
Result FakeDeviceGet(DeviceHandle* device, int ordinal) {
  *device = ordinal;
  return kOk;
}
Result FakeDeviceGetName(char* name, int length, DeviceHandle device) {
  return Call("DeviceGetName", [&] {
    std::snprintf(name, size_t(length), "Fake GPU %d", device);
    return kOk;
  });
}
Result FakeDeviceGetUuid(Uuid* uuid, DeviceHandle device) {
  for (int i = 0; i < 16; ++i) uuid->bytes[i] = static_cast<unsigned char>(17 * i + device);
  return kOk;
}
Result FakeDeviceGetAttribute(int* value, DeviceAttribute attribute, DeviceHandle) {
  const int capability = state->options.capability;
  if (attribute == DeviceAttribute::kMultiprocessors) *value = state->options.multiprocessors;
  if (attribute == DeviceAttribute::kComputeCapabilityMajor) *value = capability / 10;
  if (attribute == DeviceAttribute::kComputeCapabilityMinor) *value = capability % 10;
  if (attribute == DeviceAttribute::kVirtualMemoryManagement) *value = 1;
  if (attribute == DeviceAttribute::kFileDescriptorHandles) *value = state->options.shares_memory;
  if (attribute == DeviceAttribute::kMemoryPools) *value = state->options.has_memory_pools;
  return kOk;
}
Result FakeDeviceTotalMem(size_t* bytes, DeviceHandle) {
  *bytes = state->options.memory_bytes;
  return kOk;
}
Result FakeDevicePrimaryCtxRetain(ContextHandle* context, DeviceHandle device) {
  return Call("DevicePrimaryCtxRetain", [&] {
    ++state->contexts;
    *context = ContextOf(device);
    return kOk;
  });
}
Result FakeDevicePrimaryCtxRelease(DeviceHandle) {
  const std::lock_guard lock(state->mutex);
  --state->contexts;
  return kOk;
}
Result FakeCtxPushCurrent(ContextHandle context) {
  current_contexts.push_back(context);
  return kOk;
}
Result FakeCtxPopCurrent(ContextHandle* context) {
  SORTITION_CHECK(!current_contexts.empty());
  *context = current_contexts.back();
  current_contexts.pop_back();
  return kOk;
}
Result FakeCtxSynchronize() {
  SORTITION_CHECK(!current_contexts.empty());
  WaitForAll();
  return Call("CtxSynchronize", [] { return AfterKernels(); });
}
Result FakeThreadExchangeStreamCaptureMode(CaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return kOk;
}
Result FakeModuleLoadData(ModuleHandle* module, const void* image) {
  return Call("ModuleLoadData", [&] {
    const bool is_known = image == kSampleImage || image == kChainImage || image == kSequenceImage;
    if (!is_known && !state->options.takes_any_image) return Result::kInvalidImage;
    ++state->modules;
    *module = reinterpret_cast<ModuleHandle>(reinterpret_cast<uintptr_t>(image));
    return kOk;
  });
}
Result FakeModuleUnload(ModuleHandle) {
  const std::lock_guard lock(state->mutex);
  --state->modules;
  return kOk;
}
Result FakeModuleGetFunction(FunctionHandle* function, ModuleHandle module, const char* name) {
  return Call("ModuleGetFunction", [&] {
    const auto is_it = [&](const auto& kernel) {
      return std::string_view(name) == kernel.name &&
             (state->options.takes_any_image ||
              reinterpret_cast<uintptr_t>(module) == reinterpret_cast<uintptr_t>(kernel.image));
    };
    const auto at = std::ranges::find_if(kKernels, is_it);
    SORTITION_CHECK(at != std::end(kKernels));
    *function = reinterpret_cast<FunctionHandle>(uintptr_t(1 + (at - kKernels)));
    return kOk;
  });
}
Result FakeFuncGetAttribute(int* value, int, FunctionHandle) {
  *value = 64;
  return kOk;
}
Result FakeLaunchKernel(FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, StreamHandle stream,
                        void** arguments, void** extra) {
  const auto& kernel = kKernels[reinterpret_cast<uintptr_t>(function) - 1];
  // The driver keeps the arguments, too.
  kernels::cuda::BatchView view;
  kernels::cuda::SequenceView sequences;
  if (kernel.kernel) {
    view = *static_cast<const kernels::cuda::BatchView*>(arguments[0]);
  } else {
    sequences = *static_cast<const kernels::cuda::SequenceView*>(arguments[0]);
  }
  const auto run = [=, &kernel] {
    uint64_t seed = 0;
    {
      const std::lock_guard lock(state->mutex);
      seed = state->launches++;
      ++state->launches_of[kernel.name];
    }
    const std::lock_guard lock(state->launch_mutex);
    if (!kernel.kernel) return RunEmulatedAdvance(sequences, grid_y, seed);
    RunEmulated(*kernel.kernel, view, grid_y, grid_x, seed);
  };
  bool is_later = false;
  const Result before = Call("LaunchKernel", [&] {
    SORTITION_CHECK(!current_contexts.empty() && extra == nullptr && shared_bytes == 0);
    SORTITION_CHECK(grid_z == 1 && block_x == kernels::cuda::kThreads && block_y == 1 && block_z == 1);
    SORTITION_CHECK(grid_x >= 1 && grid_y >= 1 && grid_y <= 65535 && (kernel.kernel || grid_x == 1));
    Work* const later = LaterWork(stream);
    is_later = later != nullptr;
    if (is_later) later->emplace_back(run);
    return kOk;
  });
  if (before == kOk && !is_later) run();
  return before;
}
Result FakeStreamCreate(StreamHandle* stream, unsigned) {
  return Call("StreamCreate", [&] {
    *stream = reinterpret_cast<StreamHandle>(uintptr_t(1000 + state->streams++));
    return kOk;
  });
}
Result FakeStreamDestroy(StreamHandle) {
  const std::lock_guard lock(state->mutex);
  --state->streams;
  return kOk;
}
bool IsWritten(const std::pair<DevicePointer, uint32_t>& awaited) {
  const std::atomic_ref word(*reinterpret_cast<uint32_t*>(awaited.first));
  return static_cast<int32_t>(word.load() - awaited.second) >= 0;
}
Result FakeStreamSynchronize(StreamHandle stream) {
  std::function<void(StreamHandle)> work;
  std::optional<std::pair<DevicePointer, uint32_t>> awaited;
  {
    const std::lock_guard lock(state->mutex);
    work = state->work;
    const auto found = state->awaited_values.find(stream);
    if (found != state->awaited_values.end()) awaited = found->second;
  }
  if (work) work(stream);
  while (awaited && !IsWritten(*awaited)) std::this_thread::yield();
  DoDeferred(SIZE_MAX);
  return Call("StreamSynchronize", [] { return AfterKernels(); });
}
Result FakeStreamIsCapturing(StreamHandle stream, int* status) {
  const std::lock_guard lock(state->mutex);
  *status = state->is_capturing || (stream != nullptr && stream == state->capturing) ? 1 : 0;
  return kOk;
}
Result FakeStreamWriteValue32(StreamHandle stream, DevicePointer address, uint32_t value, unsigned flags) {
  SORTITION_CHECK(flags == 0);
  return Call("StreamWriteValue32", [&] {
    const auto write = [work = state->work, stream, address, value] {
      if (work) work(stream);
      std::atomic_ref(*reinterpret_cast<uint32_t*>(address)).store(value, std::memory_order_release);
    };
    if (state->work) {
      state->writers.emplace_back(write);
    } else {
      write();
    }
    return kOk;
  });
}
Result FakeStreamWaitValue32(StreamHandle stream, DevicePointer address, uint32_t value, unsigned flags) {
  SORTITION_CHECK(flags == kWaitUntilNotBefore);
  return Call("StreamWaitValue32", [&] {
    state->awaited_values[stream] = {address, value};
    return kOk;
  });
}
Result FakeEventCreate(EventHandle* event, unsigned) {
  return Call("EventCreate", [&] {
    *event = reinterpret_cast<EventHandle>(uintptr_t(2000 + state->events++));
    return kOk;
  });
}
Result FakeEventDestroy(EventHandle) {
  const std::lock_guard lock(state->mutex);
  --state->events;
  return kOk;
}
Result FakeEventRecord(EventHandle event, StreamHandle stream) {
  return Call("EventRecord", [&] {
    state->recorded[event] = stream;
    state->before_of[event] = state->deferred.size();
    return kOk;
  });
}
Result FakeStreamWaitEvent(StreamHandle stream, EventHandle event, unsigned flags) {
  return Call("StreamWaitEvent", [&] {
    SORTITION_CHECK(flags == 0 && state->recorded.contains(event) && state->recorded[event] != stream);
    state->awaited.insert(state->recorded[event]);
    return kOk;
  });
}
Result FakeEventSynchronize(EventHandle event) {
  size_t before = 0;
  {
    const std::lock_guard lock(state->mutex);
    before = state->before_of[event];
  }
  while (Exists(state->options.hold_file)) std::this_thread::yield();
  DoDeferred(before);
  return Call("EventSynchronize", [] { return AfterKernels(); });
}
Result FakeEventQuery(EventHandle event) {
  return Call("EventQuery", [&] { return state->done < state->before_of[event] ? Result::kNotReady : AfterKernels(); });
}
Result FakeEventElapsedTime(float* milliseconds, EventHandle, EventHandle) {
  *milliseconds = 0.5f;
  return kOk;
}

void DoDeferred(size_t count) {
  for (;;) {
    std::function<void()> work;
    {
      const std::lock_guard lock(state->mutex);
      if (state->done >= std::min(count, state->deferred.size())) return;
      work = std::move(state->deferred[state->done++]);
    }
    work();
  }
}
}  // namespace fake_cuda

using fake_cuda::kOk;
using fake_cuda::state;
using namespace devices::cuda;

FakeCudaDriver::FakeCudaDriver(const FakeCudaOptions& options) {
  SORTITION_CHECK(state == nullptr);
  state = new fake_cuda::State;
  state->options = options;
}

FakeCudaDriver::~FakeCudaDriver() {
  while (!state->memory.empty()) {
    EXPECT_TRUE(state->memory.begin()->second.is_tests) << "memory of the device was not freed";
    fake_cuda::Free(state->memory.begin()->first);
  }
  EXPECT_TRUE(state->shared.IsEmpty()) << "an allocation, addresses or a mapping were not given back";
  EXPECT_TRUE(state->pinned.empty());
  EXPECT_TRUE(state->registered.empty());
  EXPECT_TRUE(state->writers.empty()) << "nobody has waited for them";
  EXPECT_EQ(state->done, state->deferred.size()) << "deferred work was never done";
  EXPECT_EQ(state->streams, 0);
  EXPECT_EQ(state->events, 0);
  EXPECT_EQ(state->graphs, 0);
  EXPECT_EQ(state->contexts, 0);
  EXPECT_EQ(state->modules, 0);
  delete state;
  state = nullptr;
}

Api FakeCudaDriver::api() const {
  Api api;
#define SORTITION_CUDA_FUNCTION(name, symbol, ...) api.name = &fake_cuda::Fake##name;
#include "devices/cuda/functions.inc"
#undef SORTITION_CUDA_FUNCTION
  return api;
}

void FakeCudaDriver::Fail(const std::string& function, Result error, int nth) {
  const std::lock_guard lock(state->mutex);
  state->failures[function] = {nth, error};
}

void FakeCudaDriver::FailKernel(Result error) {
  const std::lock_guard lock(state->mutex);
  state->kernel_fault = error;
}

void FakeCudaDriver::SetCapturing(bool is_capturing) {
  const std::lock_guard lock(state->mutex);
  state->is_capturing = is_capturing;
}

void FakeCudaDriver::Defer() {
  const std::lock_guard lock(state->mutex);
  state->is_deferring = true;
}

void FakeCudaDriver::Enqueue(StreamHandle stream, std::function<void()> work) {
  {
    const std::lock_guard lock(state->mutex);
    if (fake_cuda::Work* const later = fake_cuda::LaterWork(stream); later != nullptr) {
      later->push_back(std::move(work));
      return;
    }
  }
  work();
}

void FakeCudaDriver::SetWork(std::function<void(StreamHandle)> work) {
  const std::lock_guard lock(state->mutex);
  state->work = std::move(work);
}

uint64_t FakeCudaDriver::launches() const {
  const std::lock_guard lock(state->mutex);
  return state->launches;
}

uint64_t FakeCudaDriver::launches(const std::string& kernel) const {
  const std::lock_guard lock(state->mutex);
  return state->launches_of[kernel];
}

uint64_t FakeCudaDriver::calls(const std::string& function) const {
  const std::lock_guard lock(state->mutex);
  return state->calls[function];
}

uint64_t FakeCudaDriver::uploaded_bytes() const {
  const std::lock_guard lock(state->mutex);
  return state->uploaded_bytes;
}

uint64_t FakeCudaDriver::downloaded_bytes() const {
  const std::lock_guard lock(state->mutex);
  return state->downloaded_bytes;
}

bool FakeCudaDriver::is_awaited(StreamHandle stream) const {
  const std::lock_guard lock(state->mutex);
  return state->awaited.contains(stream);
}

bool FakeCudaDriver::is_waiting(StreamHandle stream) const {
  const std::lock_guard lock(state->mutex);
  const auto found = state->awaited_values.find(stream);
  return found != state->awaited_values.end() && !fake_cuda::IsWritten(found->second);
}

kernels::cuda::Images FakeCudaDriver::Images() {
  return {std::as_bytes(std::span(fake_cuda::kSampleImage)), std::as_bytes(std::span(fake_cuda::kChainImage)),
          std::as_bytes(std::span(fake_cuda::kSequenceImage))};
}

void* FakeCudaDriver::Allocate(uint64_t bytes, int device) {
  const std::lock_guard lock(state->mutex);
  uint64_t address = 0;
  SORTITION_CHECK(fake_cuda::Allocate(bytes, device, true, &address) == kOk);
  return reinterpret_cast<void*>(address);
}

}  // namespace sortition::testing
