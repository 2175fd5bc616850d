// The way back from a lost device.
#include "devices/vulkan/context_source.h"

namespace sortition::devices::vulkan {

absl::StatusOr<std::shared_ptr<Context>> ContextSource::Get() {
  absl::MutexLock lock(&mutex_);
  if (context_ == nullptr || context_->lost()) {
    context_.reset();
    auto created = Context::Create(instance_, hardware_, options_);
    if (!created.ok()) return created.status();
    context_ = *std::move(created);
  }
  return context_;
}

absl::Status ContextSource::cache_status() const {
  absl::MutexLock lock(&mutex_);
  return context_ == nullptr ? absl::OkStatus() : context_->cache_status();
}

}  // namespace sortition::devices::vulkan
