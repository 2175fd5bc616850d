// A drafter's probabilities as a row's request gives them.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/law/row_law.h"
#include "kernels/row.h"

namespace sortition::law {

// f32 bits of the drafter's probability of `token`.
inline u32 DraftBits(const kernels::RowRequest& request, u32 token) {
  const kernels::DraftDistribution& draft = request.draft;
  switch (draft.form) {
    case kernels::DraftDistribution::Form::kCertain:
      return token == request.given ? 0x3f800000u : 0u;
    case kernels::DraftDistribution::Form::kDense: {
      const u32 bytes = kernels::ElementBytes(draft.dtype);
      u32 element = 0;
      std::memcpy(&element, static_cast<const char*>(draft.dense) + size_t{token} * bytes, bytes);
      return Widen(draft.dtype, element);
    }
    case kernels::DraftDistribution::Form::kSparse: {
      const auto at = std::ranges::lower_bound(draft.sparse_tokens, token);
      if (at == draft.sparse_tokens.end() || *at != token) return 0;
      return draft.sparse_bits[size_t(at - draft.sparse_tokens.begin())];
    }
  }
  __builtin_unreachable();
}

}  // namespace sortition::law
