// A device's context with the loaded kernels, shared by all streams of a device.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "devices/cuda/api.h"
#include "devices/cuda/hardware.h"
#include "kernels/cuda/image.h"
#include "kernels/cuda/input.h"
#include "kernels/cuda/layout.h"

namespace sortition::devices::cuda {

// Returns FAILED_PRECONDITION if the images come from a build without nvcc.
absl::Status CheckImages(const kernels::cuda::Images& images);

// Thread-safe. Uses the device's primary context, which other CUDA libraries of the process use too.
class Context {
 public:
  // Loads the kernels. Blocks for as long as the driver takes; seconds if it compiles them. FAILED_PRECONDITION if this
  // build has no kernels or the driver cannot run them.
  static absl::StatusOr<std::shared_ptr<Context>> Create(const Api& api, const Hardware& hardware,
                                                         const kernels::cuda::Images& images);
  // Creates the context of the device with this number in the driver's order, with this build's kernels. NOT_FOUND if
  // there is no driver or no such device.
  static absl::StatusOr<std::shared_ptr<Context>> OfDevice(int device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Api& api() const { return api_; }
  const Hardware& hardware() const { return hardware_; }
  ContextHandle handle() const { return handle_; }

  // Enqueues the kernels for a batch of `rows` rows, whose states are ready: the first kernel and those that are
  // `needed`. The context must be current. Does not wait; may be captured into a graph.
  absl::Status Launch(kernels::cuda::BatchView view, uint32_t rows, uint32_t sections,
                      kernels::cuda::LaterKernels needed, StreamHandle stream) const;

  // Enqueues a kernel that advances the sequences of `rows` rows. The context must be current. Does not wait; may be
  // captured into a graph.
  absl::Status Advance(kernels::cuda::SequenceView view, uint32_t rows, StreamHandle stream) const;

 private:
  Context(const Api& api, const Hardware& hardware) : api_(api), hardware_(hardware) {}
  absl::Status Open(const kernels::cuda::Images& images);

  const Api api_;
  const Hardware hardware_;
  ContextHandle handle_ = nullptr;
  ModuleHandle sample_module_ = nullptr;
  ModuleHandle chain_module_ = nullptr;
  ModuleHandle sequence_module_ = nullptr;
  FunctionHandle read_ = nullptr;
  FunctionHandle weigh_ = nullptr;
  FunctionHandle chain_ = nullptr;
  FunctionHandle advance_ = nullptr;
};

// Makes a context current in this thread during its life, and lets the thread allocate, free and wait while an engine
// captures a graph: by default these calls fail then, and invalidate the graph.
class CurrentContext {
 public:
  explicit CurrentContext(const Context& context) : CurrentContext(context.api(), context.handle()) {}
  CurrentContext(const Api& api, ContextHandle handle) : api_(api), result_(api.CtxPushCurrent(handle)) {
    if (result_ != Result::kSuccess) return;
    result_ = api_.ThreadExchangeStreamCaptureMode(&capture_mode_);
    if (result_ == Result::kSuccess) return;
    ContextHandle popped = nullptr;
    api_.CtxPopCurrent(&popped);
  }
  ~CurrentContext() {
    if (result_ != Result::kSuccess) return;
    api_.ThreadExchangeStreamCaptureMode(&capture_mode_);
    ContextHandle popped = nullptr;
    api_.CtxPopCurrent(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  absl::Status status() const { return ToStatus(api_, result_, "the CUDA context of this thread"); }

 private:
  const Api& api_;
  Result result_;
  CaptureMode capture_mode_ = CaptureMode::kRelaxed;  // after the exchange: the thread's former mode
};

// Waits for all work of the current context's device, by freeing memory: the driver waits for that. cuCtxSynchronize
// would invalidate a graph that some thread captures. It is called only where no memory is left.
absl::Status WaitForDevice(const Api& api);

// Sets memory to 0 and waits for that, on a new stream: work of the null stream invalidates graphs, too.
absl::Status Clear(const Api& api, DevicePointer memory, uint64_t bytes);

}  // namespace sortition::devices::cuda
