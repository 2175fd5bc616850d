// The kernels, compiled.
#pragma once

#include <cstddef>
#include <span>

namespace sortition::kernels::cuda {

// What a driver loads: machine code for some architectures, and PTX for later ones. Two, so that the compiler makes the
// kernels that every row pays for as if the others were not there.
struct Images {
  std::span<const std::byte> sample;
  std::span<const std::byte> chain;
};

// Empty in a build without nvcc.
Images CompiledImages();

// The kernels' names in them, in the order in which they run. Each takes a BatchView.
inline constexpr char kReadKernel[] = "SortitionRead";
inline constexpr char kWeighKernel[] = "SortitionWeigh";
inline constexpr char kChainKernel[] = "SortitionChain";  // of Images::chain

}  // namespace sortition::kernels::cuda
