// Bit masks are words as they lie; lists of tokens are written into words.
#include "kernels/cpu/allowed_words.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace sortition::kernels::cpu {

static_assert(std::endian::native == std::endian::little, "two 32-bit words lie in memory like one of 64 bits");

void FillAllowedWords(const RowRequest& request, uint32_t groups, uint64_t* words) {
  const size_t bytes = size_t{(request.live_vocabulary + 31) / 32} * sizeof(uint32_t);
  words[groups - 1] = 0;  // the bits may fill only half of it
  if (!request.has_allowed_tokens) {
    if (request.allowed_bits == nullptr) {
      std::fill_n(words, groups, ~uint64_t{0});
    } else {
      std::memcpy(words, request.allowed_bits, bytes);
    }
    return;
  }
  std::fill_n(words, groups, 0);
  for (const uint32_t token : request.allowed_tokens) {
    const bool allowed = request.allowed_bits == nullptr || (request.allowed_bits[token / 32] >> (token % 32) & 1) != 0;
    words[token / 64] |= uint64_t{allowed} << (token % 64);
  }
}

const uint64_t* AllowedWordsInPlace(const RowRequest& request) {
  if (request.has_allowed_tokens) return nullptr;
  const bool is_aligned = std::bit_cast<uintptr_t>(request.allowed_bits) % alignof(uint64_t) == 0;
  const bool is_whole = (request.live_vocabulary + 31) / 32 % 2 == 0;
  return is_aligned && is_whole ? reinterpret_cast<const uint64_t*>(request.allowed_bits) : nullptr;
}

}  // namespace sortition::kernels::cpu
