// Lets GoogleTest print the contract's structs where they differ.
#pragma once

#include <ostream>

#include "kernels/row.h"

namespace sortition::kernels {

inline void PrintTo(const Distribution& distribution, std::ostream* out) {
  *out << "{max_bits " << distribution.max_bits << ", weight_sum " << distribution.weight_sum << ", chosen "
       << distribution.chosen.token << ":" << distribution.chosen.bits << ", rank " << distribution.rank << ", top";
  for (const TokenBits& token : distribution.top) *out << " " << token.token << ":" << token.bits;
  *out << ", requested";
  for (const TokenPlace& place : distribution.requested) *out << " " << place.rank << ":" << place.bits;
  *out << "}";
}

inline void PrintTo(const RowOutput& answer, std::ostream* out) {
  *out << "{error " << int(answer.error) << " at " << answer.error_token << ", token " << answer.token
       << (answer.accepted ? " accepted" : "") << ", kept " << answer.kept << ", entropy " << answer.entropy.surplus
       << "/" << answer.entropy.weights << ", " << answer.kept_tokens.size() << " kept tokens, raw ";
  PrintTo(answer.raw, out);
  *out << ", processed ";
  PrintTo(answer.processed, out);
  *out << ", tempered ";
  PrintTo(answer.tempered, out);
  *out << ", mass " << answer.mass.kept << "/" << answer.mass.all << ", race " << answer.race.rank << " lag "
       << answer.race.lag;
  *out << ", sampler_state " << answer.sampler_state << ", temperature " << answer.temperature << "}";
}

}  // namespace sortition::kernels
