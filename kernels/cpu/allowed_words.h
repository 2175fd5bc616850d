// Masks as words: one a group, one bit a token.
#pragma once

#include <cstdint>

#include "kernels/row.h"

namespace sortition::kernels::cpu {

inline bool IsMasked(const RowRequest& request) {
  return request.has_allowed_tokens || request.allowed_bits != nullptr;
}

// Sets the bits of the tokens that every mask allows. Bits past the vocabulary have no meaning.
void FillAllowedWords(const RowRequest& request, uint32_t groups, uint64_t* words);

// Returns a masked request's words in place, or null if they have to be filled.
const uint64_t* AllowedWordsInPlace(const RowRequest& request);

}  // namespace sortition::kernels::cpu
