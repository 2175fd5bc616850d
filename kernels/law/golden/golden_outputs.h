// The contents of golden_outputs.json: the law by example, for implementations in any language. LAW.md says how to read
// it.
#pragma once

#include <string>

#include "kernels/law/golden/golden_rows.h"

namespace sortition::law {

// The file as it must be, from the leaf functions and the reference. Deterministic.
std::string GoldenOutputsJson();

// One of its rows.
std::string GoldenRowJson(const GoldenRow& row);

}  // namespace sortition::law
