// A row as one of its distributions sees it: keys of 64 tokens at a time, and the largest key of each group of 64.
//
// The logits are never rewritten. Masks and patches lie over them and are applied to each group that is looked at, so
// their cost follows the tokens they name. Group maxima tell which groups need to be looked at.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels/cpu/scratch.h"
#include "kernels/law/row_law.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

using GroupKeys = std::array<uint32_t, law::kGroupSize>;

struct Row {
  const RowRequest* request;
  std::span<const uint32_t> maxima;  // one key per group; 0 where nothing is live
  uint32_t max_key;                  // the largest of them

  // Masks and patches; both empty for the raw distribution.
  std::span<const uint64_t> allowed_words;  // empty if every token is allowed
  std::span<const uint32_t> patch_keys;     // parallel to request->patches, or empty
};

inline uint32_t GroupsOf(uint32_t vocabulary) { return (vocabulary + law::kGroupSize - 1) / law::kGroupSize; }

// Keys of a group's tokens before any change; 0 past the live vocabulary.
void LoadRawKeys(const RowRequest& request, uint32_t group, GroupKeys* keys);

// Keys of a group's tokens in this row; 0 where masked and past the live vocabulary.
void LoadKeys(const Row& row, uint32_t group, GroupKeys* keys);

// Calls visit(token, key) for each token of a key >= `floor` >= 1, id ascending; reads only groups that have one.
template <typename Visit>
void ForEachFrom(const Row& row, uint32_t floor, Visit visit) {
  GroupKeys keys;
  for (uint32_t group = 0; group < row.maxima.size(); ++group) {
    if (row.maxima[group] < floor) continue;
    LoadKeys(row, group, &keys);
    for (uint32_t i = 0; i < law::kGroupSize; ++i) {
      if (keys[i] >= floor) visit(group * law::kGroupSize + i, keys[i]);
    }
  }
}

}  // namespace sortition::kernels::cpu
