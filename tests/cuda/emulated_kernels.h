// The CUDA kernels as one launch function: a host compiler's code of their source, run by the emulator, or the PTX that
// ships, run by the interpreter (tests/ptx). A test binary links one of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/layout.h"

namespace sortition::testing {

namespace ptx {
struct RangeShadow;
}

enum class CudaKernel { kRead, kWeigh, kChain };

// Memory that a launch may touch.
struct MemoryRange {
  uint64_t begin = 0;
  uint64_t bytes = 0;
  bool is_read_only = false;
  bool is_written = true;                              // before the first launch
  std::shared_ptr<ptx::RangeShadow> shadow = nullptr;  // the interpreter's, kept from launch to launch
};

// Runs the kernel over `rows` rows of `sections` sections; the view's pointers are the host's. The interpreter fails
// the test if the kernel touches other memory than `memory`; null: any memory is allowed. The emulator does not check
// this.
void RunEmulated(CudaKernel kernel, const kernels::cuda::BatchView& view, uint32_t rows, uint32_t sections,
                 uint64_t seed, std::vector<MemoryRange>* memory = nullptr);

// Runs the kernel that advances sequences over `rows` rows, likewise.
void RunEmulatedAdvance(const kernels::cuda::SequenceView& view, uint32_t rows, uint64_t seed,
                        std::vector<MemoryRange>* memory = nullptr);

}  // namespace sortition::testing
