// Compact forms of rows in a CUDA device's memory, made by the device.
#pragma once

#include "client/cpp/cuda/cuda_rows.h"
#include "client/cpp/transport/device_rows.h"
#include "kernels/cuda/image.h"

namespace sortition::client {

// Returns the argument of Client::ShareDevice: `rows.rows()`, with a function that states rows (DeviceRows::state).
// `rows` must outlive it.
//
// The function states up to 64 rows at once, in a separate stream, and allocates its memory at the first call: 1 MB a
// row and more. It waits for the device. Its errors: FAILED_PRECONDITION if the build or the device has no kernels for
// it; INVALID_ARGUMENT for rows that do not begin at multiples of 16 bytes, or more first tokens than 999; and those of
// the driver.
DeviceRows WithStatements(const CudaRows& rows, const kernels::cuda::Images& images = kernels::cuda::CompiledImages());

}  // namespace sortition::client
