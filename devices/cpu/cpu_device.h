// The CPU as a device: a fixed set of threads that share the rows of the batches, oldest batch first.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "devices/device.h"
#include "kernels/cpu/target.h"
#include "kernels/row.h"

namespace sortition::devices {

struct CpuDeviceOptions {
  std::string name = "cpu0";
  uint32_t threads = 0;  // 0 = the machine's hardware threads
  // Instruction set of the kernels, by name (kernels/cpu/target.h): one that this machine runs, or "auto" for the best.
  // All give the same outputs.
  std::string target = "auto";
  uint32_t max_batch_rows = 1024;
};

// Valid values of CpuDeviceOptions::target on this machine, for a message: "auto, avx2, sse4, scalar".
std::string CpuTargetNames();
bool IsCpuTarget(std::string_view name);

// Thread-safe. A batch's rows run on all threads that are free, so batches may end out of order; `kernel_nanoseconds`
// is the time from its first row's start to its last row's end.
//
// Destruction finishes every batch submitted before, calls its `done`, then joins the threads. A `done` that runs
// meanwhile must not submit. Must not be destroyed from within `done`.
class CpuDevice final : public Device {
 public:
  // The target must be valid on this machine.
  explicit CpuDevice(const CpuDeviceOptions& options);
  ~CpuDevice() override;

  const DeviceDescription& description() const override { return description_; }
  void Submit(std::vector<DeviceRow> rows, Done done) override ABSL_LOCKS_EXCLUDED(mutex_);
  void RunHere(std::span<const DeviceRow* const> rows, Done done) override;

 private:
  // Shared by the threads that sample its rows; the one that finishes the last row calls `done`.
  struct Batch {
    std::vector<DeviceRow> rows;
    Done done;
    std::vector<kernels::RowOutput> outputs;
    std::atomic<size_t> next_row = 0;  // to be taken; at the end or behind it: none is left
    std::atomic<size_t> unfinished_rows;
    std::chrono::steady_clock::time_point start;  // written by the thread that takes the first row
  };

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the oldest batch with rows that no thread has taken, and sleeps until there is one; null: the thread ends.
  std::shared_ptr<Batch> AwaitBatch() ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes the oldest batch, whose last row has been taken.
  void RemoveFront() ABSL_LOCKS_EXCLUDED(mutex_);
  static void Finish(Batch* batch);

  const kernels::cpu::Target& target_;
  DeviceDescription description_;
  absl::Mutex mutex_;
  std::deque<std::shared_ptr<Batch>> queue_ ABSL_GUARDED_BY(mutex_);  // batches with untaken rows
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Grows with each change of the fields above; threads sleep on it. A mutex would wake one thread, and the next one
  // only once the first is awake.
  std::atomic<uint32_t> changes_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace sortition::devices
