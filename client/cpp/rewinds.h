// The rewinds of a text, and how they reach a row: the client's half of banned phrases.
//
// The service names a phrase that a text ends in, and forgets it with the cut. The client bans the phrase's first token
// at its position, and says so with every step that draws there. It counts the rewinds, and adds their number to the
// salt of every later step, so that no draw meets the noise of one that was taken back. So the service has nothing to
// remember: a server that lost the sequence gets its history and this step, and draws the same token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sortition/batch.h"
#include "sortition/options.h"

namespace sortition::client {

// Not thread-safe.
class Rewinds {
 public:
  Rewinds() = default;
  explicit Rewinds(Rewound rewound);

  const Rewound& all() const { return rewound_; }
  // Counts a rewind, and bans `token` at `position`. Returns false, and counts nothing, if it is banned there already:
  // it was drawn all the same, because an option emits it in any case, and would be drawn again.
  bool Ban(uint32_t position, uint32_t token);
  // Returns the rewinds of a fork: the same count, so that no draw meets the noise of one that was taken back, and no
  // bans.
  Rewinds OfFork() const { return Rewinds({rewound_.count, {}}); }
  // Returns the salt for a row from the caller's. Leaves a score's salt, and a salt out of range, as it is.
  uint32_t Salt(const Row& row) const;
  // Returns the tokens that are banned at `position`, ascending.
  std::vector<uint32_t> At(uint32_t position) const;
  // Forgets the bans behind `position`: the text before them has changed.
  void Truncate(uint32_t position);

 private:
  Rewound rewound_;  // its bans are sorted
};

// Returns the lists for Row::banned_tokens that hold the row's own bans and `rewound` at its first position. Empty if
// the row has its own alone, which is also so for a score.
std::vector<std::vector<uint32_t>> BansWith(const Row& row, const std::vector<uint32_t>& rewound);

}  // namespace sortition::client
