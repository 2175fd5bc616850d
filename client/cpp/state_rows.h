// Gives the rows of a batch their compact forms: on this thread, or on the device that has the rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "client/cpp/pending.h"
#include "client/cpp/transport/device_rows.h"

namespace sortition::client {

// A row in a device's memory.
struct RowOnDevice {
  PendingRow* row = nullptr;
  std::shared_ptr<const DeviceRows> device;  // states rows
};

// These give rows their compact forms with `count` first tokens, unless the rows of a sequence go whole now, or the
// service would certainly require the whole row. They take the locks of the rows' sequences.

// States a row whose logits this process can read.
void StateRow(const PendingBatch& batch, uint32_t count, PendingRow* row);

// States rows on their devices, and waits for them. Rows that a device fails to state stay whole: an error that
// concerns them comes again when they are read.
void StateRowsOnDevices(const PendingBatch& batch, uint32_t count, std::span<const RowOnDevice> rows);

}  // namespace sortition::client
