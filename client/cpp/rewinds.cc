// A counter, and a sorted list of positions and tokens.
#include "client/cpp/rewinds.h"

#include <algorithm>
#include <utility>

#include "service/limits.h"

namespace sortition::client {

Rewinds::Rewinds(Rewound rewound) : rewound_(std::move(rewound)) {
  std::vector<BannedAt>& bans = rewound_.bans;
  std::ranges::sort(bans);
  bans.erase(std::ranges::unique(bans).begin(), bans.end());
}

bool Rewinds::Ban(uint32_t position, uint32_t token) {
  const BannedAt entry = {position, token};
  std::vector<BannedAt>& bans = rewound_.bans;
  const auto at = std::ranges::lower_bound(bans, entry);
  if (at != bans.end() && *at == entry) return false;
  bans.insert(at, entry);
  ++rewound_.count;
  return true;
}

uint32_t Rewinds::Salt(const Row& row) const {
  if (!row.scored.empty() || row.draw_salt > service::kMaxDrawSalt) return row.draw_salt;
  return (row.draw_salt + rewound_.count) % (service::kMaxDrawSalt + 1);
}

std::vector<uint32_t> Rewinds::At(uint32_t position) const {
  std::vector<uint32_t> tokens;
  for (const BannedAt& entry : std::ranges::equal_range(rewound_.bans, position, {}, &BannedAt::position)) {
    tokens.push_back(entry.token);
  }
  return tokens;
}

void Rewinds::Truncate(uint32_t position) {
  std::vector<BannedAt>& bans = rewound_.bans;
  bans.erase(std::ranges::upper_bound(bans, position, {}, &BannedAt::position), bans.end());
}

std::vector<std::vector<uint32_t>> BansWith(const Row& row, const std::vector<uint32_t>& rewound) {
  if (rewound.empty() || !row.scored.empty()) return {};
  std::vector<std::vector<uint32_t>> bans(row.banned_tokens.begin(), row.banned_tokens.end());
  bans.resize(std::max<size_t>(bans.size(), row.positions()));
  bans.front().insert(bans.front().end(), rewound.begin(), rewound.end());
  return bans;
}

}  // namespace sortition::client
