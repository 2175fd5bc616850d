// The kernels, compiled.
#pragma once

#include <cstddef>
#include <span>

namespace sortition::kernels::cuda {

// What a driver loads: machine code for some architectures, and PTX for later ones. Empty in a build without nvcc.
std::span<const std::byte> Image();

// The kernels' names in it, in the order in which they run. Each takes a BatchView.
inline constexpr char kReadKernel[] = "SortitionRead";
inline constexpr char kWeighKernel[] = "SortitionWeigh";

}  // namespace sortition::kernels::cuda
