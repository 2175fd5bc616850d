// Rejection of drafts as a program: slow, plain, the definition that every kernel is compared with.
#pragma once

#include <functional>
#include <vector>

#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::law {

// Returns the distance of a kept token with these bits.
using DistanceOf = std::function<u32(u32 bits)>;

// Why the draft's distribution fails the row; kNone, with token 0, if it does not.
struct DraftError {
  kernels::RowFault error = kernels::RowFault::kNone;
  u32 token = 0;
};
DraftError CheckDraft(const kernels::RowRequest& request);

// The token of a row that verifies a draft: the draft, or one drawn in its place. `kept` are the row's kept tokens; at
// least one has a weight above 0.
struct Verdict {
  kernels::TokenBits token;
  bool accepted = false;  // as in RowOutput
  u64 survival = 0;       // as in RowOutput
};
Verdict VerifyReference(const kernels::RowRequest& request, const std::vector<kernels::TokenBits>& kept,
                        const DistanceOf& distance);

}  // namespace sortition::law
