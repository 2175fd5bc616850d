// A row's masks, whichever way they are given, as one word a group.
#pragma once

#include <cstdint>

#include "kernels/row.h"

namespace sortition::kernels::cpu {

inline bool IsMasked(const RowRequest& request) {
  return request.has_allowed_tokens || request.allowed_bits != nullptr;
}

// One bit a token, set where every mask allows it; bits past the vocabulary are of no account.
void FillAllowedWords(const RowRequest& request, uint32_t groups, uint64_t* words);

}  // namespace sortition::kernels::cpu
