// Where a device's context comes from.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "devices/vulkan/commands.h"
#include "devices/vulkan/context.h"

namespace sortition::devices::vulkan {

// One context for all that ask, and another one once it is lost. Thread-safe.
class ContextSource {
 public:
  ContextSource(std::shared_ptr<Instance> instance, const Hardware& hardware, ContextOptions options)
      : instance_(std::move(instance)), hardware_(hardware), options_(std::move(options)) {}
  ~ContextSource();
  ContextSource(const ContextSource&) = delete;
  ContextSource& operator=(const ContextSource&) = delete;

  // A context that is not lost, as far as anyone knows. Where it has to be made, blocks for as long as the driver takes
  // to compile the shaders; an error leaves none, and the next call tries again.
  absl::StatusOr<std::shared_ptr<Context>> Get() ABSL_LOCKS_EXCLUDED(mutex_);
  // Keeps `owner` until the device is done with these commands of its, which it did not answer in time. The owner has
  // all that they name, and their context. What the device is never done with is never destroyed.
  void KeepUntilDone(std::shared_ptr<const void> owner, const Commands* commands) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of the context there is; OK if there is none.
  absl::Status cache_status() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Kept {
    std::shared_ptr<const void> owner;
    const Commands* commands;  // the owner's
  };
  void DropDone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<Instance> instance_;
  const Hardware hardware_;
  const ContextOptions options_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<Context> context_ ABSL_GUARDED_BY(mutex_);
  std::vector<Kept> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sortition::devices::vulkan
