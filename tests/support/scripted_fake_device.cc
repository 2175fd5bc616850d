// Ends of batches.
#include "tests/support/scripted_fake_device.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "tests/support/fake_device.h"

namespace sortition::testing {

ScriptedFakeDevice::ScriptedFakeDevice(devices::DeviceDescription description, const FakeClock* clock, Script script)
    : description_(std::move(description)), clock_(*clock), script_(std::move(script)) {}

ScriptedFakeDevice::~ScriptedFakeDevice() { SORTITION_CHECK(batches_.empty()); }

void ScriptedFakeDevice::Submit(std::vector<devices::DeviceRow> rows, Done done) {
  SORTITION_CHECK(!rows.empty() && rows.size() <= description_.max_batch_rows);
  const Fate fate = script_(rows);
  const absl::Time start = batches_.empty() ? clock_.Now() : std::max(clock_.Now(), batches_.back().end);
  batches_.push_back({std::move(rows), std::move(done), fate, start + fate.time});
}

void ScriptedFakeDevice::EndNext() {
  SORTITION_CHECK(!batches_.empty() && batches_.front().end <= clock_.Now());
  std::vector<Batch> ended;
  const bool lost = batches_.front().fate.kind == Fate::Kind::kLost;
  const size_t count = lost ? batches_.size() : 1;
  std::move(batches_.begin(), batches_.begin() + ptrdiff_t(count), std::back_inserter(ended));
  batches_.erase(batches_.begin(), batches_.begin() + ptrdiff_t(count));
  for (Batch& batch : ended) {
    devices::BatchOutput result;
    result.kernel_nanoseconds = uint64_t(absl::ToInt64Nanoseconds(batch.fate.time));
    if (lost) {
      result.status = absl::UnavailableError("the fake device is lost");
    } else if (batch.fate.kind == Fate::Kind::kFails) {
      result.status = absl::InternalError("the fake device has failed");
    } else if (batch.fate.kind == Fate::Kind::kHasNoMemory) {
      result.status = absl::ResourceExhaustedError("the fake device has no memory left");
    } else {
      for (const devices::DeviceRow& row : batch.rows) result.outputs.push_back(SampleByReference(row));
    }
    if (batch.fate.kind == Fate::Kind::kLies && !lost) {
      kernels::RowOutput& answer = result.outputs[batch.rows.size() / 2];
      answer.token ^= 1;
    }
    batch.done(std::move(result));
  }
}

}  // namespace sortition::testing
