// Each filter keeps a prefix of the order, so the next one starts from its end.
#include "kernels/cpu/filter.h"

#include "kernels/cpu/select.h"
#include "kernels/cpu/top_p.h"

namespace sortition::kernels::cpu {
namespace {

// The tokens of a key >= `floor`.
Kept KeepFrom(const Kernels& kernels, const Row& row, uint32_t floor, Scratch* scratch) {
  Kept kept;
  kept.last = Candidate::Of(floor, ~0u);
  uint32_t* const groups = scratch->groups.Reserve(row.groups);
  const size_t count = kernels.SelectAtLeast(row.maxima, row.groups, floor, groups);
  if (count * law::kGroupSize > Kept::kMostListed) return kept;
  kept.listed = CollectBetween(kernels, row, floor, kNoCeiling, scratch, &scratch->kept);
  return kept;
}

}  // namespace

Kept Filter(const Kernels& kernels, const RowRequest& request, const Row& row, const RowScale& scale,
            Scratch* scratch) {
  const RowParameters& parameters = *request.parameters;
  const bool min_p = parameters.min_p_distance != RowParameters::kMinPOff;
  const uint32_t floor = min_p ? FirstKeyWithin(law::MakeBound(parameters.min_p_distance), scale.scale) : 1;
  if (parameters.top_k != 0 && parameters.top_k < request.live_vocabulary) {
    std::span<Candidate> first = SelectFirst(kernels, row, parameters.top_k, floor, scratch, &scratch->kept);
    if (parameters.top_p != 0) first = TopPOfCandidates(kernels, parameters.top_p, scale, first, scratch);
    return Kept::Of(first);
  }
  if (parameters.top_p != 0) return TopPOfRow(kernels, parameters.top_p, floor, row, scale, scratch);
  return min_p ? KeepFrom(kernels, row, floor, scratch) : Kept();
}

}  // namespace sortition::kernels::cpu
