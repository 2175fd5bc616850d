// A compact row gives the answer of its whole row, bit for bit, or is refused.
#include "kernels/law/compact.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "kernels/cpu/compact/decide_listed.h"
#include "kernels/cpu/compact/decide_row.h"
#include "kernels/cpu/compact/state_row.h"
#include "kernels/cpu/target.h"
#include "kernels/law/parameters.h"
#include "kernels/law/reference.h"
#include "kernels/law/row_law.h"
#include "tests/conformance/comparison.h"
#include "tests/conformance/random_row.h"
#include "tests/support/scale.h"

namespace sortition::testing::compact_test {
namespace {

using kernels::RowOutput;
using kernels::RowRequest;
using kernels::RowRequired;
using kernels::RowRequiredReason;

std::vector<uint32_t> SomeTokens(std::mt19937_64& random, uint32_t vocabulary) {
  std::vector<uint32_t> tokens;
  const uint64_t one_in = 1 + random() % 20;
  for (uint32_t id = 0; id < vocabulary; ++id) {
    if (random() % one_in == 0) tokens.push_back(id);
  }
  return tokens;
}

struct Counts {
  uint64_t decided = 0;
  std::map<RowRequiredReason, uint64_t> refused;
};

bool MayRaise(const RowRequest& request) {
  return std::ranges::any_of(request.edits, [](const kernels::LogitEdit& edit) {
    return int32_t(edit.bias) > 0 || int32_t(edit.penalty) > 0;
  });
}

const kernels::cpu::Target& SomeTarget(uint64_t number) {
  const auto& targets = kernels::cpu::RunnableTargets();
  return *targets[number % targets.size()];
}

// States the row in a random way and compares. Returns false if the test has failed.
bool CompareStated(const kernels::RandomRow& row, std::mt19937_64& random, Counts* counts) {
  const RowRequest& request = row.request();
  const uint32_t count = uint32_t(random() % (request.live_vocabulary + 2));
  std::vector<uint32_t> named;
  if (random() % 2 == 0) named = SomeTokens(random, request.live_vocabulary);
  auto stated = law::StateRowReference(request, count, named);
  const RowOutput whole = law::SampleRowReference(request);
  if (!stated) {
    EXPECT_NE(whole.error, kernels::RowFault::kNone) << row.description();
    return !::testing::Test::HasFailure();
  }
  if (random() % 4 == 0) stated->unit_sum.reset();
  if (random() % 4 == 0) stated->sum.reset();
  const auto result = law::SampleCompactRowReference(request, stated->row());
  static kernels::cpu::Scratch& scratch = *new kernels::cpu::Scratch;
  const bool may_raise = random() % 2 == 0 || MayRaise(request);
  EXPECT_TRUE(result == kernels::cpu::DecideRow(SomeTarget(random()), request, stated->row(), may_raise, &scratch))
      << row.description() << " count " << count;
  if (const auto* const output = std::get_if<RowOutput>(&result)) {
    EXPECT_EQ(*output, whole) << row.description() << " count " << count;
    ++counts->decided;
  } else {
    ++counts->refused[std::get<RowRequired>(result).reason];
    EXPECT_FALSE(stated->is_whole && !request.parameters->raw_logprob) << row.description() << " count " << count;
  }
  return !::testing::Test::HasFailure();
}

// The number of rows of each kind. The environment's TEST_COMPACT_ROWS sets it for long runs.
uint64_t RowsOfAKind(uint64_t usual) {
  const char* const text = std::getenv("TEST_COMPACT_ROWS");
  return text == nullptr ? Scaled(usual) : std::stoull(text);
}

class CompactRows : public ::testing::TestWithParam<RowKind> {};

TEST_P(CompactRows, EqualWholeRowsOrAreRefused) {
  Counts counts;
  constexpr uint64_t kRows = 20'000;
  const uint64_t rows = RowsOfAKind(kRows);
  for (uint64_t seed = 1; seed <= rows; ++seed) {
    std::mt19937_64 random(seed);
    // The larger rows have more unknown tokens than a refusal names.
    const uint32_t most = seed % 8 == 0 ? 4000 : 300;
    const auto row = MakeRow(GetParam(), 900'000'000 + seed, 1 + uint32_t(random() % most));
    if (!CompareStated(*row, random, &counts)) return;
  }
  // Both ends are met; otherwise the comparison says little. The few rows of a sanitizer need not meet each.
  if (rows < kRows) return;
  EXPECT_GT(counts.decided, rows / 5);
  for (const RowRequiredReason reason :
       {RowRequiredReason::kTokens, RowRequiredReason::kCut, RowRequiredReason::kSums, RowRequiredReason::kRow}) {
    EXPECT_GT(counts.refused[reason], rows / 500) << int(reason);
  }
}

TEST(CompactRows, CpuStatesTheReference) {
  kernels::cpu::Scratch scratch;
  const uint64_t rows = Scaled(600);
  for (const kernels::cpu::Target* const target : kernels::cpu::RunnableTargets()) {
    for (uint64_t seed = 1; seed <= rows; ++seed) {
      std::mt19937_64 random(seed);
      const uint32_t most = seed % 16 == 0 ? 40'000 : 500;
      const auto row = MakeRow(RowKind::kMixed, 950'000'000 + seed, 1 + uint32_t(random() % most));
      const RowRequest& request = row->request();
      const uint32_t count = 1 + uint32_t(random() % (request.live_vocabulary + 1));
      const std::vector<uint32_t> named = SomeTokens(random, request.live_vocabulary);
      const auto expected = law::StateRowReference(request, count, named);
      kernels::StatedRow stated;
      const bool is_stated = kernels::cpu::StateRow(*target, request, {count, named, true, true}, &scratch, &stated);
      ASSERT_EQ(is_stated, expected.has_value()) << row->description();
      if (!is_stated) continue;
      ASSERT_TRUE(stated == *expected) << target->name << " " << row->description() << " count " << count;
    }
  }
}

// The first token alone is found in a plain pass, which keeps no groups' maxima.
TEST(CompactRows, CpuStatesTheFirstTokenAlone) {
  constexpr uint32_t kVocabulary = 3001;
  kernels::cpu::Scratch scratch;
  kernels::RowParameters parameters;
  parameters.greedy = true;
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal(0, 3);
  for (int row = 0; row < 40; ++row) {
    // One, two or all tokens are live.
    std::vector<float> logits(kVocabulary, row % 4 < 2 ? -INFINITY : 0.0f);
    if (row % 4 >= 2) std::ranges::generate(logits, [&] { return normal(random); });
    for (int i = 0; i <= row % 4; ++i) logits[random() % kVocabulary] = 20 + normal(random);
    if (row % 10 == 9) logits[random() % kVocabulary] = NAN;
    RowRequest request;
    request.logits = logits.data();
    request.live_vocabulary = kVocabulary;
    request.parameters = &parameters;
    const auto expected = law::StateRowReference(request, 1, {});
    for (const kernels::cpu::Target* const target : kernels::cpu::RunnableTargets()) {
      kernels::StatedRow stated;
      ASSERT_EQ(kernels::cpu::StateRow(*target, request, {.count = 1}, &scratch, &stated), expected.has_value()) << row;
      if (!expected) continue;
      EXPECT_EQ(stated.first, expected->first) << target->name << " " << row;
      EXPECT_EQ(stated.is_whole, expected->is_whole) << target->name << " " << row;
    }
  }
}

// Draws that the processor decides without the reference.
TEST(CompactRows, CpuDecidesUsualDraws) {
  kernels::cpu::Scratch scratch;
  const uint64_t rows = Scaled(8000);
  uint64_t fast = 0, decided = 0, masked = 0, described = 0;
  std::map<RowRequiredReason, uint64_t> refused;
  for (uint64_t seed = 1; seed <= rows; ++seed) {
    std::mt19937_64 random(seed);
    const auto row = MakeRow(RowKind::kPlain, 970'000'000 + seed, 1200 + uint32_t(random() % 2000));
    kernels::RowParameters parameters = *row->request().parameters;
    parameters.tempered_logprob = parameters.kept_log_mass = false;
    parameters.tempered_top = 0;
    RowRequest request = row->request();
    request.parameters = &parameters;
    request.requested = {};
    std::vector<kernels::LogitEdit> edits(request.edits.begin(), request.edits.end());
    // Usual edits only lower logits.
    if (random() % 2 == 0) {
      std::erase_if(edits, [](const auto& edit) { return int32_t(edit.bias) > 0 || int32_t(edit.penalty) > 0; });
      request.edits = edits;
    }
    const uint32_t count = 1 + uint32_t(random() % (random() % 2 == 0 ? 20 : 400));
    const auto stated = law::StateRowReference(request, count, SomeTokens(random, request.live_vocabulary));
    if (!stated) continue;
    const auto expected = law::SampleCompactRowReference(request, stated->row());
    const auto result = kernels::cpu::DecideDraw(SomeTarget(seed), request, stated->row(), MayRaise(request), &scratch);
    if (!result) continue;
    ASSERT_TRUE(*result == expected) << row->description() << " count " << count;
    ++fast;
    masked += request.has_allowed_tokens || request.allowed_bits != nullptr;
    described += parameters.raw_logprob || parameters.processed_logprob;
    if (const auto* const required = std::get_if<RowRequired>(&*result)) {
      ++refused[required->reason];
    } else {
      ++decided;
    }
  }
  if (rows < 8000) return;
  EXPECT_GT(fast, rows / 4);
  EXPECT_GT(decided, rows / 16);
  EXPECT_GT(masked, rows / 100);
  EXPECT_GT(described, rows / 20);
  for (const RowRequiredReason reason :
       {RowRequiredReason::kTokens, RowRequiredReason::kCut, RowRequiredReason::kRow}) {
    EXPECT_GT(refused[reason], rows / 500) << int(reason);
  }
}

// Top-p where no sum of the changed row is stated: no sum at all, a mask, or penalties of unknown tokens. Bounds decide
// most rows. Where the threshold lies as near to a sum of first tokens as it can, the row is required: bounds that are
// too tight would decide it, half of the times wrongly.
TEST(CompactRows, BoundsDecideTopP) {
  constexpr uint32_t kVocabulary = 4000;
  std::mt19937_64 random(12);
  std::normal_distribution<float> normal;
  kernels::cpu::Scratch scratch;
  std::array<std::map<bool, uint64_t>, 3> decided;  // by kind, by whether the threshold is at an edge
  std::array<uint64_t, 3> refused = {};
  constexpr uint64_t kRows = 900;
  const uint64_t rows = Scaled(kRows);
  for (uint64_t n = 0; n < rows; ++n) {
    const size_t kind = n % 3;
    std::vector<float> logits(kVocabulary);
    for (float& logit : logits) logit = normal(random) + (kind == 0 ? -8.0f : 0);
    for (int rank = 1; rank < 60; ++rank) logits[random() % kVocabulary] = 12 - 1.5f * std::log(float(rank));
    const auto first = uint32_t(std::ranges::max_element(logits) - logits.begin());
    std::vector<uint32_t> allowed((kVocabulary + 31) / 32, ~0u);
    std::vector<kernels::LogitEdit> edits;
    for (uint32_t id = 0; kind == 1 && id < kVocabulary; ++id) {
      if (id != first && random() % 3 == 0) allowed[id / 32] &= ~(1u << (id % 32));
    }
    for (uint32_t id = 0; kind == 2 && id < kVocabulary; id += 50) {
      if (id != first) edits.push_back({.token = id, .penalty = law::CanonicalBits(-2)});
    }
    kernels::RowParameters parameters;
    law::Compile({.temperature = 0.8f, .top_p = 0.5f}, &parameters);
    parameters.processed_logprob = true;
    parameters.processed_top = 60;
    RowRequest request;
    request.logits = logits.data();
    request.live_vocabulary = kVocabulary;
    request.parameters = &parameters;
    request.noise = {.seed = n, .position = 1, .stream = 0};
    request.edits = edits;
    if (kind == 1) request.allowed_bits = allowed.data();
    auto stated = law::StateRowReference(request, 100, {});
    ASSERT_TRUE(stated);
    if (kind == 0) stated->unit_sum = stated->sum = std::nullopt;
    // The sums of the first tokens and of all.
    kernels::RowParameters all = parameters;
    all.top_p = 0;
    all.kept_tokens = true;
    request.parameters = &all;
    const RowOutput unfiltered = law::SampleRowReference(request);
    const law::Scale scale =
        law::ScaleOf(unfiltered.processed.max_bits, {parameters.multiplier, parameters.exponent, parameters.window});
    uint64_t prefix = 0;
    const size_t places = 1 + random() % 8;
    for (size_t i = 0; i < places; ++i) prefix += law::Weight(law::Distance(unfiltered.processed.top[i].bits, scale));
    const auto edge = uint32_t(double(prefix) / double(unfiltered.processed.weight_sum) * 0x1p32);
    request.parameters = &parameters;
    const auto middle = uint32_t(edge - edge / (8 * uint32_t(places)));
    for (const uint32_t top_p : {edge - 1, edge + 1, middle}) {
      parameters.top_p = top_p;
      const auto result = law::SampleCompactRowReference(request, stated->row());
      EXPECT_TRUE(result == kernels::cpu::DecideRow(SomeTarget(n), request, stated->row(), false, &scratch));
      if (const auto* const output = std::get_if<RowOutput>(&result)) {
        ASSERT_EQ(*output, law::SampleRowReference(request)) << n << " " << top_p;
        ++decided[kind][top_p != middle];
      } else {
        EXPECT_EQ(int(std::get<RowRequired>(result).reason), int(RowRequiredReason::kSums)) << n;
        ++refused[kind];
      }
    }
  }
  if (rows < kRows) return;
  for (size_t kind = 0; kind < 3; ++kind) {
    EXPECT_GT(decided[kind][false], rows / 6) << kind;
    EXPECT_EQ(decided[kind][true], 0u) << kind;
    EXPECT_GT(refused[kind], rows / 2) << kind;
  }
}

// States a part of the row with the ids of the whole one.
std::optional<kernels::StatedRow> StatePart(const RowRequest& row, uint32_t first, uint32_t end, uint32_t count,
                                            const std::vector<uint32_t>& named) {
  RowRequest part;
  part.parameters = row.parameters;
  part.dtype = row.dtype;
  part.live_vocabulary = end - first;
  part.logits = static_cast<const std::byte*>(row.logits) + size_t{first} * kernels::ElementBytes(row.dtype);
  std::vector<uint32_t> own;
  for (const uint32_t id : named) {
    if (id >= first && id < end) own.push_back(id - first);
  }
  auto stated = law::StateRowReference(part, count, own);
  if (!stated) return stated;
  for (std::vector<kernels::TokenBits>* const tokens : {&stated->first, &stated->others}) {
    for (kernels::TokenBits& token : *tokens) token.token += first;
  }
  return stated;
}

TEST_P(CompactRows, ShardsDecideAsWholeRow) {
  const uint64_t rows = Scaled(2000);
  uint64_t decided = 0, whole = 0, failed = 0;
  for (uint64_t seed = 1; seed <= rows; ++seed) {
    std::mt19937_64 random(seed);
    const auto row = MakeRow(GetParam(), 990'000'000 + seed, 1 + uint32_t(random() % (seed % 4 == 0 ? 3000 : 300)));
    const RowRequest& request = row->request();
    const std::vector<uint32_t> named = SomeTokens(random, request.live_vocabulary);
    std::vector<uint32_t> bounds = {0, request.live_vocabulary};
    for (uint64_t i = random() % 5; i > 0; --i) bounds.push_back(uint32_t(random() % request.live_vocabulary));
    std::ranges::sort(bounds);
    bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
    std::vector<kernels::StatedRow> shards;
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
      const auto count = 1 + uint32_t(random() % (bounds[i + 1] - bounds[i] + 1));
      auto stated = StatePart(request, bounds[i], bounds[i + 1], count, named);
      if (!stated) break;
      shards.push_back(*std::move(stated));
    }
    if (shards.size() + 1 < bounds.size()) {
      EXPECT_NE(law::SampleRowReference(request).error, kernels::RowFault::kNone) << row->description();
      ++failed;
      continue;
    }
    std::ranges::shuffle(shards, random);
    const kernels::StatedRow merged = law::MergeShards(shards);
    ASSERT_FALSE(law::FindUnsound(*request.parameters, request.live_vocabulary, merged.row())) << row->description();
    whole += merged.is_whole;
    const auto result = law::SampleCompactRowReference(request, merged.row());
    const auto* const output = std::get_if<RowOutput>(&result);
    if (output == nullptr) continue;
    ++decided;
    ASSERT_EQ(*output, law::SampleRowReference(request)) << row->description();
  }
  if (rows < 2000) return;
  EXPECT_GT(decided, rows / 20);
  EXPECT_GT(whole, rows / 50);
  EXPECT_GT(failed, rows / 500);
}

// Rows of every task, chain and mask that the processor decides from a list, without the reference's sort.
TEST_P(CompactRows, CpuListsAlmostAll) {
  kernels::cpu::Scratch scratch;
  const uint64_t rows = Scaled(4000);
  uint64_t stated_rows = 0, listed = 0, decided = 0;
  for (uint64_t seed = 1; seed <= rows; ++seed) {
    std::mt19937_64 random(seed);
    const auto row = MakeRow(GetParam(), 980'000'000 + seed, 1 + uint32_t(random() % (seed % 4 == 0 ? 4000 : 1200)));
    RowRequest request = row->request();
    // Edits that only lower are the usual ones.
    std::vector<kernels::LogitEdit> edits(request.edits.begin(), request.edits.end());
    if (random() % 2 == 0) {
      std::erase_if(edits, [](const auto& edit) { return int32_t(edit.bias) > 0 || int32_t(edit.penalty) > 0; });
      request.edits = edits;
    }
    const uint32_t count = 1 + uint32_t(random() % (random() % 2 == 0 ? 20 : 400));
    const auto stated = law::StateRowReference(request, count, SomeTokens(random, request.live_vocabulary));
    if (!stated) continue;
    ++stated_rows;
    const auto result = kernels::cpu::DecideListed(request, stated->row(), MayRaise(request), &scratch);
    if (!result) continue;
    ++listed;
    decided += result->index() == 0;
    ASSERT_TRUE(*result == law::SampleCompactRowReference(request, stated->row()))
        << row->description() << " count " << count;
  }
  if (rows < 4000) return;
  EXPECT_GT(listed, stated_rows * 3 / 5);
  EXPECT_GT(decided, rows / 10);
}

INSTANTIATE_TEST_SUITE_P(Kinds, CompactRows,
                         ::testing::Values(RowKind::kPlain, RowKind::kTasks, RowKind::kChained, RowKind::kChainedTasks,
                                           RowKind::kRecord));

}  // namespace
}  // namespace sortition::testing::compact_test
