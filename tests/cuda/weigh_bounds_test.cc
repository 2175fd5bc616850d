// Bounds on sums of weights hold, and are met: one that is a unit tighter fails here. Bounds on noise hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/law/parameters.h"
#include "tests/cuda/emulated_batch.h"
#include "tests/support/scale.h"
// The kernels see the names of the built-ins.
#include "tests/cuda/emulator/built_ins.h"
// They come after them.
#include "kernels/cuda/answer.cuh"
#include "kernels/cuda/noise.cuh"
#include "kernels/cuda/sums.cuh"

namespace sortition::kernels::cuda::weigh_bounds_test {
namespace {

// A row of groups, f32, in which the tokens below `level` are bounded by the groups that do not reach it.
class WeighBounds : public ::testing::Test {
 protected:
  WeighBounds() : logits_(100 * kGroupSize) { law::Compile({.temperature = 0}, &parameters_); }

  struct Found {
    u64 below;  // the bounded groups' weights
    SumBounds bounds;
    SplitSum others;
    SplitSum expected_others;
  };

  // Bounds the groups below `level` on the emulator, and sums them here.
  Found Run(float level_logit, u32 winner_token) {
    RowRequest request;
    request.logits = logits_.data();
    request.live_vocabulary = u32(logits_.size());
    request.parameters = &parameters_;
    request.edits = edits_;
    testing::EmulatedBatch batch;
    batch.AddRow(request);
    batch.Run(1, ++seed_);  // reads the row
    const BatchView view = batch.View(1);
    const u32 level = KeyOf(level_logit);
    const u64 winner = RankOf(KeyOf(logits_[winner_token]), winner_token);
    Found found = {};
    const testing::emulator::LaunchOptions options = {.threads = kThreads, .seed = ++seed_};
    testing::emulator::Launch(options, [&] {
      OpenInput(view);
      const Row row(view, 0);
      const View changed = OpenView(row, false);
      const Scale scale = ScaleOf(OnChip().input, KeyOf(0));
      const u64 maxima = WeighMaxima(row, changed, 1, level, scale);
      u16* const list = row.group_list();
      const u32 count = ListGroups(row, list, [&](u32 group) { return changed.maxima[group] >= level; });
      const SplitSum others = WeighGroups(row, changed, list, count, 1, winner, scale);
      if (Thread() == 0) {
        found.bounds = BoundsOf(0, maxima);
        found.others = others;
      }
    });
    Expect(level, winner, &found);
    return found;
  }

  std::vector<float> logits_;  // 0 at most
  std::vector<LogitEdit> edits_;

 private:
  static u32 KeyOf(float logit) { return Key(Canonical(__float_as_uint(logit))); }

  void Expect(u32 level, u64 winner, Found* found) {
    const Scale scale = MakeScale(0, parameters_.multiplier, parameters_.exponent, parameters_.window);
    std::vector<u32> keys(logits_.size());
    std::vector<bool> is_edited(logits_.size());
    for (u32 id = 0; id < keys.size(); ++id) keys[id] = KeyOf(logits_[id]);
    for (const LogitEdit& edit : edits_) {
      const bool is_banned = (edit.flags & LogitEdit::kBanned) != 0;
      keys[edit.token] = is_banned ? 0 : KeyOf(logits_[edit.token] + __uint_as_float(edit.penalty));
      is_edited[edit.token] = true;
    }
    for (u32 first = 0; first < keys.size(); first += kGroupSize) {
      u32 largest = 0;
      for (u32 id = first; id < first + kGroupSize; ++id) largest = is_edited[id] ? largest : max(largest, keys[id]);
      for (u32 id = first; id < first + kGroupSize; ++id) {
        const u64 weight = keys[id] == 0 ? 0 : WeightOf(keys[id], scale);
        if (!is_edited[id] && largest < level) {
          found->below += weight;
          continue;
        }
        found->expected_others.all += weight;
        if (RankOf(keys[id], id) > winner) found->expected_others.before += weight;
      }
    }
    EXPECT_LE(found->bounds.low, found->below);
    EXPECT_GE(found->bounds.high, found->below);
    EXPECT_EQ(found->others.all, found->expected_others.all);
    EXPECT_EQ(found->others.before, found->expected_others.before);
  }

  RowParameters parameters_;
  u64 seed_ = 0;
};

TEST_F(WeighBounds, OneTokenAGroupMeetsTheLower) {
  std::fill(logits_.begin(), logits_.end(), -200.0f);
  for (u32 group = 0; group < 100; ++group) logits_[65 * (group / 2)] = -0.01f * float(group);
  const Found found = Run(-0.5f, 65);
  EXPECT_GT(found.below, 0u);
  EXPECT_EQ(found.bounds.low, found.below);
}

TEST_F(WeighBounds, EqualTokensMeetTheUpper) {
  for (u32 id = 0; id < logits_.size(); ++id) logits_[id] = -0.01f * float(id / kGroupSize);
  const Found found = Run(-0.5f, 65);
  EXPECT_GT(found.below, 0u);
  EXPECT_EQ(found.bounds.high, found.below);
}

// An edited token is no part of its group, and its group may be below the level.
TEST_F(WeighBounds, RandomRowsAreWithin) {
  std::mt19937_64 random(5);
  for (u64 n = 0; n < testing::Scaled(60); ++n) {
    for (float& logit : logits_) logit = -float(random() % 3000) / 1000;
    edits_.clear();
    for (u32 id = u32(random() % 64); n % 2 == 0 && id < logits_.size(); id += 1 + u32(random() % 200)) {
      edits_.push_back({.token = id,
                        .flags = random() % 4 == 0 ? u32{LogitEdit::kBanned} : 0,
                        .penalty = __float_as_uint(-float(1 + random() % 4))});
    }
    Run(-0.02f, u32(random() % logits_.size()));
  }
}

// Words of every octave, in steps and at its ends.
TEST(NoiseBound, IsAtMostTheNoise) {
  std::mt19937_64 random(6);
  u32 farthest = 0;
  const auto expect_bound = [&](u64 word) {
    const u64 a = NegLog2(Uniform(word));
    const u32 noise = BoundOf(i64(OwnerLog(a)));
    ASSERT_LE(NoiseBound(word), noise) << std::hex << word;
    if (word >= u64{1} << 48 && word < u64{1} << 61) farthest = max(farthest, noise - NoiseBound(word));
    const u64 b = NegLog2(Uniform(random()));
    ASSERT_LE(NoiseBound(word), BoundOf(i64(OtherLog(a, b)))) << std::hex << word;
    // A lag that is rounded down apart.
    const i64 lag = i64(Lag(u32(random() % kDeadFromDistance))) + i64(random() % 64);
    ASSERT_LE(Behind(NoiseBound(word), lag), BoundOf(lag + i64(OwnerLog(a)))) << std::hex << word << " " << lag;
  };
  for (u32 octave = 0; octave < 64; ++octave) {
    const u64 first = u64{1} << octave;
    constexpr u64 kSteps = 1 << 14;
    for (u64 step = 0; step < kSteps; ++step) {
      expect_bound(first + (octave < 14 ? step % first : (first >> 14) * step + random() % ((first >> 14) + 1)));
      if (HasFatalFailure()) return;
    }
    for (u64 i = 0; i < 130; ++i) expect_bound(first - 65 + i);
  }
  for (u64 i = 0; i < 130; ++i) expect_bound(~u64{0} - i);
  EXPECT_LT(farthest, kBoundOctave / 5) << "a bound so low prunes little";
}

TEST_F(WeighBounds, BoundsBeyondANumberAreNone) {
  constexpr u64 kMost = ~u64{0};
  EXPECT_EQ(BoundsOf(5, 7).low, 12u);
  EXPECT_EQ(BoundsOf(5, 7).high, 5 + 64 * u64{7});
  EXPECT_EQ(BoundsOf(0, kMost / 64).high, kMost / 64 * 64);
  EXPECT_EQ(BoundsOf(0, kMost / 64 + 1).high, kMost);
  EXPECT_EQ(BoundsOf(64, kMost / 64).high, kMost);
}

}  // namespace
}  // namespace sortition::kernels::cuda::weigh_bounds_test
