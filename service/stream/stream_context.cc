// Finds steps, and keeps the memory of those that are over.
#include "service/stream/stream_context.h"

#include "kernels/check.h"
#include "service/stream/step_message.h"
#include "service/text/cost.h"

namespace sortition::service {
namespace {

// Steps whose messages are reused: a stream seldom has more in flight. A message keeps the memory that it took.
constexpr size_t kMostSpare = 2;
constexpr uint64_t kMostSpareMemory = 64 << 10;
// The most memory that a part takes, and a byte beside: a list of one-byte numbers grows by doubling.
constexpr uint64_t kPartMemory = 256;
constexpr uint64_t kByteMemory = 8;
static_assert(sizeof(v1::StepRow) <= kPartMemory);
// A message whose reading takes longer is long.
constexpr uint64_t kLongReading = price::kReadByte * (1 << 18);

}  // namespace

StreamContext::StreamContext(const Limits& limits, std::string tenant_name, std::shared_ptr<SessionSink> sink)
    : tenant(std::move(tenant_name)),
      owner(NextOwner(tenant)),
      window(std::make_shared<StreamWindow>(limits)),
      sink_(std::move(sink)) {}

bool StreamContext::PauseAfterReading(const Frame& frame) {
  const uint64_t work = price::kReadByte * frame.message_bytes + price::kReadPart * frame.scan.parts;
  if (work <= kLongReading) return false;
  pause = absl::Nanoseconds(work);
  return true;
}

bool StreamContext::IsUnanswered(uint64_t batch_id) const {
  absl::MutexLock lock(&mutex_);
  return steps_.contains(batch_id);
}

std::optional<Refusal> StreamContext::Register(const std::shared_ptr<StepMessage>& step) {
  absl::MutexLock lock(&mutex_);
  if (draining_) return Draining();
  SORTITION_CHECK(steps_.try_emplace(step->batch_id(), step).second);
  return std::nullopt;
}

void StreamContext::Unregister(uint64_t batch_id) {
  absl::MutexLock lock(&mutex_);
  steps_.erase(batch_id);
}

std::shared_ptr<StepMessage> StreamContext::Find(uint64_t batch_id) const {
  absl::MutexLock lock(&mutex_);
  const auto it = steps_.find(batch_id);
  return it == steps_.end() ? nullptr : it->second.lock();
}

std::unique_ptr<v1::Step> StreamContext::NewStep() {
  {
    absl::MutexLock lock(&mutex_);
    if (!spare_.empty()) {
      std::unique_ptr<v1::Step> step = std::move(spare_.back());
      spare_.pop_back();
      return step;
    }
  }
  return std::make_unique<v1::Step>();
}

void StreamContext::Reuse(std::unique_ptr<v1::Step> step, uint64_t bytes, uint64_t parts) {
  if (bytes * kByteMemory + parts * kPartMemory > kMostSpareMemory) return;
  step->Clear();
  absl::MutexLock lock(&mutex_);
  if (!closed_ && spare_.size() < kMostSpare) spare_.push_back(std::move(step));
}

bool StreamContext::Drain() {
  absl::MutexLock lock(&mutex_);
  return !std::exchange(draining_, true);
}

bool StreamContext::draining() const {
  absl::MutexLock lock(&mutex_);
  return draining_;
}

Refusal StreamContext::Draining() {
  return {Reason::kDraining, "step", "", "this stream is draining; open another one", absl::Milliseconds(10)};
}

std::vector<std::shared_ptr<StepMessage>> StreamContext::Steps() const {
  std::vector<std::shared_ptr<StepMessage>> steps;
  absl::MutexLock lock(&mutex_);
  for (const auto& [batch_id, step] : steps_) {
    if (auto held = step.lock()) steps.push_back(std::move(held));
  }
  return steps;
}

bool StreamContext::Close() {
  absl::MutexLock lock(&mutex_);
  spare_.clear();
  return !std::exchange(closed_, true);
}

bool StreamContext::closed() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

}  // namespace sortition::service
