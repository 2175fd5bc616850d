// What a device may make of PatchOrigin: copies of lists, changed by what changed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kernels/row.h"

namespace sortition::testing {

// Not thread-safe.
class PlainMirrors {
 public:
  // The row's patches, by changes of a copy if that can be, else as they are. Keeps them if they have a name.
  std::vector<kernels::TokenPatch> PatchesOf(const kernels::RowRequest& request) {
    const kernels::PatchOrigin& origin = request.patch_origin;
    std::vector<kernels::TokenPatch> patches(request.patches.begin(), request.patches.end());
    if (origin.list == 0) return patches;
    const auto found = mirrors_.find(origin.list);
    const bool is_known = found != mirrors_.end();
    if (is_known && found->second.version > origin.version) return patches;
    if (is_known && origin.version - found->second.version + origin.ahead <= origin.changed.size()) {
      const uint64_t changes = origin.version - found->second.version + origin.ahead;
      patches = Changed(found->second.patches, request, changes);
      ++changed_;
      changed_ahead_ += origin.ahead != 0;
    }
    if (origin.ahead != 0) return patches;
    mirrors_[origin.list] = {origin.version, patches};
    if (mirrors_.size() > kMost) mirrors_.erase(mirrors_.begin());
    return patches;
  }

  // How many rows' patches were not taken as they are, and of those such without a name.
  uint64_t changed() const { return changed_; }
  uint64_t changed_ahead() const { return changed_ahead_; }

 private:
  static constexpr size_t kMost = 64;
  struct Mirror {
    uint64_t version;
    std::vector<kernels::TokenPatch> patches;
  };

  static std::vector<kernels::TokenPatch> Changed(const std::vector<kernels::TokenPatch>& from,
                                                  const kernels::RowRequest& request, uint64_t changes) {
    std::map<uint32_t, kernels::TokenPatch> by_token;
    for (const kernels::TokenPatch& patch : from) by_token[patch.token] = patch;
    for (const uint32_t token : request.patch_origin.changed.last(changes)) {
      by_token.erase(token);
      const auto at = std::ranges::find(request.patches, token, &kernels::TokenPatch::token);
      if (at != request.patches.end()) by_token[token] = *at;
    }
    std::vector<kernels::TokenPatch> patches;
    for (const auto& [token, patch] : by_token) patches.push_back(patch);
    return patches;
  }

  std::map<uint64_t, Mirror> mirrors_;
  uint64_t changed_ = 0;
  uint64_t changed_ahead_ = 0;
};

}  // namespace sortition::testing
