// The contents of known_answers.json: the law by example, for implementations in any language. LAW.md says how to read
// it.
#pragma once

#include <string>

#include "kernels/law/known_rows.h"

namespace sortition::law {

// The file as it must be, from the leaf functions and the reference. Deterministic.
std::string KnownAnswersJson();

// One of its rows.
std::string KnownRowJson(const KnownRow& row);

}  // namespace sortition::law
