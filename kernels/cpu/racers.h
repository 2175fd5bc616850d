// Groups and tokens before the race, each with its promise.
//
// A promise is an upper bound, from the leading bits of the noise, on how well a group or a token does in the race. A
// promise below PromiseNeeded(best) cannot win, so its group or token is left out. Promises prune; they decide nothing.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/cpu/array.h"
#include "kernels/law/law.h"

namespace sortition::kernels::cpu {

// Let s = (word >> 40) of the group's owner, plus word >> 34 of the token's own word for any other token: from below, U
// in units of 2^-30, where E = -log2(1 - U) * ... of the law is at least U log2(e). So the race key in octaves, key /
// 2^32, is at least
//
//   t / 2^26 + log2(s) - 30 + log2(log2(e)),
//
// and log2(s) is at least what the bits of s as an f32 say when they are read as a number of 2^-23, less 127. A promise
// is
//
//   kBestPromise - (bits of f32(s) + (t >> 3)),
//
// or 0 for a token that does not race. Rounding s to an f32, and the law's own errors, are below the 0.0009 octaves
// that kPromiseOffset has to spare.
inline constexpr uint32_t kBestPromise = 0x7fffffff;
inline constexpr int64_t kPromiseOffset = int64_t(156.4722 * (1 << 23));  // 127 + 30 - log2(log2(e)) = 156.47123

// Returns the smallest promise that can still reach the race key `best`.
inline uint32_t PromiseNeeded(int64_t best) {
  const int64_t needed = int64_t{kBestPromise} - kPromiseOffset - (best >> 9);
  return uint32_t(std::clamp<int64_t>(needed, 1, 0xffffffff));
}

// The law's L of a token, from the word of its group and its own.
inline uint64_t LogOf(uint64_t group_word, uint64_t word, uint32_t token) {
  const uint64_t a = law::NegLog2(law::Uniform(group_word));
  if (law::Owner(group_word) == token % law::kGroupSize) return law::OwnerLog(a);
  return law::OtherLog(a, law::NegLog2(law::Uniform(word)));
}

// All groups of a row; index = group.
struct GroupRacers {
  Array<uint32_t> low;   // lower half of the group's word
  Array<uint32_t> high;  // upper half
  Array<uint32_t> promise;

  uint64_t Word(uint32_t group) const { return uint64_t{high.data()[group]} << 32 | low.data()[group]; }
};

// Some tokens.
struct TokenRacers {
  uint32_t count = 0;
  Array<uint32_t> token;
  Array<uint32_t> t;
  Array<uint32_t> group_low;  // the word of the token's group
  Array<uint32_t> group_high;
  Array<uint32_t> low;  // the token's own
  Array<uint32_t> high;
  Array<uint32_t> promise;

  void Reserve(uint32_t capacity) {
    for (Array<uint32_t>* array : {&token, &t, &group_low, &group_high, &low, &high, &promise})
      array->Reserve(capacity);
  }
  uint64_t GroupWord(uint32_t i) const { return uint64_t{group_high.data()[i]} << 32 | group_low.data()[i]; }
  uint64_t Word(uint32_t i) const { return uint64_t{high.data()[i]} << 32 | low.data()[i]; }
};

}  // namespace sortition::kernels::cpu
