// The router: its loss against hindsight, its cost, and its choice between two real devices.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/synchronization/mutex.h"
#include "client/bench/logits.h"
#include "devices/cpu/cpu_device.h"
#include "devices/self_test/self_test.h"
#include "devices/vulkan/vulkan_device.h"
#include "kernels/check.h"
#include "service/batch/batcher.h"
#include "tests/bench/routing/offline.h"
#include "tests/bench/routing/scenario.h"
#include "tests/bench/suite.h"

namespace sortition::bench {
namespace {

using Clock = std::chrono::steady_clock;
using service::Router;

double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Worst of several seeds, by scenario.
void MeasureMakespans(Report* report) {
  constexpr uint64_t kSeeds = 3;
  std::vector<Result> worst;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const std::vector<Scenario> scenarios = Scenarios(seed);
    worst.resize(scenarios.size());
    for (size_t i = 0; i < scenarios.size(); ++i) {
      std::cerr << "makespan of " << scenarios[i].name << ", seed " << seed << "\n";
      const Result result = {"makespan_vs_offline/" + scenarios[i].name, 1e3 * RoutedMakespan(scenarios[i]), "ms",
                             1e3 * OfflineMakespan(scenarios[i])};
      if (!worst[i].baseline || *result.Ratio() > *worst[i].Ratio()) worst[i] = result;
    }
  }
  for (const Result& result : worst) report->Add(result);
}

void MeasureCost(Report* report) {
  std::vector<std::unique_ptr<devices::CpuDevice>> devices;
  std::vector<devices::Device*> pointers;
  for (int i = 0; i < 4; ++i) {
    devices.push_back(std::make_unique<devices::CpuDevice>(devices::CpuDeviceOptions{.threads = 2}));
    pointers.push_back(devices.back().get());
  }
  Router router(pointers);
  constexpr int kBatches = 200'000;
  absl::Time now = absl::FromUnixSeconds(1'000'000'000);
  const auto start = Clock::now();
  for (int i = 0; i < kBatches; ++i) {
    const Router::BatchSummary batch = {uint32_t(1 + i % 64), uint64_t(1 + i % 64) * 256'512, 128'256,
                                        devices::kHostMemory};
    const Router::Choice choice = router.Choose(batch, now);
    router.Started(choice.device, batch, now);
    now += absl::Microseconds(50 + i % 7);
    router.Finished(choice.device, batch, true, now);
  }
  report->Add({"router_cost", 1e9 * Since(start) / kBatches, "ns", std::nullopt});
}

// Waits for its rows.
class Step : public service::PendingStep {
 public:
  explicit Step(uint32_t rows) : left_(rows) {}
  void Deliver(std::span<const service::QueuedOutput> outputs) override {
    absl::MutexLock lock(&mutex_);
    left_ -= uint32_t(outputs.size());
  }
  void Wait() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](uint32_t* left) { return *left == 0; }, &left_));
  }

 private:
  absl::Mutex mutex_;
  uint32_t left_ ABSL_GUARDED_BY(mutex_);
};

// The slowest device alone may take as long as it takes.
service::Limits PatientLimits() {
  service::Limits limits;
  limits.max_queue_time = absl::ZeroDuration();
  return limits;
}

// One way to place a stream of rows. It stays alive while other ways take their turns.
class Placement {
 public:
  Placement(std::vector<devices::Device*> devices, const devices::SelfTest& self_test)
      : batcher_(PatientLimits(), devices, &clock_, &observer_) {
    for (devices::Device* device : devices)
      batcher_.keeper().SetSelfTested(device, self_test.Run(device, absl::Minutes(2)));
  }

  // Samples for `seconds`. The result is rows a second over all calls.
  void Run(const Logits& logits, double seconds) {
    const auto start = Clock::now();
    while (Since(start) < seconds) {
      constexpr uint32_t kSteps = 4;  // at once
      constexpr uint32_t kStepRows = 16;
      std::vector<std::shared_ptr<Step>> steps;
      for (uint32_t i = 0; i < kSteps; ++i) {
        steps.push_back(std::make_shared<Step>(kStepRows));
        std::vector<service::QueuedRow> rows(kStepRows);
        for (uint32_t row = 0; row < kStepRows; ++row) {
          rows[row].index = row;
          kernels::RowRequest& request = rows[row].row.request;
          request.dtype = logits.dtype();
          request.live_vocabulary = logits.vocabulary();
          request.parameters = &parameters_;
          request.noise = {7, position_++, 0};
          rows[row].row.segments.push_back({logits.row(position_ % logits.count()), logits.row_bytes()});
        }
        SORTITION_CHECK(!batcher_.Submit(steps.back(), std::move(rows)).has_value());
      }
      for (const auto& step : steps) step->Wait();
      rows_ += kSteps * kStepRows;
    }
    seconds_ += Since(start);
  }
  double rows_per_second() const { return rows_ / seconds_; }

 private:
  const service::SteadyClock clock_;
  service::NullObserver observer_;
  const kernels::RowParameters parameters_ = [] {
    kernels::RowParameters parameters;
    law::Compile({.temperature = 0.7f, .top_k = 50, .top_p = 0.95f}, &parameters);
    return parameters;
  }();
  service::Batcher batcher_;
  uint32_t position_ = 0;
  double rows_ = 0;
  double seconds_ = 0;
};

void MeasurePlacements(Report* report) {
  const auto instance = devices::vulkan::Instance::Create();
  if (!instance.ok()) {
    std::cerr << "no placements: " << instance.status().message() << "\n";
    return;
  }
  devices::CpuDevice cpu({});
  const auto vulkan = devices::VulkanDevice::Start(*instance, (*instance)->hardware().front(), {});
  if (!vulkan.ok()) {
    std::cerr << "no placements: " << vulkan.status().message() << "\n";
    return;
  }
  std::cerr << "placements over the CPU and " << (*vulkan)->description().hardware << "\n";
  const devices::SelfTest self_test;
  const Logits logits(Shape::kPeaked, kernels::DType::kBF16, 64, 128'256);
  Placement on_cpu({&cpu}, self_test);
  Placement on_vulkan({vulkan->get()}, self_test);
  Placement anywhere({&cpu, vulkan->get()}, self_test);
  constexpr int kTurns = 8;
  constexpr double kSeconds = 0.5;  // of a turn
  for (int turn = 0; turn < kTurns; ++turn) {
    for (Placement* placement : {&on_cpu, &on_vulkan, &anywhere}) placement->Run(logits, kSeconds);
  }
  const double best = std::max(on_cpu.rows_per_second(), on_vulkan.rows_per_second());
  report->Add({"auto_vs_best", anywhere.rows_per_second(), "rows/s", best});
  report->Add({"vulkan_alone", on_vulkan.rows_per_second(), "rows/s", on_cpu.rows_per_second()});
}

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) {
  using namespace sortition::bench;
  absl::ParseCommandLine(argc, argv);
  Report report("routing", MachineName());
  MeasureMakespans(&report);
  MeasureCost(&report);
  MeasurePlacements(&report);
  return Publish(report);
}
