// The CPU kernel equals the reference in every bit of every answer, on every target that this machine can run.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <random>
#include <tuple>

#include "kernels/cpu/sample_row.h"
#include "kernels/law/golden_rows.h"
#include "kernels/law/parameters.h"
#include "kernels/law/reference.h"
#include "kernels/law/row_law.h"
#include "tests/conformance/answer_printer.h"
#include "tests/conformance/random_row.h"
#include "tests/support/scale.h"

namespace sortition::kernels {
namespace {

// One for all tests, as a device's thread has it: what a row leaves behind must not reach the next.
cpu::Scratch scratch;

RowOutput Sample(const cpu::Target& target, const RowRequest& request) {
  RowOutput answer;
  cpu::SampleRow(target, request, &scratch, &answer);
  return answer;
}

void ExpectEqual(const RowRequest& request, const std::string& description) {
  const RowOutput expected = law::SampleRowReference(request);
  for (const cpu::Target* target : cpu::RunnableTargets()) {
    ASSERT_EQ(Sample(*target, request), expected) << target->name << ": " << description;
  }
}

void ExpectEqual(const RandomRow& row) { ExpectEqual(row.request(), row.description()); }

TEST(CpuKernel, EqualsReferenceOnSmallRows) {
  for (uint64_t seed = testing::Scaled(100'000); seed > 0; --seed) {
    ExpectEqual(RandomRow(seed, 1 + seed * 7919 % 400));
    if (HasFatalFailure()) return;
  }
}

TEST(CpuKernel, EqualsReferenceOnMiddlingRows) {
  for (uint64_t seed = testing::Scaled(8'000); seed > 0; --seed) {
    ExpectEqual(RandomRow(1'000'000 + seed, 400 + uint32_t(seed * 104729 % 12'000)));
    if (HasFatalFailure()) return;
  }
}

// A row in every task, with everything beside the token that can be asked for.
void ExpectMoreEqual(uint64_t seed, uint32_t vocabulary) {
  RandomRow row(seed, vocabulary);
  row.AskForMore();
  ExpectEqual(row);
}

TEST(CpuKernel, EqualsReferenceInEveryTask) {
  for (uint64_t seed = testing::Scaled(12'000); seed > 0; --seed) {
    ExpectMoreEqual(3'000'000 + seed, 1 + seed * 7919 % 400);
    if (HasFatalFailure()) return;
  }
  for (uint64_t seed = testing::Scaled(600); seed > 0; --seed) {
    ExpectMoreEqual(4'000'000 + seed, 400 + uint32_t(seed * 104729 % 30'000));
    if (HasFatalFailure()) return;
  }
}

class CpuKernelAtVocabulary : public ::testing::TestWithParam<uint32_t> {};

TEST_P(CpuKernelAtVocabulary, EqualsReference) {
  const uint64_t rows = testing::Scaled(GetParam() <= 1000 ? 2'000 : 15'000'000 / GetParam());
  for (uint64_t seed = 0; seed < rows; ++seed) {
    ExpectEqual(RandomRow(2'000'000 + seed, GetParam()));
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(, CpuKernelAtVocabulary,
                         ::testing::Values(1, 2, 63, 64, 65, 127, 128, 1000, 32768, 50257, 128256, 151936, 262144),
                         [](const auto& info) { return std::to_string(info.param); });

TEST(CpuKernel, EqualsReferenceOnGoldenRows) {
  for (const law::GoldenRow& row : law::GoldenRows()) {
    const std::vector<std::byte> tensor = law::TensorOf(row);
    ExpectEqual(law::RequestOf(row, tensor), row.name);
  }
}

// Answers of both to a row of f32 logits at temperature 1 that asks for the kept set's size.
void ExpectEqualAtTopP(const std::vector<uint32_t>& bits, uint32_t top_p) {
  RowParameters parameters;
  parameters.top_p = top_p;
  parameters.processed_logprob = true;
  RowRequest request;
  request.logits = bits.data();
  request.live_vocabulary = uint32_t(bits.size());
  request.parameters = &parameters;
  ExpectEqual(request, "top_p " + std::to_string(top_p));
}

// Top-p whose prefix is a large part of a row, so that its end is looked for through a sample of groups: rows that the
// sample shows as they are, and rows that it does not.
TEST(CpuKernel, EqualsReferenceIfTopPKeepsMany) {
  std::mt19937_64 random(99);
  std::vector<uint32_t> bits;
  for (uint64_t n = 0; n < testing::Scaled(120); ++n) {
    bits.resize(17'000 + random() % 30'000);
    const uint64_t period = 1 + random() % 40;
    const float spread = std::ldexp(1.0f, int(random() % 12) - 9);
    for (size_t id = 0; id < bits.size(); ++id) {
      float x = spread * float(int64_t(random() % 2001) - 1000) / 1000;
      if (n % 3 == 1) x = std::round(4 * x) / 4;                     // ties
      if (n % 3 == 2 && id / law::kGroupSize % period == 0) x -= 2;  // groups that a sample may meet often, or never
      bits[id] = law::CanonicalBits(x);
    }
    ExpectEqualAtTopP(bits, uint32_t(random() % 5 == 0 ? random() : ~(random() >> 36)));
    if (HasFatalFailure()) return;
  }
}

// Masks that hide some or all of a row's largest tokens, so that the maxima of their groups promise too much.
TEST(CpuKernel, EqualsReferenceIfMaskHidesLargest) {
  std::mt19937_64 random(97);
  for (uint64_t n = 0; n < testing::Scaled(400); ++n) {
    std::vector<uint32_t> bits(1000 + random() % 30'000);
    std::vector<uint32_t> allowed((bits.size() + 31) / 32);
    const float spread = n % 2 == 0 ? 8 : 0.01f;
    const float highest_shown = spread * float(random() % 2000) / 1000;
    const uint64_t hidden = random() % 16;  // sixteenths of the tokens above that
    for (size_t id = 0; id < bits.size(); ++id) {
      const float x = spread * float(random() % 2000) / 1000;
      bits[id] = law::CanonicalBits(x);
      const bool hides = x > highest_shown && random() % 16 <= hidden;
      allowed[id / 32] |= uint32_t{!hides} << (id % 32);
    }
    std::vector<LogitEdit> edits;
    for (uint32_t id = uint32_t(random() % 50); n % 3 == 0 && id < bits.size(); id += 1 + random() % 500) {
      edits.push_back({.token = id, .flags = LogitEdit::kRepeated, .bias = law::CanonicalBits(random() % 2 * 0.5f)});
    }
    RowParameters parameters;
    static constexpr uint32_t kTopK[] = {0, 1, 5, 50};
    parameters.top_k = kTopK[n % 4];
    parameters.greedy = n % 5 == 0;
    parameters.repetition = law::CanonicalBits(1.25f);
    parameters.inverse_repetition = law::CanonicalBits(0.8f);
    parameters.processed_logprob = true;
    parameters.processed_top = n % 7 == 0 ? 20 : 0;
    RowRequest request;
    request.logits = bits.data();
    request.live_vocabulary = uint32_t(bits.size());
    request.parameters = &parameters;
    request.noise = {.seed = n, .position = 5, .stream = 0};
    request.edits = edits;
    request.allowed_bits = allowed.data();
    ExpectEqual(request, "row " + std::to_string(n));
    if (HasFatalFailure()) return;
  }
}

// A regular sample of the groups finds tokens that are likelier, or less likely, than the others: what it suggests lies
// on the wrong side, or even among the row's leading tokens.
TEST(CpuKernel, EqualsReferenceIfSampleMisleads) {
  std::mt19937_64 random(98);
  std::vector<uint32_t> bits(1024 * law::kGroupSize);
  for (uint64_t n = 0; n < testing::Scaled(24); ++n) {
    static constexpr float kSeen[] = {-0.5f, -3, -2.5f};
    static constexpr float kUnseen[] = {-2.5f, -30, -0.5f};
    for (uint32_t group = 0; group < 1024; ++group) {
      for (uint32_t i = 0; i < law::kGroupSize; ++i) {
        float x = (group % 32 == 0 ? kSeen : kUnseen)[n % 3] + float(random() % 1000) / 2000;
        if (i == 0 && group % 3 == 1) x = 1;
        bits[group * law::kGroupSize + i] = law::CanonicalBits(x);
      }
    }
    ExpectEqualAtTopP(bits, uint32_t(0.5 * 0x1p32 + double(random() % 1000) * 0x1p-11 * 0x1p32));
    if (HasFatalFailure()) return;
  }
}

// Tokens just on this side and just on that side of many distances.
TEST(CpuKernel, EqualsReferenceAroundDistances) {
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
  for (uint64_t n = 1; n < 2000; ++n) ExpectEqualAtTopP(bits, uint32_t(n * 2147483));
}

// A threshold that the leading token's weight meets to the unit: one token in some thousands of rows.
TEST(CpuKernel, EqualsReferenceAtExactThreshold) {
  uint64_t met = 0;
  for (uint32_t n = 0; n < 100'000; ++n) {
    const std::vector<uint32_t> bits = {0, 0xbf800000 + n * 77};  // 0, and -1 to -4
    const uint64_t sum = law::kUnitWeight + law::Weight(law::Distance(bits[1], law::UnitScale(0)));
    const auto top_p = uint32_t((static_cast<unsigned __int128>(law::kUnitWeight) << 32) / sum);
    met += law::TopPThreshold(sum, top_p) == law::kUnitWeight;
    ExpectEqualAtTopP(bits, top_p);
    if (HasFatalFailure()) return;
  }
  EXPECT_GE(met, 3u);
}

TEST(CpuKernel, EqualsReferenceAtLargestVocabulary) {
  RandomRow row(7, kMaxVocabulary);
  ExpectEqual(row);
}

// The random rows meet what they are meant to meet; otherwise the comparisons above would prove less than they seem to.
TEST(RandomRows, CoverEveryResult) {
  std::map<RowError, int> errors;
  std::array<int, 6> met = {};
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    const RandomRow row(seed, 300);
    const RowRequest& request = row.request();
    const RowOutput answer = Sample(cpu::BestTarget(), request);
    ++errors[answer.error];
    met[0] += request.has_allowed_tokens && request.allowed_bits != nullptr;
    met[1] += !request.edits.empty() && answer.error == RowError::kNone;
    met[2] += request.parameters->greedy;
    met[3] += answer.kept > 1 && answer.kept < 100;
    met[4] += answer.raw.rank > 1;
    met[5] += answer.processed.top.size() > 5;
  }
  EXPECT_EQ(errors.size(), 4u);
  for (const auto& [error, count] : errors) EXPECT_GE(count, 5) << int(error);
  for (size_t i = 0; i < met.size(); ++i) EXPECT_GE(met[i], 20) << i;
}

TEST(RandomRows, CoverEveryResultOfEveryTask) {
  std::map<RowError, int> errors;
  std::map<std::tuple<RowTask, DraftDistribution::Form, bool>, int> tasks;
  std::array<int, 5> met = {};
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    RandomRow row(seed, 300);
    row.AskForMore();
    const RowRequest& request = row.request();
    const RowOutput answer = Sample(cpu::BestTarget(), request);
    ++errors[answer.error];
    if (answer.error != RowError::kNone) continue;
    ++tasks[{request.task, request.draft.form, answer.accepted}];
    met[0] += request.task == RowTask::kScore && request.parameters->processed_logprob && answer.processed.rank == 0;
    met[1] += request.task == RowTask::kScore && answer.processed.rank > 1;
    met[2] += answer.entropy.surplus > 0;
    met[3] += answer.kept_tokens.size() > 1;
    met[4] += answer.raw.requested.size() > 20;
  }
  EXPECT_EQ(errors.size(), 7u);
  for (const auto& [error, count] : errors) EXPECT_GE(count, 5) << int(error);
  EXPECT_EQ(tasks.size(), 8u);  // drawn, scored; of three kinds of drafts accepted and not
  for (const auto& [task, count] : tasks) EXPECT_GE(count, 20) << int(std::get<1>(task));
  for (size_t i = 0; i < met.size(); ++i) EXPECT_GE(met[i], 20) << i;
}

}  // namespace
}  // namespace sortition::kernels
