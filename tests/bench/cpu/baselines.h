// The best plain loops over a row: what a kernel's time is compared with. Each runs on the best vectors the machine
// has.
//
// They answer less than a sampler must: no check of the domain, no ids, no exactness.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sortition::bench {

// The largest of `size` numbers.
float MaxPass(const float* logits, size_t size);

// MaxPass for bf16 values, given as their bits. Returns -1 if none is positive (half of the work was done then).
int16_t MaxPassBf16(const int16_t* logits, size_t size);

// Sum of exp(logits[i] - max) by a polynomial of degree 5 in fused multiply-adds (relative error 2e-7).
float ExpSumPass(const float* logits, size_t size, float max);

}  // namespace sortition::bench
