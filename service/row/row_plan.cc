// Positions of a draft tree.
#include "service/row/row_plan.h"

#include <algorithm>

namespace sortition::service {

uint32_t RowPlan::DepthOf(uint32_t index) const {
  uint32_t depth = 0;
  for (int32_t at = static_cast<int32_t>(index) - 1; at >= 0; at = ahead.parents[static_cast<size_t>(at)]) ++depth;
  return depth;
}

std::optional<uint32_t> RowPlan::FirstDraftAfter(uint32_t index) const {
  if (!verifies()) return std::nullopt;
  const auto at = std::ranges::find(ahead.parents, static_cast<int32_t>(index) - 1);
  if (at == ahead.parents.end()) return std::nullopt;
  return static_cast<uint32_t>(at - ahead.parents.begin());
}

}  // namespace sortition::service
