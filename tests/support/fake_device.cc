// Holding and ending of batches.
#include "tests/support/fake_device.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "kernels/law/reference.h"
#include "tests/support/fake_card_memory.h"

namespace sortition::testing {

kernels::RowOutput SampleByReference(const devices::DeviceRow& row) {
  std::vector<std::byte> bytes;
  for (const devices::ByteSegment& segment : row.segments) {
    bytes.insert(bytes.end(), segment.data, segment.data + segment.size);
  }
  kernels::RowRequest request = row.request;
  SORTITION_CHECK(bytes.size() == size_t{request.live_vocabulary} * kernels::ElementBytes(request.dtype));
  request.logits = bytes.data();
  return law::SampleRowReference(request);
}

FakeDevice::FakeDevice(Options options) : options_(std::move(options)) {
  description_.name = options_.name;
  description_.kind = "fake";
  description_.hardware = "none";
  description_.max_batch_rows = options_.max_batch_rows;
  description_.max_vocabulary = options_.max_vocabulary;
  description_.memory = options_.memory;
  description_.identity = options_.identity;
  description_.batches_in_flight = options_.batches_in_flight;
  description_.features = options_.features;
}

FakeDevice::~FakeDevice() { SORTITION_CHECK(held() == 0); }

void FakeDevice::Submit(std::vector<devices::DeviceRow> rows, Done done) {
  SORTITION_CHECK(!rows.empty() && rows.size() <= options_.max_batch_rows);
  for (const devices::DeviceRow& row : rows) {
    SORTITION_CHECK(row.imported == nullptr || (row.imported->memory() == options_.memory && row.segments.size() == 1));
  }
  Batch batch{std::move(rows), std::move(done)};
  if (options_.synchronous) return Answer(std::move(batch));
  absl::MutexLock lock(&mutex_);
  held_.push_back(std::move(batch));
  SORTITION_CHECK(held_.size() <= options_.batches_in_flight);
}

void FakeDevice::RunHere(std::span<const devices::DeviceRow* const> rows, Done done) {
  if (!options_.runs_here) return Device::RunHere(rows, std::move(done));
  Answer({devices::CopyRows(rows), std::move(done)});
}

absl::StatusOr<std::shared_ptr<const devices::ImportedMemory>> FakeDevice::Import(const devices::MemoryHandle& handle) {
  return ImportFakeMemory(handle, options_.memory, options_.read);
}

size_t FakeDevice::held() const {
  absl::MutexLock lock(&mutex_);
  return held_.size();
}

std::vector<uint32_t> FakeDevice::Positions(size_t index) const {
  absl::MutexLock lock(&mutex_);
  SORTITION_CHECK(index < held_.size());
  std::vector<uint32_t> positions;
  for (const devices::DeviceRow& row : held_[index].rows) positions.push_back(row.request.noise.position);
  return positions;
}

FakeDevice::Batch FakeDevice::Take(size_t index) {
  absl::MutexLock lock(&mutex_);
  SORTITION_CHECK(index < held_.size());
  Batch batch = std::move(held_[index]);
  held_.erase(held_.begin() + static_cast<ptrdiff_t>(index));
  return batch;
}

void FakeDevice::Answer(Batch batch) const {
  devices::BatchOutput result;
  result.kernel_nanoseconds = 1000;
  for (const devices::DeviceRow& row : batch.rows) result.outputs.push_back(options_.sample(row));
  batch.done(std::move(result));
}

void FakeDevice::Finish(size_t index) { Answer(Take(index)); }

void FakeDevice::FinishAll() {
  while (held() > 0) Finish();
}

void FakeDevice::Fail(absl::Status status, size_t index) {
  devices::BatchOutput result;
  result.status = std::move(status);
  Take(index).done(std::move(result));
}

void FinishAll(std::span<const std::unique_ptr<FakeDevice>> devices) {
  while (std::ranges::any_of(devices, [](const auto& device) { return device->held() > 0; })) {
    for (const auto& device : devices) device->FinishAll();
  }
}

}  // namespace sortition::testing
