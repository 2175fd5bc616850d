// Where a given token stands in the race (kernels/law/race_place.h).
#pragma once

#include "kernels/cpu/candidate.h"
#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scale.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// Returns the place of `given`, any token with its key in the row, 0 where masked. `scale` is not adapted. Lists and
// sorts nothing. A row without a list takes one word per group, and two per token that may be before `given`.
RacePlace FindRacePlace(const Kernels& kernels, const RowView& row, const RowScale& scale, const Kept& kept,
                        const law::DrawKey& key, Candidate given, Scratch* scratch);

}  // namespace sortition::kernels::cpu
