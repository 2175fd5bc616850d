// Forms of a step that no encoder writes, and that a worker may send all the same.
#pragma once

#include "sortition/v1/sampling.pb.h"
#include "tests/costs/scenario.h"

namespace sortition::costs {

// Changes a step by the scenario's options. "wire.rows" adds rows, also beyond the limit, and "wire.unpacked" unpacked
// numbers: the size "wire" is their number. With "wire.twice" each row sets its task twice, with "wire.unknown" it has
// an unknown field.
void ChangeForm(const Scenario& scenario, v1::Step* step);

}  // namespace sortition::costs
