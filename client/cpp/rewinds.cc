// A sorted list of positions and tokens.
#include "client/cpp/rewinds.h"

#include <algorithm>
#include <utility>

namespace sortition::client {

Rewinds::Rewinds(std::vector<BannedAt> bans) : bans_(std::move(bans)) {
  std::ranges::sort(bans_);
  bans_.erase(std::ranges::unique(bans_).begin(), bans_.end());
}

bool Rewinds::Ban(uint32_t position, uint32_t token) {
  const BannedAt entry = {position, token};
  const auto at = std::ranges::lower_bound(bans_, entry);
  if (at != bans_.end() && *at == entry) return false;
  bans_.insert(at, entry);
  return true;
}

std::vector<uint32_t> Rewinds::At(uint32_t position) const {
  std::vector<uint32_t> tokens;
  for (const BannedAt& entry : std::ranges::equal_range(bans_, position, {}, &BannedAt::position)) {
    tokens.push_back(entry.token);
  }
  return tokens;
}

void Rewinds::Truncate(uint32_t position) {
  bans_.erase(std::ranges::upper_bound(bans_, position, {}, &BannedAt::position), bans_.end());
}

std::vector<std::vector<uint32_t>> BansWith(const Row& row, const std::vector<uint32_t>& rewound) {
  if (rewound.empty() || !row.scored.empty()) return {};
  std::vector<std::vector<uint32_t>> bans(row.banned_tokens.begin(), row.banned_tokens.end());
  bans.resize(std::max<size_t>(bans.size(), row.positions()));
  bans.front().insert(bans.front().end(), rewound.begin(), rewound.end());
  return bans;
}

}  // namespace sortition::client
