// Draws the texts of a proof: on a device in this process, or by a service.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/archive/settings.h"
#include "devices/device.h"
#include "sortition/batch.h"
#include "sortition/client.h"

namespace sortition::archive {

// The records over all texts (docs/receipts.md).
struct Receipts {
  std::string records;
  std::string signature;     // a record; empty if `records` has signatures
  std::string public_key;    // 32 bytes; empty if `records` has signatures
  uint64_t rows_by_cpu = 0;  // that asked for a feature that the device lacks
};

// Not thread-safe. Has a sequence for each text of the settings, which outlive it.
class Drawer {
 public:
  virtual ~Drawer() = default;
  // Steps some texts, each at most once. `rows[i]` is the next row of `texts[i]`, all of one type. Blocks until all are
  // answered.
  virtual absl::StatusOr<std::vector<client::RowResult>> Step(v1::DType dtype, std::span<const uint32_t> texts,
                                                              std::span<const client::Row> rows) = 0;
  // Ends the texts. Called once, after the last step.
  virtual absl::StatusOr<Receipts> End() = 0;
};

// Makes sequences in this process whose rows the device samples. The device outlives the drawer.
absl::StatusOr<std::unique_ptr<Drawer>> OnDevice(const Settings& settings, devices::Device* device);

// Makes sequences of a service. The client outlives the drawer. The service makes receipts.
absl::StatusOr<std::unique_ptr<Drawer>> ByService(const Settings& settings, client::Client* client);

// Returns texts.bin. Calls `after_step` after each step of all texts; an error of it ends the work.
absl::StatusOr<std::string> DrawTexts(const Settings& settings, Drawer* drawer,
                                      absl::FunctionRef<absl::Status(uint32_t step)> after_step);

}  // namespace sortition::archive
