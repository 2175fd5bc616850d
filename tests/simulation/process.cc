// Passes events of the timeline and the network to the state machine.
#include "tests/simulation/process.h"

#include <algorithm>
#include <utility>

namespace sortition::simulation {

std::shared_ptr<Process> Process::Start(const client::ClientOptions& options, const Identity& identity,
                                        Network* network, Timeline* timeline) {
  std::shared_ptr<Process> process(new Process(identity.generation, timeline));
  process->Begin(options, identity, network);
  return process;
}

void Process::Begin(const client::ClientOptions& options, const Identity& identity, Network* network) {
  client::StreamState::Environment environment;
  environment.connector = network->ConnectorOf(identity.index, weak_from_this());
  environment.events = this;
  environment.first_epoch = static_cast<uint64_t>(absl::ToUnixMicros(timeline_.Now())) << 8 | generation_;
  environment.jitter_seed = identity.jitter_seed;
  environment.released = [this](std::shared_ptr<client::PendingBatch> batch) {
    released_.push_back(std::move(batch));
    timeline_.After(absl::ZeroDuration(), [self = weak_from_this()] {
      if (const auto alive = self.lock()) alive->Settle();
    });
  };
  state_.emplace(options, identity.session, std::move(environment));
  Update([](client::StreamState& state, absl::Time now) { state.Start(now); });
}

void Process::Stop() {
  if (std::exchange(stopped_, true)) return;
  state_->Stop();
  state_->TakeFinished();
  released_.clear();
}

void Process::OnResponse(uint64_t stream, const v1::StreamResponse& response) {
  Update([&](client::StreamState& state, absl::Time now) { state.OnResponse(stream, response, now); });
}

void Process::OnEnded(uint64_t stream, absl::Status status) {
  Update([&](client::StreamState& state, absl::Time now) { state.OnEnded(stream, status, now); });
}

void Process::Settle() {
  Tell();
  if (stopped_) return;
  const absl::Time next = state_->next_event(timeline_.Now());
  if (next >= wake_at_ || next == absl::InfiniteFuture()) return;
  wake_at_ = next;
  // Adds a microsecond, so that the time has passed when the event runs.
  timeline_.At(std::max(next, timeline_.Now() + absl::Microseconds(1)), [self = weak_from_this(), next] {
    const auto alive = self.lock();
    if (alive == nullptr || alive->wake_at_ != next) return;
    alive->wake_at_ = absl::InfiniteFuture();
    alive->Update([](client::StreamState& state, absl::Time now) { state.OnTime(now); });
  });
}

void Process::Tell() {
  client::StreamState::Finished finished = state_->TakeFinished();
  for (auto& batch : std::exchange(released_, {})) finished.batches.push_back(std::move(batch));
  for (auto& open : finished.opens) std::move(open->done)(std::move(open->status));
  for (auto& batch : finished.batches) batch->Finish();
}

}  // namespace sortition::simulation
