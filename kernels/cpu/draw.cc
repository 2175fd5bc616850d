// Pruning of the race. It leaves out groups that provably lose, so it cannot change which token wins.
#include "kernels/cpu/draw.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/check.h"

namespace sortition::kernels::cpu {
namespace {

// A lower bound of OwnerLog(NegLog2(Uniform(word))) from the word's leading bits.
//
// With U = R / 2^64: -log2(1 - U) >= U log2(e), so log2 of A, which is that in Q58, is at least log2(R) - 6 + 0.528.
// NegLog2 and Log2Raw together lower this by less than 1e-7 where R >= 2^32, and log2(1 + f) >= f bounds log2(R) by its
// leading bits. The 0.5 below leaves 0.028 to spare. Smaller R (once in 2^32) get a bound that always survives.
int64_t OwnerLogBound(uint64_t word) {
  const uint64_t r = law::Uniform(word);
  if (r < uint64_t{1} << 32) return -(int64_t{1} << 40);
  const int zeros = std::countl_zero(r);
  const int64_t log_r = (int64_t{63 - zeros} << 32) + uint32_t(r << zeros >> 31);
  return log_r - (int64_t{6 + 64} << 32) + (int64_t{1} << 31);
}

class Race {
 public:
  Race(const Row& row, const law::Scale& scale, const Cut& cut, const law::DrawKey& key)
      : row_(row), scale_(scale), cut_(cut), key_(key) {}

  int64_t best() const { return best_; }
  Candidate winner() const { return winner_; }

  // Lets a group's tokens race, as far as they can still win.
  void Enter(const Entrant& entrant) {
    const uint64_t a = law::NegLog2(law::Uniform(entrant.word));
    const uint64_t owner_log = law::OwnerLog(a);
    if (law::SignedRaceKey(DistanceOf(row_.maxima[entrant.group]), owner_log) > best_) return;
    GroupKeys keys;
    LoadKeys(row_, entrant.group, &keys);
    for (uint32_t i = 0; i < law::kGroupSize; ++i) {
      const uint32_t token = entrant.group * law::kGroupSize + i;
      if (!cut_.Keeps(keys[i], token)) continue;
      const uint32_t t = DistanceOf(keys[i]);
      // No token's L is below its group's owner's.
      if (t == law::kDead || law::SignedRaceKey(t, owner_log) > best_) continue;
      const uint64_t log = i == law::Owner(entrant.word) ? owner_log : law::OtherLog(a, TokenNoise(token));
      Offer(law::SignedRaceKey(t, log), {keys[i], token});
    }
  }

 private:
  uint32_t DistanceOf(uint32_t key) const { return law::Distance(law::KeyBits(key), scale_); }

  uint64_t TokenNoise(uint32_t token) const {
    const law::PhiloxWords words = law::NoiseWords(token / 2, law::kTokenTag, key_);
    return law::NegLog2(law::Uniform(law::WordOf(words, token)));
  }

  void Offer(int64_t race_key, Candidate candidate) {
    if (race_key > best_ || (race_key == best_ && candidate.token >= winner_.token)) return;
    best_ = race_key;
    winner_ = candidate;
  }

  const Row& row_;
  const law::Scale& scale_;
  const Cut& cut_;
  const law::DrawKey key_;
  int64_t best_ = std::numeric_limits<int64_t>::max();
  Candidate winner_ = {0, ~0u};
};

// Every group that has a kept token, with its bound.
void FillEntrants(const Row& row, const law::Scale& scale, const Cut& cut, const law::DrawKey& key,
                  std::vector<Entrant>* entrants) {
  entrants->clear();
  uint32_t pair = ~0u;
  law::PhiloxWords words = {};
  for (uint32_t group = 0; group < row.maxima.size(); ++group) {
    if (row.maxima[group] < cut.key) continue;
    const uint32_t t = law::Distance(law::KeyBits(row.maxima[group]), scale);
    if (t == law::kDead) continue;
    if (group / 2 != pair) {
      pair = group / 2;
      words = law::NoiseWords(pair, law::kGroupTag, key);
    }
    const uint64_t word = law::WordOf(words, group);
    entrants->push_back({(int64_t{t} << 6) + OwnerLogBound(word), word, group});
  }
}

}  // namespace

Candidate Draw(const Row& row, const law::Scale& scale, const Cut& cut, const law::DrawKey& key, Scratch* scratch) {
  std::vector<Entrant>& entrants = scratch->entrants;
  FillEntrants(row, scale, cut, key, &entrants);
  SORTITION_CHECK(!entrants.empty());
  const auto by_bound = [](const Entrant& a, const Entrant& b) { return a.bound < b.bound; };

  // Two groups that are likely to hold the winner set a mark that few others stay below: the one of the smallest bound,
  // and the one of the largest logit (whose owner may be masked, as the first's may).
  Race race(row, scale, cut, key);
  race.Enter(*std::min_element(entrants.begin(), entrants.end(), by_bound));
  race.Enter(*std::ranges::find(entrants, row.max_key, [&](const Entrant& e) { return row.maxima[e.group]; }));

  std::erase_if(entrants, [&](const Entrant& entrant) { return entrant.bound > race.best(); });
  std::sort(entrants.begin(), entrants.end(), by_bound);
  for (const Entrant& entrant : entrants) {
    if (entrant.bound > race.best()) break;
    race.Enter(entrant);
  }
  return race.winner();
}

}  // namespace sortition::kernels::cpu
