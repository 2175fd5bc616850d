// The two 64-bit arithmetics, native and pair, give the same law.
#include <gtest/gtest.h>

#include "kernels/law/law.h"
#include "kernels/stage.h"
#include "tests/law/inputs.h"
#include "tests/law/pair_law.h"
#include "tests/support/scale.h"

namespace sortition::law::pair_test {
namespace {

namespace pair = law_pair;

pair::u64 ToPair(uint64_t x) { return pair::Make64(uint32_t(x), uint32_t(x >> 32)); }
uint64_t FromPair(pair::u64 x) { return uint64_t{x.high} << 32 | x.low; }

TEST(Pair, PrimitivesEqualNative) {
  Inputs inputs(1);
  for (uint64_t n = testing::Scaled(4'000'000); n > 0; --n) {
    const uint64_t a = inputs.LongWord();
    const uint64_t b = inputs.Below(8) == 0 ? a : inputs.LongWord();
    const uint32_t shift = inputs.Below(64);
    ASSERT_EQ(FromPair(pair::Add64(ToPair(a), ToPair(b))), Add64(a, b)) << a << " " << b;
    ASSERT_EQ(FromPair(pair::Sub64(ToPair(a), ToPair(b))), Sub64(a, b)) << a << " " << b;
    ASSERT_EQ(FromPair(pair::AddSigned64(ToPair(a), int32_t(uint32_t(b)))), AddSigned64(a, int32_t(uint32_t(b))));
    ASSERT_EQ(pair::Less64(ToPair(a), ToPair(b)), Less64(a, b)) << a << " " << b;
    ASSERT_EQ(pair::SignedLess64(ToPair(a), ToPair(b)), SignedLess64(a, b)) << a << " " << b;
    ASSERT_EQ(FromPair(pair::Mul32(uint32_t(a), uint32_t(b))), Mul32(uint32_t(a), uint32_t(b)));
    ASSERT_EQ(FromPair(pair::ShiftLeft64(ToPair(a), shift)), ShiftLeft64(a, shift)) << a << " " << shift;
    ASSERT_EQ(FromPair(pair::ShiftRight64(ToPair(a), shift)), ShiftRight64(a, shift)) << a << " " << shift;
  }
}

TEST(Pair, SoftFloatEqualsNative) {
  Inputs inputs(2);
  for (uint64_t n = testing::Scaled(4'000'000); n > 0; --n) {
    const uint32_t a = inputs.Float(67, 142);
    const uint32_t b = inputs.Float(67, 142);
    ASSERT_EQ(pair::AddF32(a, b), AddF32(a, b)) << a << " " << b;
    ASSERT_EQ(pair::MultiplyF32(a, b), MultiplyF32(a, b)) << a << " " << b;
    const uint32_t r = inputs.Float(120, 133) & 0x7fffffff;
    ASSERT_EQ(pair::Changed(Canonical(a), Canonical(b), r, a & 0x7fffffff, b),
              Changed(Canonical(a), Canonical(b), r, a & 0x7fffffff, b));
  }
}

TEST(Pair, DistancesAndWeightsEqualNative) {
  Inputs inputs(3);
  for (uint64_t n = testing::Scaled(4'000'000); n > 0; --n) {
    const uint32_t multiplier = (1u << 30) | (inputs.Word() & 0x3fffffff);
    const int32_t exponent = int32_t(inputs.Below(15)) - 7;
    const uint32_t window = uint32_t(132 - exponent);
    uint32_t max = Canonical(inputs.Float(60, 142));
    uint32_t x = Canonical(inputs.Float(60, 142));
    if (Key(x) > Key(max)) std::swap(x, max);
    if (max == kMaskedBits) continue;
    const Scale scale = MakeScale(max, multiplier, exponent, window);
    const pair::Scale pair_scale = pair::MakeScale(max, multiplier, exponent, window);
    const uint32_t t = Distance(x, scale);
    ASSERT_EQ(pair::Distance(x, pair_scale), t) << x << " " << max << " " << multiplier << " " << exponent;
    ASSERT_EQ(FromPair(pair::Weight(t)), Weight(t)) << t;
    const uint32_t any = inputs.Word();
    ASSERT_EQ(FromPair(pair::Weight(any)), Weight(any)) << any;
    const uint64_t sum = inputs.LongWord();
    ASSERT_EQ(FromPair(LeastSum(pair::TopPThreshold(ToPair(sum), any))), LeastSum(TopPThreshold(sum, any)))
        << sum << " " << any;
  }
}

TEST(Pair, RaceEqualsNative) {
  Inputs inputs(4);
  for (uint64_t n = testing::Scaled(2'000'000); n > 0; --n) {
    const DrawKey key = {inputs.Word(), inputs.Word(), inputs.Word(), inputs.Word()};
    const uint32_t index = inputs.Below(1u << 20);
    const uint64_t word = WordOf(NoiseWords(index / 2, kTokenTag, key), index);
    const pair::DrawKey pair_key = {key.seed_low, key.seed_high, key.position, key.stream};
    ASSERT_EQ(FromPair(pair::WordOf(pair::NoiseWords(index / 2, kTokenTag, pair_key), index)), word);

    const uint64_t other = inputs.LongWord();
    ASSERT_EQ(pair::Owner(ToPair(other)), Owner(other));
    const uint64_t r = Uniform(other);
    ASSERT_EQ(FromPair(pair::Uniform(ToPair(other))), r);
    const uint64_t a = NegLog2(r);
    const uint64_t b = NegLog2(Uniform(word));
    ASSERT_EQ(FromPair(pair::NegLog2(ToPair(r))), a) << r;
    ASSERT_EQ(FromPair(pair::OwnerLog(ToPair(a))), OwnerLog(a)) << a;
    ASSERT_EQ(FromPair(pair::OtherLog(ToPair(a), ToPair(b))), OtherLog(a, b)) << a << " " << b;
    const uint32_t t = inputs.Below(kDeadFromDistance);
    ASSERT_EQ(FromPair(pair::RaceKey(t, ToPair(OwnerLog(a)))), RaceKey(t, OwnerLog(a)));
    const uint64_t x = other | 1;
    ASSERT_EQ(FromPair(pair::Log2Raw(ToPair(x))), Log2Raw(x)) << x;
  }
}

TEST(Pair, DivisionAndWideProductsEqualNative) {
  Inputs inputs(6);
  for (uint64_t n = testing::Scaled(1'000'000); n > 0; --n) {
    const uint64_t a = inputs.LongWord();
    const uint32_t b = inputs.Word() >> inputs.Below(32);
    ASSERT_EQ(FromPair(pair::Mul64By32(ToPair(a), b)), Mul64By32(a, b)) << a << " " << b;
    ASSERT_EQ(FromPair(pair::MulHigh64By32(ToPair(a), b)), MulHigh64By32(a, b)) << a << " " << b;
    if (b == 0) continue;
    ASSERT_EQ(FromPair(pair::Divide64By32(ToPair(a), b)), Divide64By32(a, b)) << a << " " << b;
  }
}

TEST(Pair, ChainFunctionsEqualNative) {
  Inputs inputs(7);
  for (uint64_t n = testing::Scaled(300'000); n > 0; --n) {
    const uint32_t t = inputs.Word();
    const uint32_t q = inputs.Word();
    const uint32_t count = 2 + inputs.Below(1u << 20);
    const uint64_t sum = (uint64_t{1} << 44) + inputs.LongWord() % (uint64_t{count} << 44);
    const uint64_t moment = inputs.LongWord() >> 4;
    const uint64_t square = (uint64_t{1} << 42) + (inputs.LongWord() >> 12);
    const uint64_t mu = inputs.Below(2) == 0 ? inputs.LongWord() >> 30 : ~(inputs.LongWord() >> 30);
    ASSERT_EQ(FromPair(pair::Moment(t)), Moment(t)) << t;
    ASSERT_EQ(FromPair(pair::SquaredWeight(t)), SquaredWeight(t)) << t;
    ASSERT_EQ(FromPair(pair::EntropyTerm(t, q >> 3)), EntropyTerm(t, q >> 3)) << t;
    for (uint32_t kind = 0; kind < kernels::kStageKinds; ++kind) {
      const uint32_t what = SumsOf(kind);
      const StageSums sums = {count, what == kSumLevels ? mu : sum,
                              what == kSumLevels || what == kSumSquares ? square : moment};
      const pair::StageSums pair_sums = {count, ToPair(sums.first), ToPair(sums.second)};
      ASSERT_EQ(pair::BoundOf({kind, q, q, 0, 0}, pair_sums, ToPair(mu)).farthest,
                BoundOf({kind, q, q, 0, 0}, sums, mu).farthest)
          << kind << " " << q << " " << sums.first << " " << sums.second;
    }
    ASSERT_EQ(FromPair(LeastSum(pair::TopHThreshold(ToPair(moment), q))), LeastSum(TopHThreshold(moment, q))) << moment;
    const uint32_t step = uint32_t(square);
    const uint32_t rank = 1 + t % 255;
    const uint64_t decay = DecayOf(rank, step);
    ASSERT_EQ(FromPair(pair::DecayOf(rank, step)), decay) << rank << " " << step;
    const Scale unit = {0x5c551d95, 133 + t % 11, 28, 0};
    ASSERT_EQ(pair::MinKTokens(ToPair(decay), ToPair(count), q, {unit.multiplier, unit.e0, unit.shift, unit.max}),
              MinKTokens(decay, count, q, unit));
    const uint32_t temperature = DynamicTemperature(count, sum, moment, q >> 8, t >> 8, 1 + (q & 0xfffff));
    ASSERT_EQ(pair::DynamicTemperature(count, ToPair(sum), ToPair(moment), q >> 8, t >> 8, 1 + (q & 0xfffff)),
              temperature);
    const Temperature constants = TemperatureOf(temperature);
    const pair::Temperature pair_constants = pair::TemperatureOf(temperature);
    ASSERT_EQ(pair_constants.multiplier, constants.multiplier) << temperature;
    ASSERT_EQ(pair_constants.exponent, constants.exponent) << temperature;
    ASSERT_EQ(pair_constants.window, constants.window) << temperature;
    ASSERT_EQ(pair::InverseTemperature(pair_constants), InverseTemperature(constants)) << temperature;
    ASSERT_EQ(FromPair(pair::NextMu(ToPair(mu), ToPair(sum), t >> 1, q >> 1, q >> 2)),
              NextMu(mu, sum, t >> 1, q >> 1, q >> 2));
    const uint32_t s = q >> inputs.Below(32);
    ASSERT_EQ(pair::MirostatTokens(s, ToPair(mu), count), MirostatTokens(s, mu, count)) << s << " " << mu;
    const Share share = ShareOf(sum);
    const pair::Share pair_share = pair::ShareOf(ToPair(sum));
    const uint32_t p = ProbabilityOf(Weight(t), share);
    ASSERT_EQ(pair::ProbabilityOf(pair::Weight(t), pair_share), p) << sum << " " << t;
    ASSERT_EQ(pair::AdaptedDistance(p, q), AdaptedDistance(p, q)) << p << " " << q;
    ASSERT_EQ(pair::AdaptedTarget(q, t), AdaptedTarget(q, t));
  }
}

TEST(Pair, StagesEqualNative) {
  Inputs inputs(8);
  for (uint64_t n = testing::Scaled(300'000); n > 0; --n) {
    const StageWords stage = {inputs.Below(kernels::kStageKinds), 1 + inputs.Below(1u << 30), inputs.Word(),
                              2 + inputs.Below(999), 0};
    const pair::StageWords pair_stage = {stage.kind, stage.a, stage.b, stage.c, stage.d};
    ASSERT_EQ(pair::SumsOf(stage.kind), SumsOf(stage.kind));
    ASSERT_EQ(pair::CutOf(stage.kind), CutOf(stage.kind));
    ASSERT_EQ(pair::FirstCount(pair_stage), FirstCount(stage));
    const uint32_t t = inputs.Below(kDeadFromDistance);
    const uint32_t next = t + inputs.Below(kDeadFromDistance - t);
    const Scale unit = MakeScale(0x41200000, kUnitMultiplier, kUnitExponent, kUnitWindow);
    const pair::Scale pair_unit = pair::MakeScale(0x41200000, kUnitMultiplier, kUnitExponent, kUnitWindow);
    const uint32_t bits = Canonical(inputs.Float(120, 129));
    StageSums sums = WithDistance(WithLevel(NoSums(), bits, unit), SumsOf(stage.kind), t);
    pair::StageSums pair_sums =
        pair::WithDistance(pair::WithLevel(pair::NoSums(), bits, pair_unit), pair::SumsOf(stage.kind), t);
    if (SumsOf(stage.kind) == kSumFallOff) {
      sums = WithStep(NoSums(), inputs.Below(1000), t, next);
      pair_sums = {0, ToPair(sums.first), ToPair(sums.second)};
    }
    ASSERT_EQ(FromPair(pair_sums.first), sums.first) << stage.kind;
    ASSERT_EQ(FromPair(pair_sums.second), sums.second) << stage.kind;
    const uint64_t state = inputs.LongWord() >> 30;
    if (CutOf(stage.kind) == kCutFallOff) {
      ASSERT_EQ(pair::MirostatCount(pair_sums, ToPair(state), 50257), MirostatCount(sums, state, 50257));
    }
    sums = {2 + inputs.Below(1u << 20), (uint64_t{1} << 44) + (inputs.LongWord() >> 1),
            (uint64_t{1} << 42) + (inputs.LongWord() >> 12)};
    pair_sums = {sums.count, ToPair(sums.first), ToPair(sums.second)};
    ASSERT_EQ(pair::BoundOf(pair_stage, pair_sums, ToPair(state)).farthest, BoundOf(stage, sums, state).farthest);
    ASSERT_EQ(FromPair(LeastSum(pair::ThresholdOf(pair_stage, pair_sums))), LeastSum(ThresholdOf(stage, sums)));
    ASSERT_EQ(pair::TypicalWindow(t, next).bound.farthest, TypicalWindow(t, next).bound.farthest);
    const Shape shape = Reshaped(stage, PlainShape(0x41200000), 0x41200000, sums, state);
    const pair::Shape pair_shape =
        pair::Reshaped(pair_stage, pair::PlainShape(0x41200000), 0x41200000, pair_sums, ToPair(state));
    if (stage.kind != kStageTemperature) {
      ASSERT_EQ(pair::ShapedDistance(bits, pair_shape), ShapedDistance(bits, shape)) << stage.kind;
    }
    ASSERT_EQ(FromPair(pair::StateAfter(pair_stage, pair_shape, t, ToPair(sums.first), ToPair(state))),
              StateAfter(stage, shape, t, sums.first, state));
  }
}

TEST(Pair, EntropyAndVerificationEqualNative) {
  Inputs inputs(5);
  for (uint64_t n = testing::Scaled(2'000'000); n > 0; --n) {
    const uint32_t t = inputs.Below(46u << 26);
    const uint64_t weight = Weight(t);
    ASSERT_EQ(FromPair(pair::Surplus(ToPair(weight), t)), Surplus(weight, t)) << t;
    const uint32_t q = inputs.Below(0x3f800001);
    const uint64_t sum = inputs.LongWord();
    const uint64_t word = inputs.LongWord();
    ASSERT_EQ(pair::ProbabilityUnits(q), ProbabilityUnits(q)) << q;
    const uint64_t draft = DraftWeight(q, sum);
    ASSERT_EQ(FromPair(pair::DraftWeight(q, ToPair(sum))), draft) << q << " " << sum;
    ASSERT_EQ(FromPair(pair::MulHigh64(ToPair(word), ToPair(sum))), MulHigh64(word, sum)) << word << " " << sum;
    ASSERT_EQ(pair::Accepts(ToPair(word), ToPair(weight), ToPair(draft)), Accepts(word, weight, draft));
    const uint64_t residual = Residual(sum, draft);
    ASSERT_EQ(FromPair(pair::Residual(ToPair(sum), ToPair(draft))), residual);
    if (residual == 0) continue;
    ASSERT_EQ(FromPair(pair::ResidualRaceKey(ToPair(residual), ToPair(word))), ResidualRaceKey(residual, word));
  }
}

}  // namespace
}  // namespace sortition::law::pair_test
