// Sorts lists that may be as long as a history by their tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/row.h"

namespace sortition::service {

// Sorts `items` by their field `token`, which is below kernels::kMaxVocabulary. O(items).
template <typename Item>
void SortByToken(std::span<Item> items) {
  constexpr uint32_t kBits = 10;  // of a token, in each of two passes
  static_assert(kernels::kMaxVocabulary < 1u << 2 * kBits);
  if (items.size() < 1 << kBits) {
    std::ranges::sort(items, {}, &Item::token);
    return;
  }
  std::vector<Item> other(items.size());
  std::span<Item> from = items, to = other;
  for (const uint32_t shift : {0u, kBits}) {
    const auto digit = [&](const Item& item) { return item.token >> shift & ((1u << kBits) - 1); };
    std::array<size_t, (1 << kBits) + 1> begins = {};
    for (const Item& item : from) ++begins[digit(item) + 1];
    for (size_t i = 1; i < begins.size(); ++i) begins[i] += begins[i - 1];
    for (const Item& item : from) to[begins[digit(item)]++] = item;
    std::swap(from, to);
  }
}

}  // namespace sortition::service
