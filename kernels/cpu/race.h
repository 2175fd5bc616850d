// The draw: the law's grouped race, run only where it can still be won.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/cpu/candidate.h"
#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scale.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// Returns the kept token of the smallest race key. `row` has a live token. Takes two random words per token of a list;
// without a list one word per group and the read of a few groups. `likely` is empty, or a token that is live and kept:
// the race begins with it.
uint32_t Draw(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept,
              const law::DrawKey& key, std::optional<Candidate> likely, Scratch* scratch);

// Returns the rest of a token's weight, never more than the weight.
class Reweigh {
 public:
  virtual ~Reweigh() = default;
  virtual uint64_t operator()(uint32_t token, uint64_t weight) const = 0;
};

// Draws among the parts of the kept tokens' weights that `reweigh` leaves, by law::ResidualRaceKey. Returns kNoToken if
// it leaves none.
uint32_t DrawReweighed(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept,
                       const law::DrawKey& key, const Reweigh& reweigh, Scratch* scratch);

}  // namespace sortition::kernels::cpu
