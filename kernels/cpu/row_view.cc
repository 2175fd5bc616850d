// Loading of groups, with what lies over them.
#include "kernels/cpu/row_view.h"

#include <algorithm>

#include "kernels/cpu/element.h"

namespace sortition::kernels::cpu {

void LoadRawKeys(const RowRequest& request, uint32_t group, GroupKeys* keys) {
  WithDType(request.dtype, [&]<DType kType>() {
    GroupElements<kType> elements;
    LoadElements<kType>(request, group, &elements);
    for (uint32_t i = 0; i < law::kGroupSize; ++i) {
      (*keys)[i] = law::Key(law::Canonical(law::Widen(kType, elements[i])));
    }
  });
}

void LoadKeys(const Row& row, uint32_t group, GroupKeys* keys) {
  LoadRawKeys(*row.request, group, keys);
  if (!row.allowed_words.empty()) {
    const uint64_t allowed = row.allowed_words[group];
    for (uint32_t i = 0; i < law::kGroupSize; ++i) {
      if ((allowed >> i & 1) == 0) (*keys)[i] = 0;
    }
  }
  if (!row.patch_keys.empty()) {
    const std::span<const TokenPatch> patches = row.request->patches;
    const uint32_t first = group * law::kGroupSize;
    auto patch = std::ranges::lower_bound(patches, first, {}, &TokenPatch::token);
    for (; patch != patches.end() && patch->token - first < law::kGroupSize; ++patch) {
      (*keys)[patch->token - first] = row.patch_keys[patch - patches.begin()];
    }
  }
}

}  // namespace sortition::kernels::cpu
