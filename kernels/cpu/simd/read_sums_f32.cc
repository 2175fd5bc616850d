// ReadMaxima of f32 rows whose logits are summed.
#define SORTITION_SUMMED_DTYPE kF32
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/read_sums.inc"
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/simd/read_sums.inc"
