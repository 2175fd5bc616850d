// The image as the assembler finds it, in a build that has nvcc.
#include "kernels/cuda/image.h"

#ifdef SORTITION_CUDA_IMAGE

asm(R"(
.section .rodata
.balign 64
.globl SortitionCudaImage
SortitionCudaImage:
.incbin ")" SORTITION_CUDA_IMAGE R"("
.globl SortitionCudaImageEnd
SortitionCudaImageEnd:
.byte 0
.text
)");
extern "C" const std::byte SortitionCudaImage[];
extern "C" const std::byte SortitionCudaImageEnd[];

namespace sortition::kernels::cuda {
std::span<const std::byte> Image() { return {SortitionCudaImage, SortitionCudaImageEnd}; }
}  // namespace sortition::kernels::cuda

#else

namespace sortition::kernels::cuda {
std::span<const std::byte> Image() { return {}; }
}  // namespace sortition::kernels::cuda

#endif
