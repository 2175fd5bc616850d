// Turns the contract's rows into the kernels' inputs.
#pragma once

#include <cstdint>

#include "kernels/cuda/layout.h"
#include "kernels/features.h"
#include "kernels/row.h"

namespace sortition::kernels::cuda {

// Features of the kernels.
inline constexpr Features kFeatures = kAllFeatures & ~(kFeatureTempered | kFeatureBlock | kFeatureRounds);

// True if the third kernel samples the row. `requests`: the row requests logprobs of named tokens.
bool IsChained(const RowParameters& parameters, RowTask task, bool requests);

// The kernels' form of a row's options and noise; its pointers and counts are left empty. `vocabulary`: live tokens.
RowInput MakeRowInput(const RowParameters& parameters, const NoiseKey& noise, DType dtype, uint32_t vocabulary,
                      bool is_chained);

// Builds the additional input of a chained row: the options as stages, in any form. Pointers, counts and the task are
// left empty.
ChainedInput MakeChainedInput(const RowParameters& parameters);

// The kernels after the first that rows need. Rows of the first kind may turn out to need them; others never do.
struct LaterKernels {
  bool weigh = false;
  bool chain = false;
  void operator|=(const LaterKernels& other) {
    weigh = weigh || other.weigh;
    chain = chain || other.chain;
  }
};
LaterKernels NeededBy(const RowInput& input);

// How a launch splits the rows of a batch.
struct Geometry {
  uint32_t section_groups = 0;  // groups of 64 tokens that a block reads
  uint32_t sections = 0;        // blocks for the longest row
};

// `largest_groups`: the longest row's groups. `multiprocessors`: the device's; each should have work.
Geometry ChooseGeometry(uint32_t rows, uint32_t largest_groups, uint32_t multiprocessors);

// Output of the kernels for a row, in the host's memory.
struct OutputView {
  const RawOutput* output = nullptr;
  const TopToken* raw_top = nullptr;
  const TopToken* processed_top = nullptr;
  const ChainedOutput* chained = nullptr;  // only of a chained row, as are the following
  const TokenPlace* raw_places = nullptr;
  const TokenPlace* processed_places = nullptr;
  uint32_t requested = 0;  // places
  const TokenBits* kept = nullptr;
};
RowOutput ReadOutput(const RowParameters& parameters, const OutputView& view);

}  // namespace sortition::kernels::cuda
