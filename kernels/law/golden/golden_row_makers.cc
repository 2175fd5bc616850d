// Making of golden rows, and of requests from them.
#include "kernels/law/golden/golden_row_makers.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "kernels/law/law.h"
#include "kernels/law/row_law.h"

namespace sortition::law {
namespace {

using kernels::DType;
using Form = kernels::DraftDistribution::Form;

// f16 bits of n / 2^shift, |n| < 2048, where the result is a normal number.
uint32_t F16Bits(int32_t n, int shift) {
  if (n == 0) return 0;
  const auto magnitude = uint32_t(n < 0 ? -n : n);
  const int leading = 31 - std::countl_zero(magnitude);
  return (n < 0 ? 0x8000u : 0u) | uint32_t(leading - shift + 15) << 10 | (magnitude << (10 - leading) & 0x3ff);
}

// n / 2^shift; bf16 by cutting off the lower half of the f32.
uint32_t Element(DType dtype, int32_t n, int shift) {
  if (dtype == DType::kF16) return F16Bits(n, shift);
  const uint32_t bits = FloatBits(float(n) / float(1 << shift));
  return dtype == DType::kBF16 ? bits >> 16 : bits;
}

uint32_t NegativeInfinity(DType dtype) {
  if (dtype == DType::kF16) return 0xfc00;
  return dtype == DType::kBF16 ? 0xff80 : 0xff800000;
}

uint32_t ShapedElement(const GoldenRow& row, uint32_t id) {
  const PhiloxWords words = NoiseWords(id, 0, DrawKey{row.seed, 0, 0, 0});
  int32_t n = -510;
  for (int byte = 0; byte < 4; ++byte) n += int32_t(words.x >> (8 * byte) & 255);
  if (row.shape == GoldenShape::kFlat) return Element(row.dtype, n, 12);
  if (row.shape == GoldenShape::kTies) return Element(row.dtype, n >> 5, 1);
  if (row.shape == GoldenShape::kHoles && words.y % 4 == 1) return NegativeInfinity(row.dtype);
  if (words.y % 512 == 0) n += 512 + int32_t((words.y >> 9) % 512);
  return Element(row.dtype, n, 6);
}

// Raw and processed logprobs with their first five tokens.
GoldenRow Row(std::string name, SamplingParameters options) {
  GoldenRow row;
  row.name = std::move(name);
  row.options = options;
  Compile(options, &row.compiled);
  row.compiled.raw_logprob = true;
  row.compiled.processed_logprob = true;
  row.compiled.raw_top = 5;
  row.compiled.processed_top = 5;
  return row;
}

// A probability as an element; of f16, where it is a power of two or a normal number that f16 holds.
uint32_t ProbabilityElement(DType dtype, float q) {
  if (dtype == DType::kF32) return FloatBits(q);
  if (dtype == DType::kBF16) return FloatBits(q) >> 16;
  const int exponent = int(FloatBits(q) >> 23) - 127;
  if (exponent < -24) return 0;
  return exponent < -14 ? 1u << (exponent + 24) : uint32_t(exponent + 15) << 10 | (FloatBits(q) >> 13 & 0x3ff);
}

GoldenRow Verify(GoldenRow row, uint32_t given, Form form, DType dtype, std::vector<uint32_t> tokens,
                 const std::vector<float>& q) {
  row.task = kernels::RowTask::kVerify;
  row.given = given;
  row.draft.form = form;
  row.draft.dtype = dtype;
  row.draft.tokens = std::move(tokens);
  for (const float x : q) row.draft.elements.push_back(ProbabilityElement(dtype, x));
  return row;
}

}  // namespace

GoldenRow Explicit(std::string name, const std::vector<float>& logits, const SamplingParameters& options) {
  GoldenRow row = Row(std::move(name), options);
  row.vocabulary = uint32_t(logits.size());
  for (const float x : logits) row.elements.push_back(FloatBits(x));
  return row;
}

GoldenRow Shaped(std::string name, GoldenShape shape, DType dtype, uint32_t vocabulary,
                 const SamplingParameters& options) {
  GoldenRow row = Row(std::move(name), options);
  row.shape = shape;
  row.seed = vocabulary;
  row.dtype = dtype;
  row.vocabulary = vocabulary;
  row.noise.position = vocabulary % 1000;
  for (uint32_t id = 0; id < vocabulary; ++id) row.elements.push_back(ShapedElement(row, id));
  return row;
}

GoldenRow Chained(std::string name, GoldenShape shape, DType dtype, uint32_t vocabulary,
                  const SamplingParameters& options) {
  GoldenRow row = Shaped(std::move(name), shape, dtype, vocabulary, options);
  row.sampler_state = kernels::InitialSamplerState(row.compiled.chain);
  return row;
}

GoldenRow TokenAlone(GoldenRow row) {
  row.compiled.raw_logprob = false;
  row.compiled.processed_logprob = false;
  row.compiled.raw_top = 0;
  row.compiled.processed_top = 0;
  return row;
}

GoldenRow Score(GoldenRow row, uint32_t given) {
  row.task = kernels::RowTask::kScore;
  row.given = given;
  return row;
}

GoldenRow VerifyCertain(GoldenRow row, uint32_t given) {
  return Verify(std::move(row), given, Form::kCertain, DType::kF32, {}, {});
}

GoldenRow VerifySparse(GoldenRow row, uint32_t given, std::vector<uint32_t> tokens, const std::vector<float>& q) {
  return Verify(std::move(row), given, Form::kSparse, DType::kF32, std::move(tokens), q);
}

GoldenRow VerifyDense(GoldenRow row, uint32_t given, DType dtype, std::vector<uint32_t> tokens,
                      const std::vector<float>& q, float rest) {
  row = Verify(std::move(row), given, Form::kDense, dtype, std::move(tokens), q);
  KnownDraft& draft = row.draft;
  draft.rest = ProbabilityElement(dtype, rest);
  const size_t bytes = kernels::ElementBytes(dtype);
  draft.dense.resize(row.vocabulary * bytes);
  for (size_t id = 0; id < row.vocabulary; ++id) std::memcpy(&draft.dense[id * bytes], &draft.rest, bytes);
  for (size_t i = 0; i < draft.tokens.size(); ++i) {
    std::memcpy(&draft.dense[draft.tokens[i] * bytes], &draft.elements[i], bytes);
  }
  return row;
}

std::vector<uint32_t> FirstTokens(const GoldenRow& row, uint32_t count) {
  std::vector<uint32_t> tokens(row.vocabulary);
  for (uint32_t id = 0; id < row.vocabulary; ++id) tokens[id] = id;
  const auto key = [&](uint32_t id) { return Key(Canonical(Widen(row.dtype, row.elements[id]))); };
  std::partial_sort(tokens.begin(), tokens.begin() + count, tokens.end(),
                    [&](uint32_t a, uint32_t b) { return key(a) != key(b) ? key(a) > key(b) : a < b; });
  tokens.resize(count);
  return tokens;
}

std::vector<std::byte> MakeTensor(const GoldenRow& row) {
  const size_t bytes = kernels::ElementBytes(row.dtype);
  std::vector<std::byte> tensor(row.elements.size() * bytes);
  for (size_t id = 0; id < row.elements.size(); ++id) std::memcpy(&tensor[id * bytes], &row.elements[id], bytes);
  return tensor;
}

kernels::RowRequest MakeRequest(const GoldenRow& row, const std::vector<std::byte>& tensor) {
  kernels::RowRequest request;
  request.logits = tensor.data();
  request.dtype = row.dtype;
  request.live_vocabulary = row.vocabulary;
  request.parameters = &row.compiled;
  request.noise = row.noise;
  request.edits = row.edits;
  request.has_allowed_tokens = row.has_allowed_tokens;
  request.allowed_tokens = row.allowed_tokens;
  request.sampler_state = row.sampler_state;
  request.allowed_bits = row.allowed_bits.empty() ? nullptr : row.allowed_bits.data();
  request.task = row.task;
  request.given = row.given;
  request.wants_race_place = row.wants_race_place;
  request.draft.form = row.draft.form;
  request.draft.dtype = row.draft.dtype;
  if (row.draft.form == Form::kDense) request.draft.dense = row.draft.dense.data();
  if (row.draft.form == Form::kSparse) {
    request.draft.sparse_tokens = row.draft.tokens;
    request.draft.sparse_bits = row.draft.elements;
  }
  request.requested = row.requested;
  request.likely = row.likely;
  return request;
}

}  // namespace sortition::law
