// Elements of a logits tensor, at any alignment, as f32 bits.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/law/row_law.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

static_assert(std::endian::native == std::endian::little, "tensors are read as they lie in memory");

// f32 bits, not canonical, of element `index`.
template <DType kType>
uint32_t SentBits(const void* logits, size_t index) {
  std::conditional_t<ElementBytes(kType) == 4, uint32_t, uint16_t> element;
  std::memcpy(&element, static_cast<const std::byte*>(logits) + index * sizeof(element), sizeof(element));
  return law::Widen(kType, element);
}

// Calls visit.operator()<kType>() for the request's element type.
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
