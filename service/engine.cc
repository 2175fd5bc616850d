// Construction of the engine. Devices outlive the batcher, which waits for them.
#include "service/engine.h"

#include <random>
#include <utility>

#include "service/policy/policy_book.h"
#include "service/shard/shard_table.h"

namespace sortition::service {
namespace {

constexpr uint32_t kAsideThreads = 2;

std::vector<devices::Device*> Pointers(const std::vector<std::unique_ptr<devices::Device>>& devices) {
  std::vector<devices::Device*> pointers;
  for (const auto& device : devices) pointers.push_back(device.get());
  return pointers;
}

EventLog& NoLog() {
  static NullEventLog log;
  return log;
}

BatcherOptions MakeBatcherOptions(const Engine::Options& options, EventLog* event_log, AsideThreads* aside_threads) {
  BatcherOptions batcher;
  batcher.devices.policy = options.route;
  batcher.devices.recheck_share = options.recheck_share;
  // Random, so that no device can predict which of its rows are checked.
  std::random_device random;
  batcher.devices.seed = uint64_t{random()} << 32 | random();
  batcher.devices.self_test = options.self_test;
  batcher.devices.event_log = event_log;
  if (aside_threads != nullptr) {
    batcher.run_aside = [aside_threads](absl::AnyInvocable<void()> task) { aside_threads->Run(std::move(task)); };
  }
  return batcher;
}

}  // namespace

Engine::Engine(Options options)
    : limits_(options.limits),
      clock_(*options.clock),
      observer_(*options.observer),
      entropy_(options.entropy != nullptr ? *options.entropy : system_entropy_),
      event_log_(options.event_log == nullptr ? NoLog() : *options.event_log),
      slow_step_(options.slow_step),
      devices_(std::move(options.devices)),
      missing_devices_(std::move(options.missing_devices)),
      clients_(limits_, options.clock),
      sequences_(limits_, options.clock, options.observer),
      ledger_(limits_, options.clock, &entropy_),
      regions_(limits_, &entropy_),
      masks_(limits_.max_mask_bytes),
      checkpoint_key_(options.checkpoint_key ? *options.checkpoint_key : CheckpointKey::Random(&entropy_)),
      receipts_(options.receipts),
      policies_(options.policies),
      shards_(std::make_unique<ShardTable>(limits_, options.clock)),
      aside_threads_(options.recheck_share > 0 || limits_.connection_device_bytes > 0
                         ? std::make_unique<AsideThreads>(kAsideThreads)
                         : nullptr),
      batcher_(limits_, Pointers(devices_), options.clock, options.observer,
               MakeBatcherOptions(options, &event_log_, aside_threads_.get())),
      unready_steps_(limits_, options.clock, options.observer, &batcher_) {}

Engine::~Engine() = default;

void Engine::Sweep() {
  shards_->Expire();
  sequences_.Sweep();
  batcher_.Sweep();
  if (policies_ != nullptr) policies_->files().Follow(clock_.Now());
}

}  // namespace sortition::service
