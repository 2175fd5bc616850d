// Rules that a user would notice, checked on the reference and on every target of the CPU kernel alike.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "kernels/cpu/sample_row.h"
#include "kernels/law/chain.h"
#include "kernels/law/logprob.h"
#include "kernels/law/options.h"
#include "kernels/law/parameters.h"
#include "kernels/law/reference.h"
#include "tests/conformance/answer_printer.h"

namespace sortition::kernels::semantics_test {
namespace {

RowOutput SampleOnCpu(const cpu::Target& target, const RowRequest& request) {
  cpu::Scratch scratch;
  RowOutput answer;
  cpu::SampleRow(target, request, &scratch, &answer);
  return answer;
}

// A request for f32 logits, which it holds.
struct Request {
  explicit Request(std::vector<float> x, law::SamplingParameters options = {}) : logits(std::move(x)) {
    law::Compile(options, &parameters);
    parameters.raw_logprob = true;
    parameters.processed_logprob = true;
    row.logits = logits.data();
    row.live_vocabulary = uint32_t(logits.size());
    row.parameters = &parameters;
  }
  std::vector<float> logits;
  RowParameters parameters;
  RowRequest row;
};

// The parameter is a target, or null for the reference.
class Semantics : public ::testing::TestWithParam<const cpu::Target*> {
 protected:
  RowOutput Sample(const Request& request) {
    return GetParam() == nullptr ? law::SampleRowReference(request.row) : SampleOnCpu(*GetParam(), request.row);
  }
};

INSTANTIATE_TEST_SUITE_P(Reference, Semantics, ::testing::Values(nullptr));
INSTANTIATE_TEST_SUITE_P(Cpu, Semantics, ::testing::ValuesIn(cpu::RunnableTargets()),
                         [](const auto& info) { return std::string(info.param->name); });

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TEST_P(Semantics, GreedyIsArgmaxWithLowestId) {
  std::vector<float> logits(5000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = float(i * 7919 % 4001) / 8;
  const auto max = std::max_element(logits.begin(), logits.end());
  Request request(logits, {.temperature = 0, .top_k = 3, .top_p = 0.1f, .min_p = 0.5f});
  const RowOutput answer = Sample(request);
  EXPECT_EQ(answer.token, uint32_t(max - logits.begin()));
  EXPECT_EQ(answer.kept, 1u);
  EXPECT_EQ(law::Logprob(answer.processed, answer.processed.chosen.bits, request.parameters.temperature), 0.0f);
  EXPECT_EQ(answer.raw.rank, 1u);
}

TEST_P(Semantics, GreedyHonoursChanges) {
  Request request({5, 4, 3, 2}, {.temperature = 0});
  const LogitEdit edits[] = {{0, LogitEdit::kBanned, 0, 0}, {1, 0, law::CanonicalBits(-1.5f), 0}};
  request.row.edits = edits;
  EXPECT_EQ(Sample(request).token, 2u);
}

TEST_P(Semantics, TemperedIsBeforeTheFilters) {
  Request request({2, 1, 0, -1}, {.temperature = 0.5f, .top_k = 2});
  const LogitEdit edits[] = {{0, 0, law::CanonicalBits(-3.0f), 0}, {3, LogitEdit::kBanned, 0, 0}};
  request.row.edits = edits;
  request.row.task = RowTask::kScore;
  request.row.given = 0;
  request.parameters.tempered_logprob = request.parameters.kept_log_mass = true;
  request.parameters.tempered_top = 5;
  const RowOutput answer = Sample(request);
  const double kept = std::exp(2.0) + 1;
  const double all = kept + std::exp(-2.0);
  EXPECT_EQ(answer.processed.rank, 0u);
  EXPECT_EQ(answer.tempered.rank, 3u);
  ASSERT_EQ(answer.tempered.top.size(), 3u);
  EXPECT_EQ(answer.tempered.top[0].token, 1u);
  const double temperature = law::TemperedTemperature(request.parameters, answer);
  EXPECT_NEAR(law::Logprob(answer.tempered, answer.tempered.chosen.bits, temperature), -2 - std::log(all), 1e-6);
  EXPECT_NEAR(law::KeptLogMass(answer.mass), std::log(kept / all), 1e-6);
}

TEST(KeptLogMass, AllIsZeroNoneIsMinusInfinity) {
  EXPECT_EQ(law::KeptLogMass({12345, 12345}), 0.0f);
  EXPECT_EQ(law::KeptLogMass({0, 12345}), -kInfinity);
  EXPECT_EQ(law::KeptLogMass({uint64_t{1} << 40, uint64_t{1} << 44}), -4 * std::log(2.0f));
}

TEST_P(Semantics, LowestBadIdDecidesError) {
  EXPECT_EQ(Sample(Request({0, kNaN, kInfinity})).error, RowFault::kNaN);
  EXPECT_EQ(Sample(Request({0, kInfinity, kNaN})).error, RowFault::kLogitTooLarge);
  EXPECT_EQ(Sample(Request({0, 1, 2, kNaN, kInfinity})).error_token, 3u);
}

TEST_P(Semantics, BannedRawLogitsAreStillChecked) {
  Request request({0, kNaN, 1});
  const LogitEdit ban[] = {{1, LogitEdit::kBanned, 0, 0}};
  request.row.edits = ban;
  EXPECT_EQ(Sample(request).error, RowFault::kNaN);
  const uint32_t allowed[] = {0, 2};
  request.row.has_allowed_tokens = true;
  request.row.allowed_tokens = allowed;
  EXPECT_EQ(Sample(request).error, RowFault::kNaN);
}

TEST_P(Semantics, MaskedTokenIsNotEditedSoCannotFail) {
  Request request({0, 1, 2});
  const uint32_t bits[] = {0b101};
  request.row.allowed_bits = bits;
  const LogitEdit edits[] = {{1, 0, law::CanonicalBits(65503.75f), 0}};
  request.row.edits = edits;
  EXPECT_EQ(Sample(request).error, RowFault::kNone);
}

TEST_P(Semantics, MaskedNaNsAreNotTokens) {
  Request request({kNaN, 1, kNaN}, {.temperature = 0});
  request.parameters.mask_nan = true;
  const RowOutput answer = Sample(request);
  EXPECT_EQ(answer.token, 1u);
  EXPECT_EQ(law::Logprob(answer.raw, answer.raw.chosen.bits, 1), 0.0f);
}

TEST_P(Semantics, PaddingIsNeverRead) {
  Request request({1, 2, kNaN, kInfinity}, {.temperature = 0});
  request.row.live_vocabulary = 2;
  EXPECT_EQ(Sample(request).token, 1u);
}

TEST_P(Semantics, NoLiveTokenIsAnError) {
  EXPECT_EQ(Sample(Request({-kInfinity, -65504, -1e9f})).error, RowFault::kNoLiveToken);
  Request request({1, 2});
  request.row.has_allowed_tokens = true;
  RowOutput expected;
  expected.error = RowFault::kNoLiveToken;
  EXPECT_EQ(Sample(request), expected);
}

TEST_P(Semantics, TopKCutsTiesByLowestId) {
  Request request({3, 7, 7, 7, 7}, {.top_k = 3});
  request.parameters.processed_top = 10;
  const RowOutput answer = Sample(request);
  EXPECT_EQ(answer.kept, 3u);
  ASSERT_EQ(answer.processed.top.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(answer.processed.top[i].token, i + 1);
}

TEST_P(Semantics, MinKeepHoldsWhereTopKIsTheOnlyFilter) {
  EXPECT_EQ(Sample(Request({2, 1, 0}, {.top_k = 1, .min_keep = 2})).kept, 2u);
  EXPECT_EQ(Sample(Request({2, 1, 0}, {.top_k = 2, .min_keep = 1})).kept, 2u);
  EXPECT_EQ(Sample(Request({2, 1, 0}, {.top_k = 1, .min_keep = 1000})).kept, 3u);
  EXPECT_EQ(Sample(Request({2, 1, 0}, {.min_keep = 2})).kept, 3u);
}

TEST_P(Semantics, XtcDropsNothingWhereNoTokenReachesItsThreshold) {
  const auto kept = [&](std::vector<float> logits, float threshold) {
    return Sample(Request(std::move(logits), {.xtc_probability = 1, .xtc_threshold = threshold})).kept;
  };
  EXPECT_EQ(kept({0, 0, 0}, 0.4f), 3u);
  EXPECT_EQ(kept({0, 0, 0}, 0.3f), 1u);
  EXPECT_EQ(kept({1, 1, 0}, 0.45f), 3u);  // 0.42 twice
  EXPECT_EQ(kept({1, 1, 0}, 0.4f), 2u);
  EXPECT_EQ(kept({2, 1, 0}, 0.5f), 3u);
  EXPECT_EQ(kept(std::vector<float>(5000, 1), 0.01f), 5000u);
  EXPECT_EQ(kept(std::vector<float>(5000, 1), 0.0001f), 1u);
}

TEST_P(Semantics, TopPKeepsShortestPrefixReachingP) {
  for (const auto& [p, kept] : {std::pair{0.2499f, 1u}, {0.25f, 1u}, {0.2501f, 2u}, {0.5f, 2u}, {0.7501f, 4u}}) {
    EXPECT_EQ(Sample(Request({0, 0, 0, 0}, {.top_p = p})).kept, kept) << p;
  }
}

TEST_P(Semantics, MinPComparesAtCurrentTemperature) {
  const std::vector<float> logits = {0, -1, -2, -3};
  EXPECT_EQ(Sample(Request(logits, {.min_p = 0.3f})).kept, 2u);                       // ln 0.3 = -1.2
  EXPECT_EQ(Sample(Request(logits, {.temperature = 2, .min_p = 0.3f})).kept, 3u);     // -2.4
  EXPECT_EQ(Sample(Request(logits, {.temperature = 0.5f, .min_p = 0.3f})).kept, 1u);  // -0.6
}

TEST_P(Semantics, FilterOrderIsMinPTopKTopP) {
  // Top-p over the two that top-k leaves needs one; over all four it would need two.
  EXPECT_EQ(Sample(Request({0, 0, 0, 0}, {.top_k = 2, .top_p = 0.5f})).kept, 1u);
  // Min-p leaves two tokens; top-p counts their mass only.
  EXPECT_EQ(Sample(Request({0, 0, -2, -2, -2, -2}, {.top_p = 0.5f, .min_p = 0.5f})).kept, 1u);
}

TEST_P(Semantics, OffValuesAreTheSameAsNone) {
  std::vector<float> logits(300);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = float(i * 37 % 101) / 9;
  const RowOutput plain = Sample(Request(logits));
  EXPECT_EQ(Sample(Request(logits, {.top_k = 300})), plain);
  EXPECT_EQ(Sample(Request(logits, {.top_k = uint32_t(law::NumberNamed("top_k").most.value)})), plain);
  EXPECT_EQ(Sample(Request(logits, {.top_p = 1, .min_p = 0})), plain);
  EXPECT_EQ(Sample(Request(logits, {.min_p = 1e-25f})), plain);
  Request masked(logits);
  const std::vector<uint32_t> everything(10, ~0u);
  masked.row.allowed_bits = everything.data();
  EXPECT_EQ(Sample(masked), plain);
}

TEST_P(Semantics, RawIgnoresChangesAndTemperature) {
  std::vector<float> logits = {1, 2, 3, 4};
  Request plain(logits);
  Request changed(logits, {.temperature = 0.3f, .top_k = 2, .repetition_penalty = 1.5f});
  const LogitEdit edits[] = {{0, 0, law::CanonicalBits(9), 0}, {3, LogitEdit::kBanned, 0, 0}};
  changed.row.edits = edits;
  const RowOutput a = Sample(plain);
  const RowOutput b = Sample(changed);
  EXPECT_EQ(a.raw.max_bits, b.raw.max_bits);
  EXPECT_EQ(a.raw.weight_sum, b.raw.weight_sum);
  EXPECT_EQ(b.token, 0u);
  EXPECT_EQ(b.raw.rank, 4u);
  EXPECT_EQ(b.raw.chosen.bits, law::CanonicalBits(1));
  EXPECT_EQ(b.processed.chosen.bits, law::CanonicalBits(10));
}

TEST_P(Semantics, MaskSparingDrawnTokenKeepsDraw) {
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = float(i * 37 % 101) / 20;
  for (uint32_t position = 0; position < 200; ++position) {
    Request request(logits);
    request.row.noise = {99, position, 0};
    const uint32_t token = Sample(request).token;
    std::vector<uint32_t> allowed;
    for (uint32_t id = 0; id < logits.size(); ++id) {
      if (id % 3 == token % 3) allowed.push_back(id);
    }
    request.row.has_allowed_tokens = true;
    request.row.allowed_tokens = allowed;
    EXPECT_EQ(Sample(request).token, token) << position;
  }
}

// Ties, outliers and clusters of named tokens: their ranks are counted together by a table over the order.
TEST_P(Semantics, RanksOfManyNamedTokensAreEachOnesOwn) {
  std::vector<float> logits(3000);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = i % 3 == 0 ? 1.5f : i % 3 == 1 ? float(i) * 1e-3f : -float(i % 7);
  }
  logits[17] = 60000;
  logits[18] = -60000;
  for (const uint32_t step : {1u, 3u, 100u, 299u, 400u}) {
    Request request(logits, {.top_k = 2000});
    std::vector<uint32_t> named;
    for (uint32_t i = 0; i < 1000; ++i) named.push_back(i * step % 3000);
    request.row.requested = named;
    const RowOutput answer = Sample(request);
    for (size_t i = 0; i < named.size(); ++i) {
      const float own = logits[named[i]];
      uint32_t rank = 1;
      for (uint32_t id = 0; id < logits.size(); ++id) {
        rank += logits[id] > own || (logits[id] == own && id < named[i]);
      }
      ASSERT_EQ(answer.raw.requested[i].rank, rank) << named[i];
      ASSERT_EQ(answer.processed.requested[i].rank, rank > 2000 ? 0 : rank) << named[i];
    }
  }
}

TEST_P(Semantics, UnrequestedOutputsAreEmpty) {
  Request request({1, 2, 3});
  request.parameters.raw_logprob = false;
  request.parameters.processed_logprob = false;
  const RowOutput answer = Sample(request);
  EXPECT_EQ(answer.raw, Distribution());
  EXPECT_EQ(answer.processed, Distribution());
  EXPECT_EQ(answer.kept, 0u);
}

TEST(SemanticsDeathTest, ViolatedPreconditionsAbort) {
  Request request({1, 2, 3});
  const LogitEdit unsorted[] = {{2, 0, 0, 0}, {1, 0, 0, 0}};
  request.row.edits = unsorted;
  EXPECT_DEATH(SampleOnCpu(cpu::BestTarget(), request.row), "broken invariant");
  const LogitEdit padding[] = {{3, 0, 0, 0}};
  request.row.edits = padding;
  EXPECT_DEATH(SampleOnCpu(cpu::BestTarget(), request.row), "broken invariant");
}

}  // namespace
}  // namespace sortition::kernels::semantics_test
