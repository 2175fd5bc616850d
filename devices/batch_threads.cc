// One queue for all threads.
#include "devices/batch_threads.h"

#include <utility>

#include "kernels/check.h"

namespace sortition::devices {

BatchThreads::~BatchThreads() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void BatchThreads::Add(Run run) {
  threads_.emplace_back([this, run = std::move(run)]() mutable {
    for (Batch batch = Take(); batch.done != nullptr; batch = Take()) {
      BatchOutput result = run(batch.rows);
      if (!result.status.ok()) result.outputs.clear();
      std::exchange(batch.done, nullptr)(std::move(result));
    }
  });
}

void BatchThreads::Submit(std::vector<DeviceRow> rows, Device::Done done) {
  absl::MutexLock lock(&mutex_);
  SORTITION_CHECK(!stopping_);
  queue_.push_back({std::move(rows), std::move(done)});
}

BatchThreads::Batch BatchThreads::Take() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &BatchThreads::BatchOrStop));
  if (queue_.empty()) return {};
  Batch batch = std::move(queue_.front());
  queue_.pop_front();
  return batch;
}

}  // namespace sortition::devices
