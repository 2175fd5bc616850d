// Source of a device's context.
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

// Gives all callers one context, and a new one once it is lost. Thread-safe.
class ContextSource {
 public:
  ContextSource(std::shared_ptr<Instance> instance, const Hardware& hardware, ContextOptions options)
      : instance_(std::move(instance)), hardware_(hardware), options_(std::move(options)) {}
  ~ContextSource();
  ContextSource(const ContextSource&) = delete;
  ContextSource& operator=(const ContextSource&) = delete;

  // Returns a context that is not known to be lost. If it must make one, blocks until the driver has compiled the
  // shaders; after an error the next call tries again.
  absl::StatusOr<std::shared_ptr<Context>> Get() ABSL_LOCKS_EXCLUDED(mutex_);
  // Keeps `owner` until the device is done with its commands, which did not end in time. The owner owns their context
  // and everything that they name. If the commands never end, it is never destroyed.
  void KeepUntilDone(std::shared_ptr<const void> owner, const Commands* commands) ABSL_LOCKS_EXCLUDED(mutex_);
  // Cache status of the current context; OK if there is none.
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
