// Ranks of up to 1,000 named tokens are the reference's, however many are counted at once.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/sample_row.h"
#include "kernels/law/parameters.h"
#include "kernels/law/reference.h"
#include "kernels/law/row_law.h"
#include "tests/support/scale.h"

namespace sortition::kernels::cpu::ranks_test {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// A row with masks, edits and dead tokens, and the tokens whose places are wanted, some of them twice.
class NamedRow {
 public:
  NamedRow(uint64_t seed, DType dtype, float spread, uint32_t named) : random_(seed), dtype_(dtype) {
    const auto vocabulary = uint32_t(1 + random_() % 12'000);
    std::normal_distribution<float> normal(0, spread);
    for (uint32_t id = 0; id < vocabulary; ++id) {
      // Two of 16 are dead or masked, or far from the others where the row is narrow.
      const auto kind = random_() % 16;
      const float logit = normal(random_);
      Put(kind == 0 ? -200 * float(1 + random_() % 4) : kind == 1 ? -65504.0f : kind == 2 ? std::round(logit) : logit);
    }
    for (uint32_t id = uint32_t(random_() % 64); id < vocabulary; id += 1 + uint32_t(random_() % 200)) {
      edits_.push_back({.token = id,
                        .flags = random_() % 8 == 0 ? uint32_t{LogitEdit::kBanned} : 0,
                        .penalty = law::CanonicalBits(float(random_() % 7) - 3)});
    }
    for (uint32_t i = 0; i < (vocabulary + 31) / 32; ++i) allowed_.push_back(uint32_t(random_() | random_()));
    while (named_.size() < named) named_.push_back(uint32_t(random_() % vocabulary));
  }

  RowRequest Request(const RowParameters& parameters, bool is_edited, bool is_masked) {
    RowRequest request;
    request.logits = elements_.data();
    request.dtype = dtype_;
    request.live_vocabulary = uint32_t(elements_.size() / ElementBytes(dtype_));
    request.parameters = &parameters;
    request.noise = {.seed = random_(), .position = 1, .stream = 0};
    if (is_edited) request.edits = edits_;
    if (is_masked) request.allowed_bits = allowed_.data();
    request.requested = named_;
    return request;
  }

 private:
  void Put(float logit) {
    uint32_t bits = std::bit_cast<uint32_t>(logit);
    if (dtype_ == DType::kBF16) bits &= 0xffff0000;
    if (dtype_ == DType::kF16) bits &= 0xffffe000;
    const bool is_small = std::fabs(logit) < 0x1p-12f;
    const uint32_t element = law::Narrow(dtype_, is_small ? 0 : law::Canonical(bits));
    const auto* const bytes = reinterpret_cast<const std::byte*>(&element);
    elements_.insert(elements_.end(), bytes, bytes + ElementBytes(dtype_));
  }

  std::mt19937_64 random_;
  DType dtype_;
  std::vector<std::byte> elements_;
  std::vector<LogitEdit> edits_;
  std::vector<uint32_t> allowed_;
  std::vector<uint32_t> named_;
};

TEST(Ranks, OfManyTokensAreTheReferences) {
  constexpr float kSpreads[] = {2, 0.001f, 40};
  constexpr uint32_t kNamed[] = {1000, 25, 24, 3, 300};
  uint64_t seed = 0;
  for (uint64_t n = 0; n < sortition::testing::Scaled(90); ++n) {
    SCOPED_TRACE(n);
    NamedRow row(++seed, kTypes[n % 3], kSpreads[n / 3 % 3], kNamed[n % 5]);
    RowParameters parameters;
    law::SamplingParameters options = {.temperature = 0.8f};
    if (n % 4 == 1) options.top_k = 40;
    if (n % 4 == 2) options.top_k = 5000;
    if (n % 4 == 3) options.top_p = 0.9f;
    law::Compile(options, &parameters);
    parameters.raw_logprob = parameters.processed_logprob = parameters.tempered_logprob = true;
    const RowRequest request = row.Request(parameters, n % 2 == 0, n % 7 < 2);
    const RowOutput expected = law::SampleRowReference(request);
    for (const Target* target : RunnableTargets()) {
      Scratch scratch;
      RowOutput answer;
      SampleRow(*target, request, &scratch, &answer);
      ASSERT_EQ(answer, expected) << target->name;
    }
  }
}

// A logit for the table's span on each side, and all named ones between in one bucket.
TEST(Ranks, OfTokensInOneBucketAreTheReferences) {
  std::vector<float> logits(4000);
  for (uint32_t id = 0; id < logits.size(); ++id) {
    logits[id] = id % 20 == 0 ? -30000 : id % 20 == 1 ? 30000 : 0x1p-10f * float(id * 7919 % 1000);
  }
  std::vector<uint32_t> named;
  for (uint32_t id = 0; id < 1000; ++id) named.push_back(3 * id);
  RowParameters parameters;
  law::Compile({}, &parameters);
  parameters.raw_logprob = true;
  RowRequest request;
  request.logits = logits.data();
  request.live_vocabulary = uint32_t(logits.size());
  request.parameters = &parameters;
  request.requested = named;
  const RowOutput expected = law::SampleRowReference(request);
  Scratch scratch;
  RowOutput answer;
  SampleRow(request, &scratch, &answer);
  EXPECT_EQ(answer, expected);
}

}  // namespace
}  // namespace sortition::kernels::cpu::ranks_test
