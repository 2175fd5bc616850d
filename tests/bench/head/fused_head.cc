// Bounds on race keys and order decide which tokens are computed.
#include "tests/bench/head/fused_head.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>

#include "kernels/check.h"
#include "kernels/law/row_law.h"
#include "kernels/law/token_noise.h"

namespace sortition::bench {
namespace {

using kernels::RowParameters;
using namespace law;

u32 KeyOfLogit(float logit) { return Key(Canonical(std::bit_cast<u32>(logit))); }

// The order of tokens: greater keys first, then lower ids.
struct Ranked {
  u32 key;
  u32 token;
  bool operator<(const Ranked& other) const { return key != other.key ? key > other.key : token < other.token; }
};

// Computes logits exactly, each once.
class Computed {
 public:
  explicit Computed(const LazyRow& row) : row_(row) {}
  u32 KeyOf(u32 token) {
    const auto [at, is_new] = keys_.try_emplace(token);
    if (is_new) at->second = KeyOfLogit(row_.exact(token));
    return at->second;
  }
  u32 count() const { return u32(keys_.size()); }

 private:
  const LazyRow& row_;
  std::map<u32, u32> keys_;
};

// The result of a first pass: each token's key lies in [low, high].
struct Bounds {
  std::vector<u32> low;
  std::vector<u32> high;
};

// A filter as a place in the order: tokens ranked before or at it are kept.
Ranked LastKept(const Bounds& bounds, const RowParameters& parameters, u32 max_key, Computed* computed) {
  const auto tokens = u32(bounds.high.size());
  if (parameters.top_k != 0 && parameters.top_k < tokens) {
    std::vector<u32> lows = bounds.low;
    std::ranges::nth_element(lows, lows.begin() + ptrdiff_t(parameters.top_k) - 1, std::greater());
    const u32 least = lows[parameters.top_k - 1];
    std::vector<Ranked> first;
    for (u32 i = 0; i < tokens; ++i) {
      if (bounds.high[i] >= least) first.push_back({computed->KeyOf(i), i});
    }
    std::nth_element(first.begin(), first.begin() + ptrdiff_t(parameters.top_k) - 1, first.end());
    return first[parameters.top_k - 1];
  }
  if (parameters.min_p_distance == RowParameters::kMinPOff) return {1, ~0u};
  // The smallest key within the bound, by bisection: distances never rise with the key.
  const Scale scale = ScaleAt(parameters, KeyBits(max_key));
  u32 low = 1;
  u32 high = max_key;
  while (low < high) {
    const u32 middle = low + (high - low) / 2;
    const u32 t = Distance(KeyBits(middle), scale);
    if (t != kDead && t <= parameters.min_p_distance) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return {low, ~0u};
}

int64_t RaceKeyOf(u32 key, u32 token, const Scale& scale, const DrawKey& draw) {
  const u32 t = Distance(KeyBits(key), scale);
  return t == kDead ? INT64_MAX : SignedRaceKey(t, TokenNoise(draw, token));
}

Drawn Draw(const Bounds& bounds, const RowParameters& parameters, const kernels::NoiseKey& noise, Computed* computed) {
  const auto tokens = u32(bounds.high.size());
  // The first token of all has an upper bound that reaches the largest lower bound.
  const u32 largest_low = *std::ranges::max_element(bounds.low);
  Ranked first = {0, 0};
  for (u32 i = 0; i < tokens; ++i) {
    if (bounds.high[i] < largest_low) continue;
    const Ranked one = {computed->KeyOf(i), i};
    if (first.key == 0 || one < first) first = one;
  }
  if (parameters.greedy) return {first.token, computed->count()};
  const Ranked last = LastKept(bounds, parameters, first.key, computed);
  const Scale scale = ScaleAt(parameters, KeyBits(first.key));
  const DrawKey draw = ToDrawKey(noise);
  // The winner's race key is at most this: the smallest upper bound of a certainly kept token.
  int64_t most = INT64_MAX;
  for (u32 i = 0; i < tokens; ++i) {
    const Ranked worst = {bounds.low[i], i};
    if (!(last < worst)) most = std::min(most, RaceKeyOf(worst.key, i, scale, draw));
  }
  int64_t least = INT64_MAX;
  u32 winner = first.token;
  for (u32 i = 0; i < tokens; ++i) {
    const u32 high = std::min(bounds.high[i], first.key);
    if (last < Ranked{high, i} || RaceKeyOf(high, i, scale, draw) > most) continue;
    const Ranked one = {computed->KeyOf(i), i};
    const int64_t race_key = RaceKeyOf(one.key, i, scale, draw);
    if (last < one || race_key >= least) continue;
    least = race_key;
    winner = i;
  }
  return {winner, computed->count()};
}

}  // namespace

Drawn DrawScreened(const LazyRow& row, const RowParameters& parameters, const kernels::NoiseKey& noise) {
  Bounds bounds;
  for (u32 i = 0; i < row.vocabulary; ++i) {
    bounds.low.push_back(KeyOfLogit(row.low[i]));
    bounds.high.push_back(KeyOfLogit(row.high[i]));
  }
  Computed computed(row);
  return Draw(bounds, parameters, noise, &computed);
}

Drawn DrawFromMaxima(const LazyRow& row, const RowParameters& parameters, const kernels::NoiseKey& noise) {
  // A group is computed as a whole. Before, only its maximum is known: no token is above it, and some token reaches it.
  const u32 groups = (row.vocabulary + kGroupSize - 1) / kGroupSize;
  std::vector<u32> maxima(groups);
  for (u32 i = 0; i < row.vocabulary; ++i) {
    maxima[i / kGroupSize] = std::max(maxima[i / kGroupSize], KeyOfLogit(row.exact(i)));
  }
  const u32 max_key = *std::ranges::max_element(maxima);
  std::vector<bool> is_computed(groups);
  std::vector<Ranked> known;
  u32 computed = 0;
  const auto compute = [&](u32 group) {
    if (is_computed[group]) return;
    is_computed[group] = true;
    for (u32 i = group * kGroupSize; i < std::min((group + 1) * kGroupSize, row.vocabulary); ++i) {
      known.push_back({KeyOfLogit(row.exact(i)), i});
      ++computed;
    }
  };
  const auto compute_reaching = [&](u32 key) {
    for (u32 group = 0; group < groups; ++group) {
      if (maxima[group] >= key) compute(group);
    }
  };
  if (parameters.greedy) {
    compute_reaching(max_key);
    return {std::min_element(known.begin(), known.end())->token, computed};
  }
  const Scale scale = ScaleAt(parameters, KeyBits(max_key));
  const DrawKey draw = ToDrawKey(noise);
  Ranked last = {1, ~0u};
  if (parameters.top_k != 0 && parameters.top_k < row.vocabulary) {
    // The top_k largest maxima belong to top_k tokens, one of each group.
    std::vector<u32> ordered = maxima;
    std::ranges::sort(ordered, std::greater());
    compute_reaching(ordered[std::min(parameters.top_k, groups) - 1]);
    SORTITION_CHECK(known.size() >= parameters.top_k);
    std::sort(known.begin(), known.end());
    last = known[parameters.top_k - 1];
  } else {
    Computed none(row);
    last = LastKept({{}, {}}, parameters, max_key, &none);
  }
  // Groups by the bound of their race keys: the maximum with the noise of the group's owner.
  std::vector<std::pair<int64_t, u32>> races;
  for (u32 group = 0; group < groups; ++group) {
    const u32 t = Distance(KeyBits(maxima[group]), scale);
    if (t == kDead || maxima[group] < last.key) continue;
    const u64 word = WordOf(NoiseWords(group / 2, kGroupTag, draw), group);
    races.emplace_back(SignedRaceKey(t, OwnerLog(NegLog2(Uniform(word)))), group);
  }
  std::ranges::sort(races);
  int64_t least = INT64_MAX;
  u32 winner = 0;
  const auto race = [&](const Ranked& one) {
    const int64_t race_key = RaceKeyOf(one.key, one.token, scale, draw);
    if (last < one || race_key == INT64_MAX) return;
    if (race_key > least || (race_key == least && one.token > winner)) return;
    least = race_key;
    winner = one.token;
  };
  for (const Ranked& one : known) race(one);
  for (const auto& [bound, group] : races) {
    if (bound > least) break;
    const size_t before = known.size();
    compute(group);
    for (size_t i = before; i < known.size(); ++i) race(known[i]);
  }
  return {winner, computed};
}

}  // namespace sortition::bench
