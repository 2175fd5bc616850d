// A device's context with the kernels loaded: what all streams of a device share.
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

// FAILED_PRECONDITION if the images are those of a build without nvcc.
absl::Status CheckImages(const kernels::cuda::Images& images);

// Thread-safe. It is the device's primary context, the one that other CUDA libraries of the process use, too.
class Context {
 public:
  // Blocks for the time that the driver takes to load the kernels; seconds where it compiles them. FAILED_PRECONDITION
  // where this build has no kernels, or the driver cannot run them.
  static absl::StatusOr<std::shared_ptr<Context>> Create(const Api& api, const Hardware& hardware,
                                                         const kernels::cuda::Images& images);
  // On this machine's device of that number in the driver's order, with this build's kernels. NOT_FOUND: no driver, no
  // such device.
  static absl::StatusOr<std::shared_ptr<Context>> OfDevice(int device);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const Api& api() const { return api_; }
  const Hardware& hardware() const { return hardware_; }
  ContextHandle handle() const { return handle_; }

  // Puts the kernels for a batch of `rows` rows, whose states are ready, into the stream: the first and those that are
  // `needed`. The context is current. Does not wait; may be captured into a graph.
  absl::Status Launch(kernels::cuda::BatchView view, uint32_t rows, uint32_t sections,
                      kernels::cuda::LaterKernels needed, StreamHandle stream) const;

  // Puts a kernel into the stream that changes edits where they are, one block for each of `merges`, which are the
  // device's and at most 65,535. Likewise.
  absl::Status Merge(const kernels::cuda::EditMerge* merges, uint32_t count, StreamHandle stream) const;

 private:
  Context(const Api& api, const Hardware& hardware) : api_(api), hardware_(hardware) {}
  absl::Status Open(const kernels::cuda::Images& images);

  const Api api_;
  const Hardware hardware_;
  ContextHandle handle_ = nullptr;
  ModuleHandle sample_module_ = nullptr;
  ModuleHandle chain_module_ = nullptr;
  ModuleHandle edits_module_ = nullptr;
  FunctionHandle read_ = nullptr;
  FunctionHandle weigh_ = nullptr;
  FunctionHandle chain_ = nullptr;
  FunctionHandle merge_ = nullptr;
};

// Makes a context current in this thread for as long as it lives.
class CurrentContext {
 public:
  explicit CurrentContext(const Context& context) : CurrentContext(context.api(), context.handle()) {}
  CurrentContext(const Api& api, ContextHandle handle) : api_(api), result_(api.CtxPushCurrent(handle)) {}
  ~CurrentContext() {
    ContextHandle popped = nullptr;
    if (result_ == Result::kSuccess) api_.CtxPopCurrent(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  absl::Status status() const { return ToStatus(api_, result_, "cuCtxPushCurrent"); }

 private:
  const Api& api_;
  const Result result_;
};

}  // namespace sortition::devices::cuda
