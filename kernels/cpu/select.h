// Selection in the law's order (key descending, then id ascending) without sorting the vocabulary.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"

namespace sortition::kernels::cpu {

inline bool InOrder(const Candidate& a, const Candidate& b) { return law::Before(a.key, a.token, b.key, b.token); }

// A prefix of the order, given by its last token. Every filter keeps one.
struct Cut {
  uint32_t key = 1;  // the default keeps every live token
  uint32_t token = ~0u;

  bool Keeps(uint32_t other_key, uint32_t other_token) const {
    return other_key > key || (other_key == key && other_token <= token);
  }
};

// The first `count` tokens in order among those of a key >= `floor`, or all of them if there are fewer; unsorted, in
// scratch->candidates. count >= 1, floor >= 1. Reads about `count` groups where there are that many.
void SelectFirst(const Row& row, uint32_t count, uint32_t floor, Scratch* scratch);

// The token that is first in order. `row` has a live one.
Candidate First(const Row& row);

}  // namespace sortition::kernels::cpu
