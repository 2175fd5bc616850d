// The pass over the logits.
#include "kernels/cpu/read_row.h"

#include <algorithm>

#include "kernels/cpu/element.h"

namespace sortition::kernels::cpu {
namespace {

// Writes each group's largest key. Returns whether some logit is NaN or too large; the maxima then count NaN as masked.
template <DType kType>
bool ReadMaxima(const RowRequest& request, std::span<uint32_t> maxima) {
  uint32_t suspect = 0;
  for (uint32_t group = 0; group < maxima.size(); ++group) {
    const uint32_t first = group * law::kGroupSize;
    const uint32_t end = std::min(first + law::kGroupSize, request.live_vocabulary);
    uint32_t max = 0;
    for (uint32_t id = first; id < end; ++id) {
      const uint32_t bits = SentBits<kType>(request.logits, id);
      suspect |= uint32_t(law::IsNan(bits)) | uint32_t(law::IsTooLarge(bits));
      max = std::max(max, law::Key(law::Canonical(bits)));
    }
    maxima[group] = max;
  }
  return suspect != 0;
}

// The lowest id whose logit fails the row.
template <DType kType>
void FindError(const RowRequest& request, RowAnswer* answer) {
  for (uint32_t id = 0; id < request.live_vocabulary; ++id) {
    const uint32_t bits = SentBits<kType>(request.logits, id);
    const bool nan = law::IsNan(bits);
    if (nan ? request.parameters->mask_nan : !law::IsTooLarge(bits)) continue;
    answer->error = nan ? RowError::kNaN : RowError::kLogitTooLarge;
    answer->error_token = id;
    return;
  }
}

}  // namespace

bool ReadRow(const RowRequest& request, Scratch* scratch, Row* row, RowAnswer* answer) {
  std::vector<uint32_t>& maxima = scratch->raw_maxima;
  maxima.resize(GroupsOf(request.live_vocabulary));
  WithDType(request.dtype, [&]<DType kType>() {
    if (ReadMaxima<kType>(request, maxima)) FindError<kType>(request, answer);
  });
  *row = Row{.request = &request,
             .maxima = maxima,
             .max_key = *std::max_element(maxima.begin(), maxima.end()),
             .allowed_words = {},
             .patch_keys = {}};
  return answer->error == RowError::kNone;
}

}  // namespace sortition::kernels::cpu
