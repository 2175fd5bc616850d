// The sampling law as a program: slow, plain, the definition that every kernel is compared with bit for bit.
#pragma once

#include "kernels/row.h"

namespace sortition::law {

// Samples one row. O(vocabulary log vocabulary), allocates; thread-safe. Asserts the promises of row.h. An answer with
// an error has no other field than `error` and `error_token`.
kernels::RowOutput SampleRowReference(const kernels::RowRequest& request);

}  // namespace sortition::law
