// Output of the kernels for a row, in device memory. Plain data; installed with libsortition.
#pragma once

#include <cstdint>

#include "kernels/row.h"

namespace sortition::kernels::cuda {

// One of a distribution's first tokens, in order.
struct TopToken {
  uint32_t token = 0;
  uint32_t bits = 0;
  float logprob = 0;
};

struct DistributionOutput {
  uint64_t weight_sum = 0;
  uint32_t max_bits = 0;
  uint32_t chosen_bits = 0;
  uint32_t rank = 0;
  uint32_t top_count = 0;
  float logprob = 0;  // law::Logprob of the chosen token
  uint32_t unused = 0;
};

struct RawOutput {
  RowFault error = RowFault::kNone;  // otherwise only `error_token` is set too
  uint32_t error_token = 0;
  uint32_t token = 0;
  uint32_t kept = 0;
  DistributionOutput raw;
  DistributionOutput processed;
};

}  // namespace sortition::kernels::cuda
