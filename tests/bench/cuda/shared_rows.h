// Cost of a step whose rows another process has left in the device's memory.
#pragma once

#include <memory>

#include "client/bench/report.h"
#include "devices/cuda/context.h"

namespace sortition::bench {

// Adds to the report, in microseconds that the host waits:
// - shared_rows/import_64_mib: of taking memory and giving it back;
// - shared_rows/in_place_ROWS, copied_ROWS, host_ROWS: a batch of rows of 128,256 bf16 logits on a CudaDevice, read
//   where they lie, copied within the device first, and uploaded from the host. The baseline is libsortition on a
//   stream over the same rows, its answers awaited.
// - shared_rows/penalties_uploaded_ROWS: the same batch, read where it lies, with penalties of 2,000 tokens a row, all
//   of which are sent. The baseline is the batch without penalties.
// The other process's memory is this one's own, exported and imported; no kernel can tell. The first answers are
// compared with the reference. Says on stderr that it is skipped where the device does not share memory.
void MeasureSharedRows(const std::shared_ptr<devices::cuda::Context>& context, Report* report);

}  // namespace sortition::bench
