// Runs the race once more, to find the place of a given token.
#include "kernels/law/race_place.h"

#include <algorithm>
#include <limits>

#include "kernels/law/row_law.h"
#include "kernels/law/token_noise.h"

namespace sortition::law {
namespace {

using kernels::NoiseKey;
using kernels::TokenBits;

// A token's place in the order of the race: keys, and then ids, ascending.
struct Racer {
  int64_t key;
  uint32_t token;
  bool operator<(const Racer& other) const { return key != other.key ? key < other.key : token < other.token; }
};

const TokenBits* Find(std::span<const TokenBits> kept, uint32_t token) {
  const auto at = std::ranges::lower_bound(kept, token, {}, &TokenBits::token);
  return at != kept.end() && at->token == token ? &*at : nullptr;
}

}  // namespace

RacePlace RacePlaceReference(std::span<const TokenBits> kept, const DistanceOf& distance, const NoiseKey& noise,
                             uint32_t given) {
  const auto own = std::ranges::find(kept, given, &TokenBits::token);
  if (own == kept.end() || distance(own->bits) == kDead) return {};
  const DrawKey key = ToDrawKey(noise);
  const auto racer_of = [&](const TokenBits& token) {
    return Racer{SignedRaceKey(distance(token.bits), TokenNoise(key, token.token)), token.token};
  };
  const Racer mine = racer_of(*own);
  Racer best = mine;
  RacePlace place{1, 0};
  for (const TokenBits& token : kept) {
    if (distance(token.bits) == kDead) continue;
    const Racer other = racer_of(token);
    if (other < mine) ++place.rank;
    best = std::min(best, other);
  }
  place.lag = mine.key - best.key;
  return place;
}

RacePlace RacePlaceOf(std::span<const TokenBits> kept, const Scale& scale, const NoiseKey& noise, uint32_t given) {
  const TokenBits* const own = Find(kept, given);
  if (own == nullptr || Distance(own->bits, scale) == kDead) return {};
  const DrawKey key = ToDrawKey(noise);
  const Racer mine{SignedRaceKey(Distance(own->bits, scale), TokenNoise(key, given)), given};
  Racer best = mine;
  RacePlace place{1, 0};
  PhiloxWords pair = {};  // words of two groups
  uint32_t pair_index = ~0u;
  for (size_t begin = 0; begin < kept.size();) {
    const uint32_t group = kept[begin].token / kGroupSize;
    size_t end = begin;
    uint32_t nearest = kDead;
    for (; end < kept.size() && kept[end].token / kGroupSize == group; ++end) {
      nearest = std::min(nearest, Distance(kept[end].bits, scale));
    }
    const std::span<const TokenBits> tokens = kept.subspan(begin, end - begin);
    begin = end;
    if (nearest == kDead) continue;
    if (group / 2 != pair_index) {
      pair_index = group / 2;
      pair = NoiseWords(pair_index, kGroupTag, key);
    }
    const u64 word = WordOf(pair, group);
    const u64 a = NegLog2(Uniform(word));
    // No token of the group has a smaller key than this. The given token is `best`, or behind it.
    if (SignedRaceKey(nearest, OwnerLog(a)) > mine.key) continue;
    const uint32_t owner = group * kGroupSize + Owner(word);
    for (const TokenBits& token : tokens) {
      const uint32_t t = Distance(token.bits, scale);
      if (t == kDead) continue;
      const u64 log = token.token == owner ? OwnerLog(a) : [&] {
        const PhiloxWords words = NoiseWords(token.token / 2, kTokenTag, key);
        return OtherLog(a, NegLog2(Uniform(WordOf(words, token.token))));
      }();
      const Racer other{SignedRaceKey(t, log), token.token};
      if (other < mine) ++place.rank;
      best = std::min(best, other);
    }
  }
  place.lag = mine.key - best.key;
  return place;
}

float MarginOf(const RacePlace& place) {
  if (place.rank == 0) return std::numeric_limits<float>::infinity();
  return float(double(place.lag) * 0x1.62e42fefa39efp-33);
}

}  // namespace sortition::law
