// Rows whose answers are written down in golden_outputs.json, to test a new implementation, or a device at its start.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/law/parameters.h"
#include "kernels/row.h"

namespace sortition::law {

inline uint32_t FloatBits(float x) { return std::bit_cast<uint32_t>(x); }

// How logits are made from integers, so that a row of any size is a few words in a file. With x and y the first two
// words of NoiseWords(id, 0, {seed, 0, 0, 0}) and n the sum of the four bytes of x, less 510:
enum class GoldenShape {
  kExplicit,  // listed
  kModel,     // n / 64; where y % 512 == 0, (n + 512 + (y >> 9) % 512) / 64
  kFlat,      // n / 4096
  kTies,      // floor(n / 32) / 2
  kHoles,     // as kModel; where y % 4 == 1, -Inf
};

// A drafter's probabilities: `elements` for `tokens` (as sent; f32 bits if sparse), `rest` for every other token.
struct KnownDraft {
  kernels::DraftDistribution::Form form = kernels::DraftDistribution::Form::kCertain;
  kernels::DType dtype = kernels::DType::kF32;
  std::vector<uint32_t> tokens;
  std::vector<uint32_t> elements;
  uint32_t rest = 0;
  std::vector<std::byte> dense;  // all of it, where dense
};

struct GoldenRow {
  std::string name;
  GoldenShape shape = GoldenShape::kExplicit;
  uint32_t seed = 0;
  kernels::DType dtype = kernels::DType::kF32;
  uint32_t vocabulary = 0;
  std::vector<uint32_t> elements;  // as sent, 16-bit types in the low half; filled for every shape
  SamplingParameters options;
  kernels::RowParameters compiled;  // compiled from `options`, with the wanted answers
  kernels::NoiseKey noise = {0x2222222211111111, 5, 0};
  std::vector<kernels::LogitEdit> edits;
  bool has_allowed_tokens = false;
  std::vector<uint32_t> allowed_tokens;
  std::vector<uint32_t> allowed_bits;  // empty = no mask
  uint64_t sampler_state = 0;
  kernels::RowTask task = kernels::RowTask::kDraw;
  uint32_t given = 0;
  bool wants_race_place = false;
  KnownDraft draft;
  std::vector<uint32_t> requested;
  uint32_t likely = kernels::RowRequest::kNoToken;
};

// All of them, in the file's order.
std::vector<GoldenRow> GoldenRows();

// The row's logits as a tensor's bytes.
std::vector<std::byte> MakeTensor(const GoldenRow& row);

// `row` and `tensor` stay alive and in place while the request is used.
kernels::RowRequest MakeRequest(const GoldenRow& row, const std::vector<std::byte>& tensor);

}  // namespace sortition::law
