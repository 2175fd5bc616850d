// A published row (kernels/law/LAW.md, section 10) as JSON, read back into a row that can be sampled.
#pragma once

#include <string>
#include <vector>

#include "kernels/law/golden_rows.h"

namespace sortition::testing {

// The rows of a file of vectors, in its order: `file` is an object with the list `rows`. An item of the list is a row,
// or has it as `row`. Every row lists its elements.
// Aborts with the field's name where a file does not have that form.
std::vector<law::GoldenRow> PublishedRows(const std::string& file);

}  // namespace sortition::testing
