// What a device must show before it serves, and again after it failed: the law's golden rows, at real vocabulary sizes,
// answered to the bit; then a few batches whose only purpose is their time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "devices/device.h"
#include "kernels/law/golden_rows.h"

namespace sortition::devices {

// Rows with the answers of the law's reference. Thread-safe; made once and shared by all devices.
class SelfTest {
 public:
  // How long a batch of so many rows and bytes took.
  struct Timing {
    uint32_t rows = 0;
    uint64_t bytes = 0;
    absl::Duration time;
  };
  struct Verdict {
    absl::Status status;          // DATA_LOSS names the row whose answer was wrong; other errors are the device's own
    uint32_t rows = 0;            // compared
    std::vector<Timing> timings;  // of a device that is right
  };
  using Done = absl::AnyInvocable<void(Verdict)>;

  // Computes the answers: some hundred milliseconds for all golden rows.
  explicit SelfTest(std::vector<law::GoldenRow> rows = law::GoldenRows());

  // Has the device answer the rows it is able to, and judges it. Does not block; `done` is called exactly once, on a
  // thread of the device's. This object outlives that.
  void Start(Device* device, Done done) const;

  // The same, and waits. DEADLINE_EXCEEDED after `timeout`: the device still holds a batch then, so it must not be
  // given up; it is merely not proved.
  Verdict Run(Device* device, absl::Duration timeout) const;

 private:
  struct Case {
    law::GoldenRow row;
    std::vector<std::byte> tensor;
    kernels::RowRequest request;
    kernels::RowOutput answer;
  };
  class Attempt;

  std::vector<std::unique_ptr<Case>> cases_;
};

}  // namespace sortition::devices
