// The images as the assembler finds them, in a build that has nvcc.
#include "kernels/cuda/image.h"

#ifdef SORTITION_CUDA_IMAGES

// clang-format off
#define IMAGE(name, file)                 \
  asm(".section .rodata\n"                \
      ".balign 64\n"                      \
      ".globl " #name "\n"                \
      #name ":\n"                         \
      ".incbin \"" SORTITION_CUDA_IMAGES file "\"\n" \
      ".globl " #name "End\n"             \
      #name "End:\n"                      \
      ".byte 0\n"                         \
      ".text\n");                         \
  extern "C" const std::byte name[];      \
  extern "C" const std::byte name##End[]
// clang-format on

IMAGE(SortitionCudaSampleImage, "sample.fatbin");
IMAGE(SortitionCudaChainImage, "chain.fatbin");
IMAGE(SortitionCudaSequenceImage, "sequence.fatbin");

namespace sortition::kernels::cuda {
Images CompiledImages() {
  return {{SortitionCudaSampleImage, SortitionCudaSampleImageEnd},
          {SortitionCudaChainImage, SortitionCudaChainImageEnd},
          {SortitionCudaSequenceImage, SortitionCudaSequenceImageEnd}};
}
int LeastDriver() { return SORTITION_CUDA_LEAST_DRIVER; }
}  // namespace sortition::kernels::cuda

#else

namespace sortition::kernels::cuda {
Images CompiledImages() { return {}; }
int LeastDriver() { return 0; }
}  // namespace sortition::kernels::cuda

#endif
