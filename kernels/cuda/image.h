// The kernels, compiled.
#pragma once

#include <cstddef>
#include <span>

namespace sortition::kernels::cuda {

// Images for the driver to load: machine code for some architectures, and PTX for later ones. There are several, so
// that the kernels that every row needs are compiled without regard to the others.
struct Images {
  std::span<const std::byte> sample;
  std::span<const std::byte> chain;
  std::span<const std::byte> sequence;
};

// Empty in a build without nvcc.
Images CompiledImages();
// Returns the oldest driver, by the first part of its version, that loads these images on GPUs before Blackwell. It
// depends on the assembler.
int LeastDriver();

// The kernels' names in the images. A batch's kernels, in the order in which they run, take a BatchView;
// SortitionAdvance takes a SequenceView.
inline constexpr char kReadKernel[] = "SortitionRead";
inline constexpr char kWeighKernel[] = "SortitionWeigh";
inline constexpr char kChainKernel[] = "SortitionChain";      // in Images::chain
inline constexpr char kAdvanceKernel[] = "SortitionAdvance";  // in Images::sequence

}  // namespace sortition::kernels::cuda
