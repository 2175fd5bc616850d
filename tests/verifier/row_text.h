// Rows as lines of JSON, in the form of golden outputs (kernels/law/LAW.md, section 10).
#pragma once

#include <string>

#include "kernels/law/golden/golden_rows.h"
#include "kernels/row.h"

namespace sortition::testing {

// Returns the request as a golden row of this name. Copies the data that the request refers to.
law::GoldenRow GoldenRowOf(const kernels::RowRequest& request, const std::string& name);

// Returns the row with the reference's answer as a JSON object on one line.
std::string RowText(const law::GoldenRow& row);

}  // namespace sortition::testing
