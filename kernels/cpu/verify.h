// The test of a drafted token, and the draw in its place.
#pragma once

#include <span>

#include "kernels/cpu/candidate.h"
#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scale.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// True if the request's draft distribution can be used; if not, `answer` says why. Reads a dense one once.
bool CheckDraft(const Kernels& kernels, const RowRequest& request, RowOutput* answer);

// True if `draft`, a kept token, passes the test where the kept tokens' weights sum to `sum`, and so where they sum to
// less.
bool Passes(const RowRequest& request, const RowScale& scale, Candidate draft, uint64_t sum);

// Fills in the token of a row that verifies `draft`, which is the request's `given` with its key after the changes, 0
// where it is masked. Sums the kept tokens' weights, and runs a race if the draft fails.
void Verify(const Kernels& kernels, const RowRequest& request, const RowView& row, const RowScale& scale,
            const Kept& kept, Candidate draft, Scratch* scratch, RowOutput* answer);

// Fills in the answer of a row that verifies a draft of a block, likewise. `support` has the tokens of the request's
// sparse probabilities with their keys after the changes; it is empty if the probabilities have another form; then each
// kept token is read once.
void VerifyBlock(const Kernels& kernels, const RowRequest& request, const RowView& row, const RowScale& scale,
                 const Kept& kept, Candidate draft, std::span<const Candidate> support, Scratch* scratch,
                 RowOutput* answer);

// Fills in the token of a row whose drafts are tested in rounds. `support` as above. Without it each round reads every
// kept token and, without replacement, every probability.
void VerifyRounds(const Kernels& kernels, const RowRequest& request, const RowView& row, const RowScale& scale,
                  const Kept& kept, std::span<const Candidate> support, Scratch* scratch, RowOutput* answer);

}  // namespace sortition::kernels::cpu
