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

// Not thread-safe.
class Drawer {
 public:
  virtual ~Drawer() = default;
  // Opens the sequence of a text. Called for all texts before the first step. The settings outlive the drawer.
  virtual absl::Status Open(const Settings& settings, uint32_t text) = 0;
  // Steps some sequences, each at most once. They have numbers in the order of Open, from 0. `rows[i]` is the next row
  // of `sequences[i]`, all of one type. Blocks until all are answered.
  virtual absl::StatusOr<std::vector<client::RowResult>> Step(v1::DType dtype, std::span<const uint32_t> sequences,
                                                              std::span<const client::Row> rows) = 0;
  // Ends the texts. Called once, after the last step.
  virtual absl::StatusOr<Receipts> End() = 0;
};

// Makes sequences in this process whose rows the device samples. The device outlives the drawer.
std::unique_ptr<Drawer> OnDevice(devices::Device* device);

// Makes sequences of a client, which outlives the drawer. With `has_receipts` the service makes receipts.
std::unique_ptr<Drawer> ByClient(client::Client* client, bool has_receipts);

struct Drawn {
  std::string texts;  // texts.bin
  Receipts receipts;
};
// Draws the texts that the settings have chosen. Calls `after_step` after each step of all texts.
absl::StatusOr<Drawn> DrawTexts(const Settings& settings, Drawer* drawer,
                                absl::FunctionRef<void(uint32_t step)> after_step);

}  // namespace sortition::archive
