// Construction order: devices outlive the batcher, which waits for them.
#include "service/engine.h"

#include <utility>

namespace sortition::service {
namespace {

std::vector<devices::Device*> Pointers(const std::vector<std::unique_ptr<devices::Device>>& devices) {
  std::vector<devices::Device*> pointers;
  for (const auto& device : devices) pointers.push_back(device.get());
  return pointers;
}

EventLog& NoLog() {
  static NullEventLog log;
  return log;
}

}  // namespace

Engine::Engine(Options options)
    : limits_(options.limits),
      clock_(*options.clock),
      observer_(*options.observer),
      entropy_(options.entropy != nullptr ? *options.entropy : system_entropy_),
      event_log_(options.event_log == nullptr ? NoLog() : *options.event_log),
      devices_(std::move(options.devices)),
      sequences_(limits_, options.clock, options.observer),
      batcher_(limits_, Pointers(devices_), options.clock, options.observer) {}

Engine::~Engine() = default;

}  // namespace sortition::service
