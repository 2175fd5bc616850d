// Plain model of a device's edit cache: copies of edit lists, updated through EditOrigin.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "kernels/row.h"

namespace sortition::testing {

// Not thread-safe.
class PlainEditCache {
 public:
  // Returns the row's edits, derived from a copy and its changes if possible. Keeps them if they have a name.
  std::vector<kernels::LogitEdit> EditsOf(const kernels::RowRequest& request) {
    const kernels::EditOrigin& origin = request.edit_origin;
    std::vector<kernels::LogitEdit> edits(request.edits.begin(), request.edits.end());
    if (origin.list == 0) return edits;
    const auto found = cache_.find(origin.list);
    const bool is_known = found != cache_.end();
    if (is_known && found->second.version > origin.version) return edits;
    if (is_known && origin.version - found->second.version + origin.ahead <= origin.changed.size()) {
      const uint64_t changes = origin.version - found->second.version + origin.ahead;
      edits = Changed(found->second.edits, request, changes);
      ++changed_;
      changed_ahead_ += origin.ahead != 0;
    }
    if (origin.ahead != 0) return edits;
    cache_[origin.list] = {origin.version, edits};
    if (cache_.size() > kMost) cache_.erase(cache_.begin());
    return edits;
  }

  // Number of rows whose edits were made by changing a copy, and how many of these had changes without a name
  // (`ahead`).
  uint64_t changed() const { return changed_; }
  uint64_t changed_ahead() const { return changed_ahead_; }

 private:
  static constexpr size_t kMost = 64;
  struct Entry {
    uint64_t version;
    std::vector<kernels::LogitEdit> edits;
  };

  static std::vector<kernels::LogitEdit> Changed(const std::vector<kernels::LogitEdit>& from,
                                                 const kernels::RowRequest& request, uint64_t changes) {
    std::map<uint32_t, kernels::LogitEdit> by_token;
    for (const kernels::LogitEdit& edit : from) by_token[edit.token] = edit;
    for (const uint32_t token : request.edit_origin.changed.last(changes)) {
      by_token.erase(token);
      const auto at = std::ranges::find(request.edits, token, &kernels::LogitEdit::token);
      if (at != request.edits.end()) by_token[token] = *at;
    }
    std::vector<kernels::LogitEdit> edits;
    for (const auto& [token, edit] : by_token) edits.push_back(edit);
    return edits;
  }

  std::map<uint64_t, Entry> cache_;
  uint64_t changed_ = 0;
  uint64_t changed_ahead_ = 0;
};

}  // namespace sortition::testing
