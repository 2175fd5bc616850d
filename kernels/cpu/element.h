// Elements of a logits tensor, at any alignment: one, or a group of 64.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/law/row_law.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

static_assert(std::endian::native == std::endian::little, "tensors are read as they lie in memory");

// An element's bits.
template <DType kType>
using Element = std::conditional_t<ElementBytes(kType) == 4, uint32_t, uint16_t>;

template <DType kType>
using GroupElements = std::array<Element<kType>, law::kGroupSize>;

// -Inf, which no live token shows: it stands for what is past the vocabulary.
template <DType kType>
inline constexpr Element<kType> kMaskedElement = kType == DType::kF32   ? 0xff800000
                                                 : kType == DType::kF16 ? 0xfc00
                                                                        : 0xff80;

// f32 bits, not canonical, of element `index`.
template <DType kType>
uint32_t SentBits(const RowRequest& request, size_t index) {
  Element<kType> element;
  std::memcpy(&element, static_cast<const std::byte*>(request.logits) + index * sizeof(element), sizeof(element));
  return law::Widen(kType, element);
}

// A group's elements, and -Inf past the live vocabulary.
template <DType kType>
void LoadElements(const RowRequest& request, uint32_t group, GroupElements<kType>* elements) {
  const uint32_t first = group * law::kGroupSize;
  const uint32_t live = std::min(law::kGroupSize, request.live_vocabulary - first);
  if (live < law::kGroupSize) elements->fill(kMaskedElement<kType>);
  std::memcpy(elements->data(), static_cast<const std::byte*>(request.logits) + size_t{first} * sizeof(Element<kType>),
              live * sizeof(Element<kType>));
}

// Calls visit.operator()<kType>() for the element type.
template <typename Visit>
auto WithDType(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kF32:
      return visit.template operator()<DType::kF32>();
    case DType::kF16:
      return visit.template operator()<DType::kF16>();
    case DType::kBF16:
      return visit.template operator()<DType::kBF16>();
  }
  __builtin_unreachable();
}

}  // namespace sortition::kernels::cpu
