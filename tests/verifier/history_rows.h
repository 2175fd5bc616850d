// Rows with other data: a history from which their edits and noise follow, or a compact row in their place.
#pragma once

#include <cstdint>

namespace sortition::testing {

// Print `rows` random rows, each a JSON object on one line: `row` in the form of golden outputs with the reference's
// answer, and beside it `history` (prompt, output, stream, parameters as in the contract) or `compact` (first,
// is_whole, others, unit_sum, sum). A line is a function of its number and `seed`. Return the exit status. `marks`:
// rows whose watermark leaves out repeated contexts, and with the filters that came later.
int PrintHistories(uint32_t rows, uint32_t seed, bool marks);
// Rows that the compact row does not decide are left out, so fewer lines are printed.
int PrintCompactRows(uint32_t rows, uint32_t seed);

}  // namespace sortition::testing
