// Tokens as selection sees them, and the prefix of the order that filters keep.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

namespace sortition::kernels::cpu {

// Candidates compare as numbers: the greater one comes first in the law's order (law::Before).
struct Candidate {
  uint64_t rank = 0;  // key : ~token

  static Candidate Of(uint32_t key, uint32_t token) { return {uint64_t{key} << 32 | uint32_t(~token)}; }
  uint32_t key() const { return uint32_t(rank >> 32); }
  uint32_t token() const { return ~uint32_t(rank); }
  auto operator<=>(const Candidate&) const = default;
};

// The last candidate that a live token can have. Every other token that is not masked comes before it.
inline constexpr Candidate kLastLive = {uint64_t{1} << 32};

// A prefix of the order, as every filter keeps one.
struct Kept {
  // The last kept token, or any candidate after it and before every token that is not kept.
  Candidate last = kLastLive;
  // All kept tokens, in no particular order, if they are few; otherwise empty.
  std::span<Candidate> listed;

  // Up to this number, tokens race faster one by one than group by group.
  static constexpr size_t kMostListed = 1024;

  // `candidate` is a live token.
  bool Has(Candidate candidate) const { return candidate >= last; }

  // Returns the prefix that consists of `candidates`, at least one.
  static Kept Of(std::span<Candidate> candidates) {
    Kept kept;
    kept.last = *std::min_element(candidates.begin(), candidates.end());
    if (candidates.size() <= kMostListed) kept.listed = candidates;
    return kept;
  }
};

}  // namespace sortition::kernels::cpu
