// A stream of rows over the CPU and a Vulkan device, each with a part of each step, equals the same rows on the CPU
// alone: every token, and every integer of a logprob.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>

#include "absl/synchronization/blocking_counter.h"
#include "devices/cpu/cpu_device.h"
#include "devices/vulkan/vulkan_device.h"
#include "service/batch/batcher.h"
#include "tests/conformance/answer_printer.h"
#include "tests/conformance/random_row.h"
#include "tests/support/device_texts.h"
#include "tests/support/fake_clock.h"
#include "tests/vulkan/drivers.h"

namespace sortition::service::mixed_test {
namespace {

using kernels::RandomRow;

class KeptStep : public PendingStep {
 public:
  explicit KeptStep(size_t rows) : answers(rows), done_(int(rows)) {}
  void Deliver(std::span<const QueuedOutput> outputs) override {
    for (const QueuedOutput& output : outputs) {
      answers[output.index] = std::move(*output.output);
      done_.DecrementCount();
    }
  }
  void Wait() { done_.Wait(); }
  std::vector<kernels::RowOutput> answers;

 private:
  absl::BlockingCounter done_;
};

struct CountByDevice : NullObserver {
  void BatchStarted(std::string_view device, uint32_t, RouteReason) override {
    absl::MutexLock lock(&mutex);
    ++batches[std::string(device)];
  }
  absl::Mutex mutex;
  std::map<std::string, int> batches ABSL_GUARDED_BY(mutex);
};

TEST(Mixed, TwoDevicesEqualCpuAlone) {
  const testing::Driver& driver = testing::Drivers().front();
  if (testing::ManifestOf(driver).empty()) GTEST_SKIP() << driver.package << " is not installed";
  const auto instance = testing::OpenDriver(driver);
  ASSERT_TRUE(instance.ok()) << instance.status();
  devices::CpuDevice alone({.name = "alone", .threads = 1});
  devices::CpuDevice cpu({.name = "cpu", .threads = 2, .max_batch_rows = 4});
  devices::VulkanDeviceOptions options;
  options.name = "vulkan";
  options.max_batch_rows = 4;
  const auto vulkan = devices::VulkanDevice::Start(*instance, (*instance)->hardware().front(), options);
  ASSERT_TRUE(vulkan.ok()) << vulkan.status();

  std::vector<std::unique_ptr<RandomRow>> rows;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    rows.push_back(std::make_unique<RandomRow>(6'000'000 + seed, 1 + uint32_t(seed * 7919 % 2000)));
  }
  const testing::FakeClock clock;
  CountByDevice observer;
  Batcher batchers[] = {{Limits(), {vulkan->get(), &cpu}, &clock, &observer}, {Limits(), {&alone}, &clock, &observer}};
  testing::MakeAlike({vulkan->get(), &cpu}, &batchers[0].keeper());
  std::mt19937_64 random(8);
  for (size_t first = 0; first < rows.size();) {
    const size_t count = std::min<size_t>(1 + random() % 30, rows.size() - first);
    std::vector<kernels::RowOutput> answers[2];
    for (int i = 0; i < 2; ++i) {
      auto step = std::make_shared<KeptStep>(count);
      std::vector<QueuedRow> queued(count);
      for (uint32_t row = 0; row < count; ++row) {
        queued[row].index = row;
        queued[row].row.request = rows[first + row]->request();
        queued[row].row.segments.push_back({rows[first + row]->tensor().data(), rows[first + row]->tensor().size()});
      }
      ASSERT_FALSE(batchers[i].Submit(step, std::move(queued)).has_value());
      step->Wait();
      answers[i] = step->answers;
    }
    for (size_t row = 0; row < count; ++row) {
      ASSERT_EQ(answers[0][row], answers[1][row]) << rows[first + row]->description();
    }
    first += count;
  }
  absl::MutexLock lock(&observer.mutex);
  EXPECT_GE(observer.batches["cpu"], 5);
  EXPECT_GE(observer.batches["vulkan"], 5);
}

}  // namespace
}  // namespace sortition::service::mixed_test
