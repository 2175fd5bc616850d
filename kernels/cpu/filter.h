// The filters in their order: min-p, top-k, top-p. Each keeps a prefix of the order.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/candidate.h"
#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scale.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// Returns the tokens that all filters keep; a list of them lies in scratch->kept. A filter that is off costs nothing;
// only top-p without top-k may read the whole row.
Kept Filter(const Kernels& kernels, const RowRequest& request, const RowView& row, const RowScale& scale,
            Scratch* scratch);

// Returns the smallest key that min-p keeps, 1 where it is off.
uint32_t FloorOfMinP(const RowParameters& parameters, const RowView& row, const RowScale& scale);

// Top-p keeps the shortest prefix of the order that has a share of the weights. `top_p` is RowParameters::top_p, not 0.

// Moves the kept candidates to the front and returns them.
std::span<Candidate> TopPOfCandidates(const Kernels& kernels, uint32_t top_p, const RowScale& scale,
                                      std::span<Candidate> candidates, Scratch* scratch);

// Returns the tokens that top-p keeps among those with a key >= `floor`, at least one. A list lies in scratch->kept.
Kept TopPOfRow(const Kernels& kernels, uint32_t top_p, uint32_t floor, const RowView& row, const RowScale& scale,
               Scratch* scratch);

// Race first: top-p keeps a token exactly if the weights of the tokens before it do not reach the threshold. The winner
// of the race among all tokens also wins among the kept ones if it is one of these, so the sum that the threshold needs
// has only to be known as precisely as this decision is close.

// The step that decided, the cheapest first: from the weights of the tokens up to the winner, from the groups' maxima,
// from the leading groups' sums, from near sums (NearWeights), by the kept prefix itself.
enum class TopPStep { kOwnSum, kMaxima, kLeadingGroups, kNearSum, kRow };

struct TopPRuling {
  TopPStep by;
  bool is_kept;  // the winner
  // If it is not: all tokens that top-p keeps, as TopPOfRow returns them, and unless `is_exact` some that come next.
  // The winner is none of them.
  Kept kept;
  bool is_exact;
};

// Tells whether top-p keeps `winner`, a live token, among the tokens with a key >= `floor`, of which it is one. Where
// few groups leave the ruling open, a lazy copy fails, and the ruling has no meaning.
TopPRuling RuleByTopP(const Kernels& kernels, uint32_t top_p, uint32_t floor, Candidate winner, const RowView& row,
                      const RowScale& scale, Scratch* scratch);

}  // namespace sortition::kernels::cpu
