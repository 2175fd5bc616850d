// Slices of steps: to the table where they meet, and from there as a whole step to the batcher.
#include <utility>
#include <vector>

#include "service/engine.h"
#include "service/result/split_results.h"
#include "service/stream/session_impl.h"

namespace sortition::service {

void Session::Impl::AddShard(StepShard shard, absl::Time now) {
  const uint64_t batch_id = shard.batch_id();
  const uint32_t rows = shard.rows();
  const uint64_t bytes = shard.frame->bytes;
  const std::shared_ptr<StepInFlight> step = shard.step;
  const absl::Time deadline = now + std::min(shard.shape.timeout, engine_.limits().shard_wait);
  shard.owner = shared_from_this();
  auto added = engine_.shards().Add({name_space_, worker_session_, batch_id}, std::move(shard), deadline);
  if (auto* refusal = std::get_if<Refusal>(&added)) {
    if (step != nullptr) step->AbortRows();
    return RefuseShard(batch_id, *refusal, rows, bytes);
  }
  if (auto* shards = std::get_if<std::vector<StepShard>>(&added)) SubmitShards(std::move(*shards));
}

void Session::Impl::SubmitShards(std::vector<StepShard> shards) {
  std::shared_ptr<StepInFlight> step;
  for (const StepShard& shard : shards) {
    if (shard.step != nullptr) step = shard.step;
  }
  std::optional<Refusal> refusal = step->SetShards(shards);
  if (!refusal) {
    std::vector<QueuedRow> queued = step->TakeRows();
    if (!queued.empty()) refusal = engine_.batcher().Submit(step, std::move(queued));
  }
  if (!refusal) return step->SendImmediate();
  step->AbortRows();
  for (const StepShard& shard : shards) {
    shard.owner->RefuseShard(shard.batch_id(), *refusal, shard.rows(), shard.frame->bytes);
  }
}

bool Session::Impl::IsDraining() const {
  absl::MutexLock lock(&mutex_);
  return draining_;
}

void Session::Impl::AnswerShard(v1::StepResults results, uint64_t bytes, bool last) {
  const SentRelease release{AnsweredRows(results), last ? bytes : 0};
  v1::StreamResponse response;
  *response.mutable_results() = std::move(results);
  Send(std::move(response), release);
}

void Session::Impl::RefuseShard(uint64_t batch_id, const Refusal& refusal, uint32_t rows, uint64_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    steps_.erase(batch_id);
  }
  RefuseStep(batch_id, refusal, rows, bytes);
}

}  // namespace sortition::service
