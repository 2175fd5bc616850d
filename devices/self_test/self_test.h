// Self-test: a device must answer the law's golden rows, at real vocabulary sizes, bit for bit before it serves, and
// again after it failed. Then a few batches are timed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "devices/device.h"
#include "kernels/law/golden/golden_rows.h"

namespace sortition::devices {

// The golden rows and the reference's outputs. Thread-safe; made once and shared by all devices.
class SelfTest {
 public:
  // Time that a batch of this size took.
  struct Timing {
    uint32_t rows = 0;
    uint64_t bytes = 0;
    absl::Duration time;
  };
  struct Verdict {
    absl::Status status;          // DATA_LOSS names the row with the wrong output; other errors are the device's
    uint32_t rows = 0;            // compared
    std::vector<Timing> timings;  // empty unless the device passed
  };
  using Done = absl::AnyInvocable<void(Verdict)>;

  // Computes the outputs, which takes some hundred milliseconds for all golden rows.
  explicit SelfTest(std::vector<law::GoldenRow> rows = law::GoldenRows());

  // Runs the golden rows that the device can take and compares the outputs. Does not block; `done` is called exactly
  // once, on a thread of the device. This object must outlive that call.
  void Start(Device* device, Done done) const;

  // As Start, but waits. DEADLINE_EXCEEDED after `timeout`: the device still has a batch then and must not be
  // destroyed; it has not passed.
  Verdict Run(Device* device, absl::Duration timeout) const;

 private:
  struct Case {
    law::GoldenRow row;
    std::vector<std::byte> tensor;
    kernels::RowRequest request;
    kernels::RowOutput output;
  };
  class Attempt;

  std::vector<std::unique_ptr<Case>> cases_;
};

}  // namespace sortition::devices
