// The vector kernels, as tables: one per target (target.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/candidate.h"
#include "kernels/cpu/racers.h"
#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scale.h"
#include "kernels/cpu/spread.h"
#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// The result of ReadMaxima.
struct Reading {
  uint32_t max_key;
  bool suspect;            // the row holds a NaN or a logit that is too large: the keys have no meaning
  SentSpread spread = {};  // empty unless RowView::sums_logits
};

// The result of LookAtEdits.
struct EditsSeen {
  bool ascend;     // token ids ascend
  bool may_raise;  // MayRaise (one_edit.h) is true for an edit
};

// The lists that EditTokens fills; they have room for all edits.
struct Edited {
  Candidate* live;
  uint32_t live_count;
  // Groups with an edited largest key, or with an edited token that now exceeds it, each with the new key. A group may
  // occur twice.
  uint32_t* moved_groups;
  uint32_t* moved_keys;
  uint32_t moved_count;
};

// Sums over kept tokens, as in the law's moments.inc and sigma.inc.
struct Moments {
  uint64_t sum = 0;
  uint64_t moment = 0;
  uint64_t square = 0;
  uint32_t count = 0;
};
// The sum alone, or the sum and one of the others; kMomentAndCount also counts the tokens, dead ones included.
enum class MomentsWanted { kSum, kMoment, kMomentAndCount, kSquare };

// The result of NearWeights: near sums. 1 is the weight of the row's largest logit. If HasNearWeights, a sum of the
// law's weights, times 2^-44, differs from its near sum by kNearError of the sum and kNearLoss a token at most.
struct NearSums {
  double all;
  double before;  // the sum of a prefix of the order
};
inline constexpr double kNearError = 0x1p-15;
inline constexpr double kNearLoss = 0x1p-43;

// The result of NearMoments: near sums of weights p, and of p y with the distance y in octaves, or of p^2. If
// HasNearWeights, `sum` times 2^44 and `other` times 2^42 differ from the law's sums by these errors at most.
struct NearMomentSums {
  double sum = 0;
  double other = 0;  // 0 if it is not wanted
};
inline double NearSumError(const NearMomentSums& near, uint32_t tokens) {
  return near.sum * kNearError + tokens * kNearLoss;
}
// y is off by less than 2^-16 octaves, besides what p is off. The law cuts p to 2^-31 before it squares it.
inline double NearOtherError(const NearMomentSums& near, uint32_t tokens, MomentsWanted wanted) {
  const bool squares = wanted == MomentsWanted::kSquare;
  return near.other * (squares ? 2 * kNearError : kNearError) + near.sum * (squares ? 0x1p-29 : 0x1p-15) +
         tokens * 0x1p-38;
}

// True if the row's fixed point is fine enough, and masked tokens, which have no weight, are too far down to have one
// by their number: everywhere but at extreme temperatures and with extreme logits.
inline bool HasNearWeights(const RowScale& row) {
  return row.scale.shift >= 24 && row.first_weighted_key > law::kLowestKey && !row.curve.is_on;
}

struct Levels {
  uint32_t count = 0;
  int64_t sum = 0;
  uint64_t squares = 0;
};

// The number of probabilities that SumProbabilities takes at a time: a multiple of every target's lanes.
inline constexpr uint32_t kDraftStep = 64;

struct Kernels {
#define SORTITION_KERNEL(result, name, parameters) result(*name) parameters;
#include "kernels/cpu/simd/kernels.inc"
#undef SORTITION_KERNEL
};

}  // namespace sortition::kernels::cpu
