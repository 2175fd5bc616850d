// A token with its key, as selection sees it.
#pragma once

#include <compare>
#include <cstdint>

namespace sortition::kernels::cpu {

// Candidates compare as numbers: the greater one comes first in the law's order (law::Before).
struct Candidate {
  uint64_t rank = 0;  // key : ~token

  static Candidate Of(uint32_t key, uint32_t token) { return {uint64_t{key} << 32 | uint32_t(~token)}; }
  uint32_t key() const { return uint32_t(rank >> 32); }
  uint32_t token() const { return ~uint32_t(rank); }
  auto operator<=>(const Candidate&) const = default;
};

// The last candidate of all live tokens: every other that is not masked comes before it.
inline constexpr Candidate kLastLive = {uint64_t{1} << 32};

}  // namespace sortition::kernels::cpu
