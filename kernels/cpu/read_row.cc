// The pass over the logits.
#include "kernels/cpu/read_row.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/cpu/element.h"

namespace sortition::kernels::cpu {
namespace {

// Integers in the order of the numbers whose bits the elements are: NaNs lie beyond the infinities of their signs.
// Widening and canonical form keep the order, so the group's extremes tell all that the pass needs, in half the width
// for 16 bits.
template <DType kType>
using Ordered = std::make_signed_t<Element<kType>>;

// Its own inverse.
template <DType kType>
Ordered<kType> OrderedBits(Element<kType> bits) {
  const auto sign = Ordered<kType>(bits) >> (8 * sizeof(bits) - 1);
  return Ordered<kType>(bits ^ (sign & std::numeric_limits<Ordered<kType>>::max()));
}

template <DType kType>
uint32_t WidenOrdered(Ordered<kType> ordered) {
  return law::Widen(kType, Element<kType>(OrderedBits<kType>(Element<kType>(ordered))));
}

// Writes each group's largest key. Returns whether some logit is NaN or too large; a NaN then counts as masked.
template <DType kType>
bool ReadMaxima(const RowRequest& request, std::span<uint32_t> maxima) {
  bool suspect = false;
  GroupElements<kType> elements;
  for (uint32_t group = 0; group < maxima.size(); ++group) {
    LoadElements<kType>(request, group, &elements);
    auto least = std::numeric_limits<Ordered<kType>>::max();
    auto largest = std::numeric_limits<Ordered<kType>>::min();
    for (const Element<kType> element : elements) {
      least = std::min(least, OrderedBits<kType>(element));
      largest = std::max(largest, OrderedBits<kType>(element));
    }
    const uint32_t bits = WidenOrdered<kType>(largest);
    maxima[group] = law::Key(law::Canonical(bits));
    if (!law::IsNan(bits) && !law::IsTooLarge(bits) && !law::IsNan(WidenOrdered<kType>(least))) continue;
    suspect = true;
    GroupKeys keys;
    LoadRawKeys(request, group, &keys);
    maxima[group] = *std::max_element(keys.begin(), keys.end());
  }
  return suspect;
}

// The lowest id whose logit fails the row.
template <DType kType>
void FindError(const RowRequest& request, RowAnswer* answer) {
  for (uint32_t id = 0; id < request.live_vocabulary; ++id) {
    const uint32_t bits = SentBits<kType>(request, id);
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
