// Simulation of a router under its own clock.
#include "tests/bench/routing/scenario.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"

namespace sortition::bench {

using service::Router;

namespace {

constexpr size_t kBatches = 600;
const absl::Time kStart = absl::FromUnixSeconds(1'000'000'000);

std::vector<Router::BatchSummary> Batches(std::mt19937_64* random, bool in_several_memories) {
  std::vector<Router::BatchSummary> batches;
  constexpr uint32_t kVocabularies[] = {32000, 128256, 151936};
  for (size_t i = 0; i < kBatches; ++i) {
    Router::BatchSummary batch;
    batch.rows = uint32_t(1 + (*random)() % 64);
    batch.vocabulary = kVocabularies[(*random)() % 3];
    batch.bytes = uint64_t{batch.rows} * batch.vocabulary * 2;
    if (in_several_memories) batch.memory = uint32_t((*random)() % 3);
    batches.push_back(batch);
  }
  return batches;
}

// A processor, and two cards: one much like it, one several times as fast but far away.
std::vector<Truth> Devices() {
  return {{.costs = {5e-6, 10e-6, 0.10e-9, 0.2e-9}},
          {.costs = {60e-6, 4e-6, 0.08e-9, 0.1e-9}},
          {.costs = {200e-6, 1e-6, 0.03e-9, 0.05e-9}}};
}

// Takes batches and does nothing with them: the simulation ends them.
class SimulatedDevice final : public devices::Device {
 public:
  SimulatedDevice(std::string name, uint32_t memory) {
    description_.name = std::move(name);
    description_.memory = memory;
    description_.max_batch_rows = 64;
    description_.batches_in_flight = 2;
  }
  const devices::DeviceDescription& description() const override { return description_; }
  void Submit(std::vector<devices::DeviceRow>, Done) override {}

 private:
  devices::DeviceDescription description_;
};

struct InFlight {
  size_t device;
  Router::BatchSummary batch;
  double end;
};

}  // namespace

std::vector<Scenario> Scenarios(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Scenario> scenarios;
  scenarios.push_back({"mix", Devices(), Batches(&random, false)});
  scenarios.push_back({"slow_down", Devices(), Batches(&random, false)});
  Truth& slow = scenarios.back().devices[2];
  slow.slow_from = 0.05;
  slow.slow_until = 0.10;
  slow.slow_factor = 6;
  scenarios.push_back({"locality", Devices(), Batches(&random, true)});
  for (uint32_t device = 0; device < 3; ++device) {
    scenarios.back().devices[device].memory = device;
    scenarios.back().devices[device].costs.moved_byte = 0.4e-9;
  }
  // All costs are a hundred times the router's prior.
  scenarios.push_back({"cold_start", Devices(), Batches(&random, false)});
  for (Truth& device : scenarios.back().devices) {
    for (double* cost : {&device.costs.launch, &device.costs.row, &device.costs.byte}) *cost *= 100;
  }
  return scenarios;
}

double EndOf(const Truth& device, const Router::BatchSummary& batch, double start) {
  const service::CostModel model(device.costs);
  double work = model.Seconds({batch.rows, batch.bytes, batch.memory != device.memory}, kStart);
  double now = start;
  // Pieces of time of one speed.
  for (const auto& [until, factor] : {std::pair{device.slow_from, 1.0}, {device.slow_until, device.slow_factor}}) {
    if (now >= until) continue;
    const double done = std::min(work, (until - now) / factor);
    work -= done;
    now += done * factor;
    if (work <= 0) return now;
  }
  return now + work;
}

double RoutedMakespan(const Scenario& scenario) {
  std::vector<std::unique_ptr<SimulatedDevice>> devices;
  std::vector<devices::Device*> pointers;
  for (const Truth& truth : scenario.devices) {
    devices.push_back(std::make_unique<SimulatedDevice>(absl::StrCat("device", devices.size()), truth.memory));
    pointers.push_back(devices.back().get());
  }
  Router router(pointers);
  std::vector<double> free_at(devices.size(), 0);  // devices do their batches one after the other
  std::vector<InFlight> in_flight;
  double now = 0;
  const auto time = [&] { return kStart + absl::Seconds(now); };
  // As in the service's queue, batches of one memory keep their order.
  std::map<uint32_t, std::deque<size_t>> waiting;
  for (size_t i = 0; i < scenario.batches.size(); ++i) waiting[scenario.batches[i].memory].push_back(i);
  const auto start_one = [&] {
    std::vector<std::deque<size_t>*> open;
    for (auto& [memory, batches] : waiting) {
      if (!batches.empty()) open.push_back(&batches);
    }
    std::sort(open.begin(), open.end(), [](const auto* a, const auto* b) { return a->front() < b->front(); });
    for (std::deque<size_t>* batches : open) {
      const Router::BatchSummary& batch = scenario.batches[batches->front()];
      const Router::Choice choice = router.Choose(batch, time());
      if (choice.device == nullptr) continue;
      const size_t device = size_t(std::find(pointers.begin(), pointers.end(), choice.device) - pointers.begin());
      router.Started(choice.device, batch, time());
      free_at[device] = EndOf(scenario.devices[device], batch, std::max(now, free_at[device]));
      in_flight.push_back({device, batch, free_at[device]});
      batches->pop_front();
      return true;
    }
    return false;
  };
  for (;;) {
    while (start_one()) {
    }
    if (in_flight.empty()) return now;
    const auto first = std::min_element(in_flight.begin(), in_flight.end(),
                                        [](const InFlight& a, const InFlight& b) { return a.end < b.end; });
    now = first->end;
    router.Finished(pointers[first->device], first->batch, true, time());
    in_flight.erase(first);
  }
}

}  // namespace sortition::bench
