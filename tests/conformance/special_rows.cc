// Rows for which kernels have special paths.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <utility>

#include "kernels/law/parameters.h"
#include "kernels/law/reference.h"
#include "kernels/law/row_law.h"
#include "tests/conformance/comparison.h"
#include "tests/support/scale.h"

namespace sortition::testing {
namespace {

using kernels::LogitEdit;
using kernels::RowParameters;
using kernels::RowRequest;

// A row of f32 logits with all that its request refers to.
struct SpecialRow {
  std::vector<uint32_t> bits;
  std::vector<uint32_t> allowed;
  std::vector<LogitEdit> edits;
  std::vector<float> draft;
  RowParameters parameters;
  RowRequest request;
};

void Add(Comparison* comparison, std::shared_ptr<SpecialRow> row, std::string description) {
  row->request.logits = row->bits.data();
  row->request.live_vocabulary = uint32_t(row->bits.size());
  row->request.parameters = &row->parameters;
  row->request.edits = row->edits;
  if (!row->allowed.empty()) row->request.allowed_bits = row->allowed.data();
  const std::span<const uint32_t> bits = row->bits;
  comparison->Add({row->request, std::as_bytes(bits), std::move(description), row});
}

// Adds a row at temperature 1 that requests the kept set's size.
void AddTopP(Comparison* comparison, std::vector<uint32_t> bits, uint32_t top_p) {
  const auto row = std::make_shared<SpecialRow>();
  row->bits = std::move(bits);
  row->parameters.top_p = top_p;
  row->parameters.processed_logprob = true;
  Add(comparison, row, "top_p " + std::to_string(top_p));
}

// Calls add(n) for n = 0, 1, ..., `number` - 1, and asserts that each added a row that was compared.
void CompareEach(Comparison* comparison, uint64_t number, const std::function<void(uint64_t)>& add) {
  const uint64_t before = comparison->compared();
  for (uint64_t n = 0; n < number; ++n) {
    add(n);
    if (::testing::Test::HasFailure()) return;
  }
  comparison->Flush();
  EXPECT_EQ(comparison->compared() - before, number);
}

}  // namespace

// The prefix is a large part of a row, so that its end is looked for through a sample of groups: rows that the sample
// shows as they are, and rows that it does not.
void CompareWhereTopPKeepsMuch(Comparison* comparison, uint64_t rows) {
  std::mt19937_64 random(99);
  CompareEach(comparison, Scaled(rows), [&](uint64_t n) {
    std::vector<uint32_t> bits(17'000 + random() % 30'000);
    const uint64_t period = 1 + random() % 40;
    const float spread = std::ldexp(1.0f, int(random() % 12) - 9);
    for (size_t id = 0; id < bits.size(); ++id) {
      float x = spread * float(int64_t(random() % 2001) - 1000) / 1000;
      if (n % 3 == 1) x = std::round(4 * x) / 4;                     // ties
      if (n % 3 == 2 && id / law::kGroupSize % period == 0) x -= 2;  // groups that a sample may meet often, or never
      bits[id] = law::CanonicalBits(x);
    }
    AddTopP(comparison, std::move(bits), uint32_t(random() % 5 == 0 ? random() : ~(random() >> 36)));
  });
}

// Masks that hide some or all of a row's largest tokens, so that the maxima of their groups promise too much.
void CompareWhereAMaskHidesTheLargest(Comparison* comparison, uint64_t rows) {
  std::mt19937_64 random(97);
  CompareEach(comparison, Scaled(rows), [&](uint64_t n) {
    const auto row = std::make_shared<SpecialRow>();
    row->bits.resize(1000 + random() % 30'000);
    row->allowed.resize((row->bits.size() + 31) / 32);
    const float spread = n % 2 == 0 ? 8 : 0.01f;
    const float highest_shown = spread * float(random() % 2000) / 1000;
    const uint64_t hidden = random() % 16;  // sixteenths of the tokens above that
    for (size_t id = 0; id < row->bits.size(); ++id) {
      const float x = spread * float(random() % 2000) / 1000;
      row->bits[id] = law::CanonicalBits(x);
      const bool hides = x > highest_shown && random() % 16 <= hidden;
      row->allowed[id / 32] |= uint32_t{!hides} << (id % 32);
    }
    for (uint32_t id = uint32_t(random() % 50); n % 3 == 0 && id < row->bits.size(); id += 1 + random() % 500) {
      row->edits.push_back(
          {.token = id, .flags = LogitEdit::kRepeated, .bias = law::CanonicalBits(random() % 2 * 0.5f)});
    }
    static constexpr uint32_t kTopK[] = {0, 1, 5, 50};
    row->parameters.top_k = kTopK[n % 4];
    if (n / 4 % 2 == 1) row->parameters.min_p_distance = 1u << (24 + random() % 6);  // up to 8 octaves
    row->parameters.greedy = n % 5 == 0;
    row->parameters.repetition = law::CanonicalBits(1.25f);
    row->parameters.inverse_repetition = law::CanonicalBits(0.8f);
    row->parameters.processed_logprob = true;
    row->parameters.processed_top = n % 7 == 0 ? 20 : 0;
    row->request.noise = {.seed = n, .position = 5, .stream = 0};
    Add(comparison, row, "row " + std::to_string(n));
  });
}

// A regular sample of the groups finds tokens that are likelier, or less likely, than the others: its guess lies on the
// wrong side, or even among the row's leading tokens.
void CompareWhereASampleMisleads(Comparison* comparison, uint64_t rows) {
  std::mt19937_64 random(98);
  CompareEach(comparison, Scaled(rows), [&](uint64_t n) {
    static constexpr float kSeen[] = {-0.5f, -3, -2.5f};
    static constexpr float kUnseen[] = {-2.5f, -30, -0.5f};
    std::vector<uint32_t> bits(1024 * law::kGroupSize);
    for (uint32_t group = 0; group < 1024; ++group) {
      for (uint32_t i = 0; i < law::kGroupSize; ++i) {
        float x = (group % 32 == 0 ? kSeen : kUnseen)[n % 3] + float(random() % 1000) / 2000;
        if (i == 0 && group % 3 == 1) x = 1;
        bits[group * law::kGroupSize + i] = law::CanonicalBits(x);
      }
    }
    AddTopP(comparison, std::move(bits), uint32_t(0.5 * 0x1p32 + double(random() % 1000) * 0x1p-11 * 0x1p32));
  });
}

// Tokens just on this side and just on that side of many distances.
void CompareAroundDistances(Comparison* comparison, uint64_t rows) {
  const law::Scale scale = law::UnitScale(0);
  std::vector<uint32_t> bits = {0};
  for (uint32_t t = 1u << 20; t < 40u << 20; t += 1u << 20) {
    uint32_t low = 1;
    uint32_t high = law::Key(0);
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (law::Distance(law::KeyBits(middle), scale) < t) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    for (const uint32_t key : {high - 1, high, high}) bits.push_back(law::KeyBits(key));
  }
  CompareEach(comparison, rows, [&](uint64_t n) { AddTopP(comparison, bits, uint32_t((n + 1) * 2147483)); });
}

// A threshold that the leading token's weight meets to the unit: one token in some thousands of rows.
void CompareWhereAThresholdIsMetExactly(Comparison* comparison) {
  uint64_t met = 0;
  CompareEach(comparison, 100'000, [&](uint64_t n) {
    std::vector<uint32_t> bits = {0, 0xbf800000 + uint32_t(n) * 77};  // 0, and -1 to -4
    const uint64_t sum = law::kUnitWeight + law::Weight(law::Distance(bits[1], law::UnitScale(0)));
    const auto top_p = uint32_t((static_cast<unsigned __int128>(law::kUnitWeight) << 32) / sum);
    met += law::LeastSum(law::TopPThreshold(sum, top_p)) == law::kUnitWeight;
    AddTopP(comparison, std::move(bits), top_p);
  });
  EXPECT_GE(met, 3u);
}

// Flat and peaked rows, and ties, of a token alone.
void CompareTopPAlone(Comparison* comparison, uint64_t rows) {
  std::mt19937_64 random(96);
  uint64_t dropped = 0;
  CompareEach(comparison, Scaled(rows), [&](uint64_t n) {
    const auto row = std::make_shared<SpecialRow>();
    row->bits.resize(1 + random() % 20'000);
    static constexpr float kSpreads[] = {0.001f, 1, 4};
    const float spread = kSpreads[n % 3];
    for (uint32_t& bits : row->bits) {
      float x = spread * float(random() % 2000) / 500;
      if (n % 2 == 0) x = std::round(4 * x) / 4;
      bits = law::CanonicalBits(x);
    }
    for (uint32_t i = 0; n % 4 != 0 && i < 100; ++i) {
      row->bits[random() % row->bits.size()] = law::CanonicalBits(5 * spread - std::log(float(1 + i)));
    }
    for (uint32_t id = uint32_t(random() % 50); n % 3 == 0 && id < row->bits.size(); id += 1 + random() % 500) {
      row->edits.push_back({.token = id, .penalty = law::CanonicalBits(-float(random() % 4))});
    }
    static constexpr float kTopP[] = {0.95f, 0.5f, 0.1f};
    law::Compile({.temperature = 1, .top_p = kTopP[random() % 3], .min_p = n % 8 == 1 ? 0.01f : 0}, &row->parameters);
    row->parameters.raw_logprob = n % 5 == 0;
    row->request.noise = {.seed = n, .position = 5, .stream = 0};
    Add(comparison, row, "row " + std::to_string(n));
    RowParameters race = row->parameters;
    race.top_p = 0;
    RowRequest request = row->request;
    request.parameters = &race;
    dropped += law::SampleRowReference(request).token != law::SampleRowReference(row->request).token;
  });
  if (Scaled(rows) < 40) return;
  EXPECT_GT(dropped, Scaled(rows) / 8);
  EXPECT_LT(dropped, Scaled(rows) - Scaled(rows) / 8);
}

// The draft is dead. Its drafter's probabilities sum to a little more than 1, and each other token's is above the
// target's. So no token has a weight left.
void CompareWhereADraftLeavesNoWeight(Comparison* comparison, uint64_t rows) {
  std::mt19937_64 random(95);
  CompareEach(comparison, Scaled(rows), [&](uint64_t n) {
    const auto row = std::make_shared<SpecialRow>();
    row->bits.resize(10 + random() % (n % 2 == 0 ? 40 : 6000));  // a list, or a whole row, races
    std::vector<double> weights;
    double sum = 0;
    for (uint32_t& bits : row->bits) {
      const float x = float(random() % 4000) / 1000;
      bits = law::CanonicalBits(x);
      sum += weights.emplace_back(std::exp(x));
    }
    const auto dead = uint32_t(random() % row->bits.size());
    row->bits[dead] = law::CanonicalBits(-200);
    sum -= std::exchange(weights[dead], 0);
    for (const double weight : weights) row->draft.push_back(float(1.004 * weight / sum));
    row->draft[dead] = 0.002f;
    RowRequest& request = row->request;
    request.task = kernels::RowTask::kVerify;
    request.given = dead;
    request.draft.form = kernels::DraftDistribution::Form::kDense;
    request.draft.dense = row->draft.data();
    request.noise = {.seed = n, .position = 5, .stream = 0};
    Add(comparison, row, "row " + std::to_string(n));
  });
}

}  // namespace sortition::testing
