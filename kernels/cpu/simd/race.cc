// The race's noise and promises.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/race.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
//
#include <bit>

#include "kernels/cpu/sent_from.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/law.inc"
//
#include "kernels/cpu/simd/load.inc"

HWY_BEFORE_NAMESPACE();
namespace sortition::kernels::cpu::HWY_NAMESPACE {
namespace {

struct Words {
  HWY_INLINE Words() {}
  HWY_INLINE Words(V32 lower, V32 upper) : low(lower), high(upper) {}

  V32 low, high;
};

// Number of vectors of words that are made at once: as the target's registers allow. A power of two.
constexpr size_t kAtOnce = SORTITION_X86_BITS == 512 ? 4 : 2;

// Makes the words of the indices first, first + 1, ... `first` is even.
HWY_INLINE void ConsecutiveWords(const NoiseSource& source, uint32_t first, Words (&words)[kAtOnce]) {
  const D64 d;
  V64 pairs[kAtOnce];
  for (size_t i = 0; i < kAtOnce; ++i) pairs[i] = hn::Add(hn::Iota(d, 0), hn::Set(d, (first + i * kLanes) / 2));
  NoiseLanes noise[kAtOnce];
  source.Words(pairs, noise);
  for (size_t i = 0; i < kAtOnce; ++i) words[i] = {Zip(noise[i].x, noise[i].z), Zip(noise[i].y, noise[i].w)};
}

// The word of each index.
HWY_INLINE Words WordsOf(const NoiseSource& source, V32 index) {
  const D32 d;
  const V32 pair = hn::ShiftRight<1>(index);
  NoiseLanes noise[2];
  source.Words({Wide(pair), Wide(OddToEven(pair))}, noise);
  const auto& [even, odd] = noise;
  const M32 second = hn::TestBit(index, hn::Set(d, 1u));
  return {hn::IfThenElse(second, Zip(even.z, odd.z), Zip(even.x, odd.x)),
          hn::IfThenElse(second, Zip(even.w, odd.w), Zip(even.y, odd.y))};
}

// Returns the promise (racers.h) of `s`, which is below 2^31. `octaves` are subtracted from its logarithm.
HWY_INLINE V32 Promise(V32 s, V32 t, uint32_t octaves) {
  const D32 d;
  const V32 log = hn::BitCast(d, hn::ConvertTo(DF32(), Signed(s)));
  return hn::Sub(hn::Set(d, kBestPromise + (octaves << 23)), hn::Add(log, hn::ShiftRight<3>(t)));
}

// log2 of positive numbers, within 1e-5.
HWY_INLINE VF32 AboutLog2(VF32 x) {
  const D32 d;
  const DF32 df;
  const V32 bits = hn::BitCast(d, x);
  const VF32 octaves = hn::ConvertTo(df, hn::Sub(Signed(hn::ShiftRight<23>(bits)), hn::Set(DI32(), 127)));
  const V32 mantissa = hn::Or(hn::And(bits, hn::Set(d, 0x7fffffu)), hn::Set(d, 0x3f800000u));
  const VF32 f = hn::Sub(Floats(mantissa), hn::Set(df, 1.0f));
  // The polynomial of degree 5 that is nearest to log2(1 + f) / f.
  VF32 p = hn::Set(df, -0.0345952f);
  for (const float c : {0.1464336f, -0.3033897f, 0.4693017f, -0.7204424f, 1.4426832f}) {
    p = hn::MulAdd(p, f, hn::Set(df, c));
  }
  return hn::MulAdd(p, f, octaves);
}

// Returns -log2(1 - U) of the upper words of random words, with a relative error below 2e-4. Adds lanes with U within
// 2^-16 of 0 or 1 to `*unsure`.
HWY_INLINE VF32 AboutNegLog2(V32 high, M32* unsure) {
  const D32 d;
  const DF32 df;
  const V32 low_end = hn::Set(d, 1u << 16);
  *unsure = hn::Or(*unsure, hn::Or(hn::Lt(high, low_end), hn::Lt(hn::Not(high), low_end)));
  constexpr float kUnit = 0x1p-31f;
  const VF32 u = hn::Mul(hn::ConvertTo(df, Signed(hn::ShiftRight<1>(high))), hn::Set(df, kUnit));
  const VF32 rest = hn::Mul(hn::ConvertTo(df, Signed(hn::ShiftRight<1>(hn::Not(high)))), hn::Set(df, kUnit));
  VF32 series = hn::MulAdd(u, hn::Set(df, 0.25f), hn::Set(df, 1.0f / 3));
  series = hn::MulAdd(series, u, hn::Set(df, 0.5f));
  series = hn::MulAdd(series, u, hn::Set(df, 1.0f));
  const VF32 small = hn::Mul(hn::Mul(series, u), hn::Set(df, 1.442695f));
  // Avoids the logarithm of 0: its result would be unused, but slow.
  const VF32 large = hn::Neg(AboutLog2(hn::Max(rest, hn::Set(df, kUnit))));
  return hn::IfThenElse(hn::Lt(u, hn::Set(df, 0x1p-4f)), small, large);
}

}  // namespace

uint32_t CountAhead(const TokenRacers& racers, int64_t race_key, uint32_t* near, uint32_t* near_count) {
  // In octaves: several times the error of the functions above and of conversions to floats.
  constexpr float kMargin = 0.001f;
  const D32 d;
  const DF32 df;
  const VF32 mine = hn::Set(df, float(double(race_key) * 0x1p-32));
  uint32_t ahead = 0;
  uint32_t listed = 0;
  for (uint32_t i = 0; i < racers.count; i += kLanes) {
    const V32 token = hn::LoadU(d, racers.token.data() + i);
    const V32 t = hn::LoadU(d, racers.t.data() + i);
    const V32 group_low = hn::LoadU(d, racers.group_low.data() + i);
    const M32 owner = hn::Eq(hn::And(hn::Xor(token, group_low), hn::Set(d, 63u)), hn::Zero(d));
    M32 unsure = hn::FirstN(d, 0);
    const VF32 group = AboutNegLog2(hn::LoadU(d, racers.group_high.data() + i), &unsure);
    M32 own_unsure = unsure;
    const VF32 own = AboutNegLog2(hn::LoadU(d, racers.high.data() + i), &own_unsure);
    unsure = hn::Or(unsure, hn::AndNot(owner, own_unsure));
    const VF32 all = hn::MulAdd(group, hn::Set(df, 0x1p-6f), hn::IfThenZeroElse(hn::RebindMask(df, owner), own));
    const VF32 lag = hn::Mul(hn::ConvertTo(df, Signed(hn::ShiftRight<3>(t))), hn::Set(df, 0x1p-23f));
    const VF32 behind = hn::Sub(hn::Add(lag, AboutLog2(hn::Max(all, hn::Set(df, 0x1p-60f)))), mine);
    M32 races = hn::Ne(t, hn::Set(d, law::kDead));
    if (i + kLanes > racers.count) races = hn::And(races, hn::FirstN(d, racers.count - i));
    const M32 above = hn::RebindMask(d, hn::Gt(behind, hn::Set(df, kMargin)));
    const M32 below = hn::RebindMask(d, hn::Lt(behind, hn::Set(df, -kMargin)));
    ahead += uint32_t(hn::CountTrue(d, hn::And(races, hn::AndNot(unsure, below))));
    const M32 open = hn::And(races, hn::Or(unsure, hn::Not(hn::Or(above, below))));
    listed += StoreWhere(open, CountFrom(i), near + listed);
  }
  *near_count = listed;
  return ahead;
}

void PromiseGroups(const RowView& row, uint32_t floor, const RowScale& row_scale, const law::DrawKey& key,
                   GroupRacers* racers) {
  const D32 d;
  uint32_t* const low = racers->low.Reserve(row.groups);
  uint32_t* const high = racers->high.Reserve(row.groups);
  uint32_t* const promise = racers->promise.Reserve(row.groups);
  const ScaleLanes scale(row_scale, TooSmall::kToRace);
  const NoiseSource source(law::kGroupTag, key);
  const V32 least = hn::Set(d, HWY_MAX(floor, row_scale.first_live_key));
  const uint32_t groups = row.groups;
  for (uint32_t group = 0; group < groups; group += kAtOnce * kLanes) {
    Words words[kAtOnce];
    ConsecutiveWords(source, group, words);
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t at = group + i * kLanes;
      const V32 keys = hn::LoadU(d, row.maxima + at);
      // The group's noise s has the unit 2^-24, half of the upper word 2^-31: seven octaves apart.
      const V32 t = DistanceOfKey(hn::Max(keys, scale.least_key), scale);
      const V32 all = Promise(hn::ShiftRight<1>(words[i].high), t, 7);
      hn::StoreU(words[i].low, d, low + at);
      hn::StoreU(words[i].high, d, high + at);
      hn::StoreU(hn::IfThenElseZero(AtLeast(keys, least), all), d, promise + at);
    }
  }
}

void EnterGroups(const RowView& row, const uint32_t* groups, uint32_t count, uint32_t needed, Candidate last,
                 const RowScale& row_scale, const GroupRacers& noise, TokenRacers* racers) {
  const D32 d;
  const ScaleLanes scale(row_scale, TooSmall::kToRace);
  const float least_live = SentFrom(row_scale.first_live_key);
  const VF32 no_end = hn::Set(DF32(), SentFrom(~0u));
  const V32 last_key = hn::Set(d, HWY_MAX(last.key(), row_scale.first_live_key));
  const V32 dead = hn::Set(d, law::kDead);
  uint32_t* const tokens = racers->token.data();
  WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    const uint32_t begin = racers->count;
    uint32_t end = begin;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t group = groups[i];
      const int64_t spare = int64_t{noise.promise.data()[group]} - needed;
      if (spare < 0) continue;
      // No token of the group has less noise than the group. A unit of a promise is eight units of distance.
      const float max = std::bit_cast<float>(law::KeyBits(row.maxima[group]));
      const float least = HWY_MAX(least_live, LogitBelow(max, float(spare + 2) * 8, row_scale));
      end += ListTokensBetween<kType>(row, group, hn::Set(DF32(), least), no_end, Expected::kFew, tokens + end);
    }
    racers->count = end;
    for (uint32_t i = begin; i < end; i += kLanes) {
      const V32 token = hn::LoadU(d, tokens + i);
      const V32 keys = KeyOf(GatherBits<kType>(row, token, end - i));
      const M32 tie = hn::Eq(keys, hn::Set(d, last.key()));
      const M32 after = hn::Or(hn::Lt(keys, last_key), hn::And(tie, hn::Gt(token, hn::Set(d, last.token()))));
      const V32 t = DistanceOfKey(hn::Max(keys, scale.least_key), scale);
      hn::StoreU(hn::IfThenElse(after, dead, t), d, racers->t.data() + i);
      const VI32 group = Signed(hn::Min(hn::ShiftRight<6>(token), hn::Set(d, row.groups - 1)));
      hn::StoreU(hn::GatherIndex(d, noise.low.data(), group), d, racers->group_low.data() + i);
      hn::StoreU(hn::GatherIndex(d, noise.high.data(), group), d, racers->group_high.data() + i);
    }
  });
}

void EnterCandidates(const Candidate* candidates, uint32_t count, const RowScale& row_scale, const law::DrawKey& key,
                     TokenRacers* racers) {
  const D32 d;
  const D64 d64;
  const uint32_t begin = racers->count;
  racers->count = begin + count;
  const ScaleLanes scale(row_scale, TooSmall::kToRace);
  const NoiseSource source(law::kGroupTag, key);
  const V32 first_live = hn::Set(d, row_scale.first_live_key);
  for (uint32_t i = 0; i < count; i += kLanes) {
    const auto* const ranks = reinterpret_cast<const uint64_t*>(candidates + i);
    const V32 first = Narrow(hn::LoadU(d64, ranks));
    const V32 second = Narrow(hn::LoadU(d64, ranks + kLanes / 2));
    const V32 keys = hn::ConcatOdd(d, second, first);
    const V32 tokens = hn::Not(hn::ConcatEven(d, second, first));
    const V32 t = DistanceOfKey(hn::Max(keys, scale.least_key), scale);
    const Words words = WordsOf(source, hn::ShiftRight<6>(tokens));
    hn::StoreU(tokens, d, racers->token.data() + begin + i);
    hn::StoreU(hn::IfThenElse(AtLeast(keys, first_live), t, hn::Set(d, law::kDead)), d, racers->t.data() + begin + i);
    hn::StoreU(words.low, d, racers->group_low.data() + begin + i);
    hn::StoreU(words.high, d, racers->group_high.data() + begin + i);
  }
}

void PromiseTokens(const law::DrawKey& key, TokenRacers* racers) {
  const D32 d;
  const NoiseSource source(law::kTokenTag, key);
  for (uint32_t i = 0; i < racers->count; i += kLanes) {
    const V32 token = hn::LoadU(d, racers->token.data() + i);
    const V32 t = hn::LoadU(d, racers->t.data() + i);
    const V32 group_low = hn::LoadU(d, racers->group_low.data() + i);
    const V32 group_high = hn::LoadU(d, racers->group_high.data() + i);
    const Words words = WordsOf(source, token);
    const M32 owner = hn::Eq(hn::And(hn::Xor(token, group_low), hn::Set(d, 63u)), hn::Zero(d));
    const V32 own = hn::IfThenZeroElse(owner, hn::ShiftRight<2>(words.high));
    const V32 all = Promise(hn::Add(hn::ShiftRight<8>(group_high), own), t, 0);
    hn::StoreU(words.low, d, racers->low.data() + i);
    hn::StoreU(words.high, d, racers->high.data() + i);
    hn::StoreU(hn::IfThenElseZero(hn::Ne(t, hn::Set(d, law::kDead)), all), d, racers->promise.data() + i);
  }
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
