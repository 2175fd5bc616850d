// Digests of a row's masks: one to compare a retry, and the hashes of receipts.
#pragma once

#include <cstdint>
#include <vector>

#include "service/memory/mask_memory.h"
#include "service/text/row_plan.h"

namespace sortition::service {

// Returns a digest of the tokens that the plan's masks allow at each position: the same for each form of a mask. 0 if
// they allow all. `bits` has the packed words of each mask. Differs between processes. O(listed tokens + packed words).
uint64_t DigestMasks(const RowPlan& plan, const std::vector<RowMaskBits>& bits, uint32_t live_vocabulary);

// Sets the hashes of the plan's masks, as the step has sent them (docs/receipts.md).
void HashMasks(const std::vector<RowMaskBits>& masks, uint32_t live_vocabulary, RowPlan* plan);

}  // namespace sortition::service
