// The law's text as a CUDA kernel.
#include "kernels/law/law.cuh"

namespace sortition::law::device {
#define LAW_FUNCTION __device__
#include "tests/law/every_function.inc"
}  // namespace sortition::law::device

__global__ void EveryFunctionOf(uint32_t* words) {
  words[threadIdx.x] = sortition::law::device::EveryFunction(words[threadIdx.x]);
}
