// A fake device that lives by a script under the injected clock: slow, failing, lying, lost in the middle of a batch.
#pragma once

#include <functional>
#include <vector>

#include "devices/device.h"
#include "tests/support/fake_clock.h"

namespace sortition::testing {

// Fate of a batch, and its time.
struct Fate {
  enum class Kind {
    kRight,
    kFails,        // this batch alone
    kHasNoMemory,  // likewise
    kLies,         // one row's answer is not the law's
    kLost,         // all batches in flight fail with it
  };
  Kind kind = Kind::kRight;
  absl::Duration time;  // from when the device gets to it: batches are done one after the other
};

// Not thread-safe: everything happens on the test's thread, in the order of the clock.
class ScriptedFakeDevice final : public devices::Device {
 public:
  using Script = std::function<Fate(const std::vector<devices::DeviceRow>& rows)>;

  // `clock` outlives the device.
  ScriptedFakeDevice(devices::DeviceDescription description, const FakeClock* clock, Script script);
  ~ScriptedFakeDevice() override;

  const devices::DeviceDescription& description() const override { return description_; }
  void Submit(std::vector<devices::DeviceRow> rows, Done done) override;

  // When its next batch ends; InfiniteFuture if it has none.
  absl::Time NextEnd() const { return batches_.empty() ? absl::InfiniteFuture() : batches_.front().end; }
  // Ends that batch; the clock has come so far.
  void EndNext();

 private:
  struct Batch {
    std::vector<devices::DeviceRow> rows;
    Done done;
    Fate fate;
    absl::Time end;
  };

  const devices::DeviceDescription description_;
  const FakeClock& clock_;
  const Script script_;
  std::vector<Batch> batches_;  // by end
};

}  // namespace sortition::testing
