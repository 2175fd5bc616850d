// Runs a batch and blocks until its end, under the name that tests use.
#pragma once

#include "devices/run_batch.h"

namespace sortition::testing {

using devices::RunBatch;

}  // namespace sortition::testing
