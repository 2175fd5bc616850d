// The kernels' source, between the emulator's built-ins and a launch.
#include "tests/cuda/emulator/built_ins.h"
// The kernels see those names.
#include "kernels/cuda/chain.cu"
#include "kernels/cuda/sample.cu"
#include "kernels/cuda/sequence.cu"
#include "tests/cuda/emulated_kernels.h"

namespace sortition::testing {

void RunEmulated(CudaKernel kernel, const kernels::cuda::BatchView& view, uint32_t rows, uint32_t sections,
                 uint64_t seed, std::vector<MemoryRange>*) {
  const emulator::LaunchOptions options = {
      .blocks_x = sections, .blocks_y = rows, .threads = kernels::cuda::kThreads, .seed = seed};
  emulator::Launch(options, [&] {
    switch (kernel) {
      case CudaKernel::kRead:
        return kernels::cuda::SortitionRead(view);
      case CudaKernel::kWeigh:
        return kernels::cuda::SortitionWeigh(view);
      case CudaKernel::kChain:
        return kernels::cuda::SortitionChain(view);
    }
  });
}

void RunEmulatedAdvance(const kernels::cuda::SequenceView& view, uint32_t rows, uint64_t seed,
                        std::vector<MemoryRange>*) {
  const emulator::LaunchOptions options = {
      .blocks_x = 1, .blocks_y = rows, .threads = kernels::cuda::kThreads, .seed = seed};
  emulator::Launch(options, [&] { kernels::cuda::SortitionAdvance(view); });
}

}  // namespace sortition::testing
