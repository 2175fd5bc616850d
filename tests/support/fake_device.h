// A fake device: it holds every batch until a test tells it to finish or to fail it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "devices/device.h"

namespace sortition::testing {

// The answer of the law's reference, from a copy of the row's bytes.
kernels::RowOutput SampleByReference(const devices::DeviceRow& row);

// Thread-safe. `done` runs on the thread that finishes the batch, or within Submit if the device is synchronous.
// Asserts that it is never given more than its description allows, and that it ends with no batch held.
class FakeDevice : public devices::Device {
 public:
  struct Options {
    std::string name = "fake0";
    uint32_t max_batch_rows = 8;
    uint32_t max_vocabulary = kernels::kMaxVocabulary;
    uint32_t memory = devices::kHostMemory;
    devices::MemoryIdentity identity = {};         // its memory's, if it imports others' memory there, ...
    std::function<absl::Status()> read = nullptr;  // ... and the result of reading it for the host; null: OK
    uint32_t batches_in_flight = 1;
    kernels::Features features = kernels::kAllFeatures;
    bool synchronous = false;
    bool runs_here = false;  // RunHere answers at once; false: as Submit
    std::function<kernels::RowOutput(const devices::DeviceRow&)> sample = SampleByReference;
  };

  explicit FakeDevice(Options options);
  ~FakeDevice() override;

  const devices::DeviceDescription& description() const override { return description_; }
  void Submit(std::vector<devices::DeviceRow> rows, Done done) override;
  void RunHere(std::span<const devices::DeviceRow* const> rows, Done done) override;
  absl::StatusOr<std::shared_ptr<const devices::ImportedMemory>> Import(const devices::MemoryHandle& handle) override;

  // Batches held.
  size_t held() const;
  // The positions (NoiseKey::position) of the rows of the held batch at `index`, oldest first: which rows are in it.
  std::vector<uint32_t> Positions(size_t index) const;

  // Answers the held batch at `index`; later ones move up.
  void Finish(size_t index = 0);
  // Answers the held batches, and those that come meanwhile, until none is held.
  void FinishAll();
  // Ends the held batch at `index` with an error.
  void Fail(absl::Status status, size_t index = 0);

 private:
  struct Batch {
    std::vector<devices::DeviceRow> rows;
    Done done;
  };

  Batch Take(size_t index);
  void Answer(Batch batch) const;

  const Options options_;
  devices::DeviceDescription description_;
  mutable absl::Mutex mutex_;
  std::deque<Batch> held_ ABSL_GUARDED_BY(mutex_);
};

// The same for several devices: a batch that ends on one may start another one on any of them.
void FinishAll(std::span<const std::unique_ptr<FakeDevice>> devices);

}  // namespace sortition::testing
