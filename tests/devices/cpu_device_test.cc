// The CPU device against its contract: one output a row, in order; `done` once; a shutdown that loses nothing.
#include "devices/cpu/cpu_device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tests/support/run_batch.h"

namespace sortition::devices::cpu_device_test {
namespace {

using testing::RunBatch;

// A greedy row of f32 logits with its largest at `winner`.
class Logits {
 public:
  explicit Logits(uint32_t winner) : values_(100) {
    values_[winner] = 5;
    parameters_.greedy = true;
  }

  DeviceRow Row() const {
    DeviceRow row;
    row.request.live_vocabulary = uint32_t(values_.size());
    row.request.parameters = &parameters_;
    row.segments.push_back({reinterpret_cast<const std::byte*>(values_.data()), values_.size() * sizeof(float)});
    return row;
  }

  std::vector<float>& values() { return values_; }

 private:
  std::vector<float> values_;
  kernels::RowParameters parameters_;
};

std::vector<DeviceRow> MakeBatch(std::initializer_list<const Logits*> logits) {
  std::vector<DeviceRow> rows;
  for (const Logits* l : logits) rows.push_back(l->Row());
  return rows;
}

TEST(CpuDevice, DescribesItself) {
  const CpuDevice device({.name = "cpu7", .threads = 3, .max_batch_rows = 11});
  EXPECT_EQ(device.description().name, "cpu7");
  EXPECT_EQ(device.description().kind, "cpu");
  EXPECT_FALSE(device.description().hardware.empty());
  EXPECT_EQ(device.description().max_batch_rows, 11u);
  EXPECT_EQ(device.description().batches_in_flight, 3u);
}

TEST(CpuDevice, RunsTheNamedTarget) {
  EXPECT_TRUE(IsCpuTarget("auto"));
  EXPECT_FALSE(IsCpuTarget("avx5"));
  CpuDevice device({.threads = 1, .target = "scalar"});
  EXPECT_TRUE(device.description().hardware.ends_with(", scalar"));
  const Logits logits(3);
  EXPECT_EQ(RunBatch(&device, MakeBatch({&logits})).outputs.at(0).token, 3u);
  EXPECT_DEATH(CpuDevice({.threads = 1, .target = "avx5"}), "target");
}

TEST(CpuDevice, ZeroThreadsMeansAllCores) {
  CpuDevice device({.threads = 0});
  EXPECT_GE(device.description().batches_in_flight, 1u);
  const Logits logits(3);
  EXPECT_EQ(RunBatch(&device, MakeBatch({&logits})).outputs.at(0).token, 3u);
}

TEST(CpuDevice, AnswersInBatchOrder) {
  CpuDevice device({.threads = 4});
  std::vector<Logits> logits;
  for (uint32_t winner = 0; winner < 100; ++winner) logits.emplace_back(winner);
  std::vector<DeviceRow> rows;
  for (const Logits& l : logits) rows.push_back(l.Row());
  const BatchOutput result = RunBatch(&device, std::move(rows));
  ASSERT_TRUE(result.status.ok());
  ASSERT_EQ(result.outputs.size(), 100u);
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(result.outputs[i].token, i);
  EXPECT_GT(result.kernel_nanoseconds, 0u);
}

TEST(CpuDevice, RunsABatchOnTheCallersThread) {
  CpuDevice device({.threads = 1});
  const Logits a(3), b(99);
  std::vector<uint32_t> tokens;
  const auto caller = std::this_thread::get_id();
  const std::vector<DeviceRow> rows = MakeBatch({&a, &b});
  const std::vector<const DeviceRow*> batch = {&rows[0], &rows[1]};
  device.RunHere(batch, [&](const BatchOutput& result) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_TRUE(result.status.ok());
    for (const kernels::RowOutput& output : result.outputs) tokens.push_back(output.token);
  });
  EXPECT_EQ(tokens, (std::vector<uint32_t>{3, 99}));
}

TEST(CpuDevice, BadRowFailsAlone) {
  CpuDevice device({.threads = 2});
  const Logits good(1);
  Logits bad(2);
  bad.values()[50] = std::nanf("");
  const BatchOutput result = RunBatch(&device, MakeBatch({&good, &bad, &good}));
  ASSERT_TRUE(result.status.ok());
  EXPECT_EQ(result.outputs[0].token, 1u);
  EXPECT_EQ(result.outputs[1].error, kernels::RowFault::kNaN);
  EXPECT_EQ(result.outputs[1].error_token, 50u);
  EXPECT_EQ(result.outputs[2].token, 1u);
}

TEST(CpuDevice, GathersSegmentsAndIgnoresPadding) {
  CpuDevice device({.threads = 1});
  Logits logits(3);
  logits.values()[99] = std::nanf("");
  DeviceRow row = logits.Row();
  const std::byte* const bytes = row.segments[0].data;
  row.request.live_vocabulary = 99;
  row.segments = {{bytes, 13}, {bytes + 13, 0}, {bytes + 13, 387}};
  std::vector<DeviceRow> rows;
  rows.push_back(std::move(row));
  EXPECT_EQ(RunBatch(&device, std::move(rows)).outputs.at(0).token, 3u);
}

TEST(CpuDevice, CallbackMaySubmit) {
  CpuDevice device({.threads = 1});
  const Logits first(1);
  const Logits second(2);
  BatchOutput result;
  absl::Notification done;
  device.Submit(MakeBatch({&first}), [&](BatchOutput) {
    device.Submit(MakeBatch({&second}), [&](BatchOutput r) {
      result = std::move(r);
      done.Notify();
    });
  });
  done.WaitForNotification();
  EXPECT_EQ(result.outputs.at(0).token, 2u);
}

TEST(CpuDevice, ThreadsThatSleepWakeForEveryBatch) {
  CpuDevice device({.threads = 3});
  const Logits logits(42);
  for (int n = 0; n < 300; ++n) {
    for (const BatchOutput& result : {RunBatch(&device, MakeBatch({&logits})),
                                      RunBatch(&device, MakeBatch({&logits, &logits, &logits, &logits}))}) {
      for (const kernels::RowOutput& answer : result.outputs) EXPECT_EQ(answer.token, 42u);
    }
  }
}

TEST(CpuDevice, ThreadsSubmitConcurrently) {
  constexpr int kThreads = 4;
  constexpr int kBatches = 200;
  CpuDevice device({.threads = 3});
  const Logits logits(42);
  std::atomic<int> right = 0;
  absl::BlockingCounter done(kThreads * kBatches);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < kBatches; ++n) {
        device.Submit(MakeBatch({&logits, &logits, &logits}), [&](BatchOutput result) {
          for (const kernels::RowOutput& answer : result.outputs) right += answer.token == 42;
          done.DecrementCount();
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done.Wait();
  EXPECT_EQ(right, kThreads * kBatches * 3);
}

TEST(CpuDevice, DestructionFinishesSubmittedBatches) {
  const Logits logits(9);
  int answered = 0;
  {
    CpuDevice device({.threads = 1});
    absl::Notification started;
    absl::Notification go;
    // Occupies the only thread, so that the other batches still wait when destruction begins.
    device.Submit(MakeBatch({&logits}), [&](BatchOutput result) {
      answered += int(result.outputs.size());
      started.Notify();
      go.WaitForNotification();
    });
    for (int n = 0; n < 10; ++n) {
      device.Submit(MakeBatch({&logits, &logits}), [&](BatchOutput result) { answered += int(result.outputs.size()); });
    }
    started.WaitForNotification();
    go.Notify();
  }
  EXPECT_EQ(answered, 21);
}

TEST(CpuDeviceDeathTest, RefusesBatchesBeyondLimits) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const Logits logits(1);
  EXPECT_DEATH(CpuDevice({.threads = 1, .max_batch_rows = 1}).Submit(MakeBatch({&logits, &logits}), [](BatchOutput) {}),
               "broken invariant");
  EXPECT_DEATH(CpuDevice({.threads = 1}).Submit({}, [](BatchOutput) {}), "broken invariant");
}

}  // namespace
}  // namespace sortition::devices::cpu_device_test
