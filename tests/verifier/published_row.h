// Published rows (kernels/law/LAW.md, section 10) as JSON, read back into rows that can be sampled, and the comparison
// of any kernels with their answers.
#pragma once

#include <string>
#include <vector>

#include "kernels/law/golden/golden_rows.h"
#include "tests/conformance/comparison.h"

namespace sortition::testing {

// The rows of a file of vectors, in its order: `file` is an object with the list `rows`. An item of the list is a row,
// or has it as `row`. Every row lists its elements.
// Aborts with the field's name where a file does not have that form.
std::vector<law::GoldenRow> PublishedRows(const std::string& file);

// Returns the text without spaces and line ends: rows stand one on a line, or are indented.
std::string WithoutSpaces(std::string text);

// Returns true if the reference's answer to the row is in `file`, the file's text from WithoutSpaces.
bool IsPublishedAnswer(const std::string& file, const law::GoldenRow& row);

// Compares a backend's answers with every published file of law 1, and asserts their number.
void ComparePublishedRows(Backend* backend);

}  // namespace sortition::testing
