// Replaces a lost context.
#include "devices/vulkan/context_source.h"

namespace sortition::devices::vulkan {

ContextSource::~ContextSource() {
  absl::MutexLock lock(&mutex_);
  DropDone();
  if (!kept_.empty()) new std::vector<Kept>(std::move(kept_));
}

absl::StatusOr<std::shared_ptr<Context>> ContextSource::Get() {
  absl::MutexLock lock(&mutex_);
  if (context_ == nullptr || context_->lost()) {
    context_.reset();
    DropDone();
    auto created = Context::Create(instance_, hardware_, options_);
    if (!created.ok()) return created.status();
    context_ = *std::move(created);
  }
  return context_;
}

void ContextSource::KeepUntilDone(std::shared_ptr<const void> owner, const Commands* commands) {
  absl::MutexLock lock(&mutex_);
  kept_.push_back({std::move(owner), commands});
}

void ContextSource::DropDone() {
  std::erase_if(kept_, [](const Kept& kept) { return kept.commands->IsDone(); });
}

absl::Status ContextSource::cache_status() const {
  absl::MutexLock lock(&mutex_);
  return context_ == nullptr ? absl::OkStatus() : context_->cache_status();
}

}  // namespace sortition::devices::vulkan
