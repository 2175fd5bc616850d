// What filters keep.
#pragma once

#include <algorithm>
#include <span>

#include "kernels/cpu/candidate.h"

namespace sortition::kernels::cpu {

// A prefix of the order, as every filter keeps one.
struct Kept {
  // Its last token, or one after that and before every token that is not kept.
  Candidate last = kLastLive;
  // All of its tokens, in no particular order, where they are few; otherwise empty.
  std::span<Candidate> listed;

  // Up to so many tokens race faster one by one than group by group.
  static constexpr size_t kMostListed = 1024;

  // Of a live token.
  bool Has(Candidate candidate) const { return candidate >= last; }

  // `candidates`, of which there is one at least, are the prefix.
  static Kept Of(std::span<Candidate> candidates) {
    Kept kept;
    kept.last = *std::min_element(candidates.begin(), candidates.end());
    if (candidates.size() <= kMostListed) kept.listed = candidates;
    return kept;
  }
};

}  // namespace sortition::kernels::cpu
