// The list of golden rows that draw: each exists for a clause of the law, or for a vocabulary that models have.
#include <limits>

#include "kernels/law/chain.h"
#include "kernels/law/golden/golden_row_makers.h"
#include "kernels/law/law.h"

namespace sortition::law {
namespace {

using kernels::DType;
using kernels::LogitEdit;

void AddExplicitRows(std::vector<GoldenRow>* rows) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  rows->push_back(Explicit("one token", {-3.5f}));
  rows->push_back(Explicit("equal logits go to the lowest id when greedy", {1, 2, 2, 2}, {.temperature = 0}));
  rows->push_back(Explicit("top-k cuts ties by id", {1, 2, 2, 2, 0}, {.top_k = 2}));
  rows->push_back(Explicit("top-p keeps the shortest prefix", {0, 0, 0, 0}, {.top_p = 0.5f}));
  rows->push_back(Explicit("min-p keeps its bound", {0, -0.6931471f, -0.6931473f, -5}, {.min_p = 0.5f}));
  rows->push_back(Explicit("zeros and denormals are one logit", {0.0f, -0.0f, 1e-40f, -1e-40f, 0x1p-61f, -0x1p-61f}));
  rows->push_back(
      Explicit("sentinels are masked", {-65504, -1e9f, -std::numeric_limits<float>::max(), -kInfinity, 1, 0}));
  rows->push_back(Explicit("live up to the limits", {-65503.99f, 65503.99f, 0}));
  rows->push_back(Explicit("beyond 63 octaves nothing races", {0, -44, -100, -1000}));
  rows->push_back(Explicit("no live token", {-kInfinity, -kInfinity}));
  rows->push_back(Explicit("a NaN fails the row", {1, nan, 70000}));
  rows->push_back(Explicit("a logit too large fails the row", {1, 65504, nan}));
  rows->push_back(Explicit("a NaN can be masked", {1, nan, 0.5f}));
  rows->back().compiled.mask_nan = true;

  rows->push_back(Explicit("bias, repetition, penalty", {1, -1, 3, 0, 2.5f}, {.repetition_penalty = 1.3f}));
  rows->back().edits = {{0, LogitEdit::kRepeated, CanonicalBits(1.5f), PenaltyBits(0.25f, 0.5f, 3)},
                        {1, LogitEdit::kRepeated, 0, 0},
                        {2, LogitEdit::kBanned, CanonicalBits(9), 0},
                        {3, 0, CanonicalBits(-7), PenaltyBits(-0.1f, -0.2f, 2)}};
  rows->push_back(Explicit("a change too large fails the row", {1, 2, 3}));
  rows->back().edits = {{1, 0, CanonicalBits(65503), PenaltyBits(-100, 0, 100)}};
  rows->push_back(Explicit("a penalty can mask", {1, 2, 3}));
  rows->back().edits = {{2, 0, 0, PenaltyBits(100, 0, 1000)}};
  rows->push_back(Explicit("no bias brings back a masked token", {-kInfinity, 2, 3}));
  rows->back().edits = {{0, 0, CanonicalBits(65000), 0}};
  rows->push_back(Explicit("allowed tokens and bits", {5, 4, 3, 2, 1, 0}));
  rows->back().has_allowed_tokens = true;
  rows->back().allowed_tokens = {1, 2, 5};
  rows->back().allowed_bits = {0b100110};
}

void AddShapedRows(std::vector<GoldenRow>* rows) {
  const SamplingParameters usual = {.temperature = 0.7f, .top_k = 50, .top_p = 0.95f, .min_p = 0.02f};
  rows->push_back(Shaped("group edge 63", GoldenShape::kModel, DType::kF32, 63));
  rows->push_back(Shaped("group edge 64", GoldenShape::kModel, DType::kF32, 64));
  rows->push_back(Shaped("group edge 65", GoldenShape::kModel, DType::kF32, 65));
  rows->push_back(Shaped("model f32", GoldenShape::kModel, DType::kF32, 32000, usual));
  rows->push_back(Shaped("model f16", GoldenShape::kModel, DType::kF16, 32768, {.temperature = 0.6f, .top_p = 0.9f}));
  rows->push_back(Shaped("model bf16", GoldenShape::kModel, DType::kBF16, 50257, {.min_p = 0.1f}));
  rows->push_back(
      Shaped("model bf16, temperature only", GoldenShape::kModel, DType::kBF16, 128256, {.temperature = 0.8f}));
  rows->push_back(Shaped("model f32, greedy", GoldenShape::kModel, DType::kF32, 151936, {.temperature = 0}));
  rows->push_back(Shaped("model f32, coldest", GoldenShape::kModel, DType::kF32, 1000, {.temperature = 0.01f}));
  rows->push_back(Shaped("model f32, hottest", GoldenShape::kModel, DType::kF32, 1001, {.temperature = 100}));
  rows->push_back(Shaped("flat f32", GoldenShape::kFlat, DType::kF32, 128256, {.temperature = 1.5f}));
  rows->push_back(Shaped("flat f16, top-p", GoldenShape::kFlat, DType::kF16, 65536, {.top_p = 0.3f}));
  rows->push_back(Shaped("ties bf16, top-k", GoldenShape::kTies, DType::kBF16, 128256, {.top_k = 1000}));
  rows->push_back(Shaped("ties bf16, top-p", GoldenShape::kTies, DType::kBF16, 50257, {.top_p = 0.999f}));
  rows->push_back(
      Shaped("ties f16, top-k and top-p", GoldenShape::kTies, DType::kF16, 2048, {.top_k = 2047, .top_p = 0.5f}));
  rows->push_back(Shaped("holes f32", GoldenShape::kHoles, DType::kF32, 262144, usual));
  rows->push_back(
      Shaped("holes f16, large top-k", GoldenShape::kHoles, DType::kF16, 32000, {.top_k = 20000, .top_p = 0.999f}));

  rows->push_back(
      Shaped("model bf16, everything", GoldenShape::kModel, DType::kBF16, 151936,
             {.temperature = 0.9f, .top_k = 200, .top_p = 0.98f, .min_p = 0.01f, .repetition_penalty = 1.1f}));
  GoldenRow& all = rows->back();
  for (uint32_t i = 0; i < 100; ++i) {
    all.edits.push_back({i * 1511 + i % 7, i % 3 == 0 ? LogitEdit::kRepeated : 0u, CanonicalBits(float(i % 11) - 5.5f),
                         PenaltyBits(0.3f, 0.4f, 1 + i % 5)});
  }
  all.edits[50].flags |= LogitEdit::kBanned;
  for (uint32_t word = 0; word < (all.vocabulary + 31) / 32; ++word) {
    all.allowed_bits.push_back(NoiseWords(word, 0, DrawKey{1, 0, 0, 0}).x | 0x00ff00ff);
  }
  all.noise = {0xfedcba9876543210, 4000000000, 0x00030002};
}

SamplingParameters InOrderOf(Preset preset, SamplingParameters options) {
  const auto order = PresetOrder(preset);
  options.order.assign(order.begin(), order.end());
  return options;
}

void AddChained(std::string name, GoldenShape shape, DType dtype, uint32_t vocabulary,
                const SamplingParameters& options, std::vector<GoldenRow>* rows) {
  rows->push_back(Chained("chain: " + std::move(name), shape, dtype, vocabulary, options));
}

// Rows for one stage each, alone on a whole row or after stages that leave a list.
void AddChainedRows(std::vector<GoldenRow>* rows) {
  const auto model = GoldenShape::kModel;
  const SamplingParameters usual = {.temperature = 0.7f, .top_k = 50, .top_p = 0.95f, .min_p = 0.02f};
  AddChained("llama.cpp's order", model, DType::kF32, 32000, InOrderOf(Preset::kLlamaCpp, usual), rows);
  AddChained("Transformers' order", model, DType::kBF16, 32001, InOrderOf(Preset::kHf, usual), rows);
  AddChained("typical-p", model, DType::kBF16, 50257, {.typical_p = 0.9f}, rows);
  AddChained("typical-p of a flat row", GoldenShape::kFlat, DType::kF32, 5000, {.typical_p = 0.3f}, rows);
  AddChained("typical-p of ties", GoldenShape::kTies, DType::kF16, 3001, {.top_k = 900, .typical_p = 0.5f}, rows);
  AddChained("top-n-sigma", model, DType::kF32, 32768, {.temperature = 1.5f, .top_n_sigma = 1}, rows);
  AddChained("top-n-sigma with holes", GoldenShape::kHoles, DType::kBF16, 4099, {.top_n_sigma = 2.5f}, rows);
  AddChained("epsilon cutoff", model, DType::kF16, 32003, {.epsilon_cutoff = 3e-4f}, rows);
  AddChained("eta cutoff", model, DType::kF32, 32004, {.eta_cutoff = 2e-3f}, rows);
  AddChained("top-a", model, DType::kBF16, 32005, {.top_a = 0.3f}, rows);
  AddChained("top-h", model, DType::kF32, 32006, {.top_h = 0.5f}, rows);
  AddChained("p-less", GoldenShape::kTies, DType::kBF16, 32007, {.p_less = true}, rows);
  AddChained("XTC", model, DType::kF32, 32008, {.temperature = 0.5f, .xtc_probability = 1, .xtc_threshold = 0.02f},
             rows);
  AddChained("XTC on a list", model, DType::kF32, 128256,
             {.top_k = 40, .xtc_probability = 0.5f, .xtc_threshold = 0.01f}, rows);
  AddChained("dynamic temperature", model, DType::kF32, 32009,
             {.top_k = 100, .dynamic_temperature_range = 0.6f, .dynamic_temperature_exponent = 1.5f}, rows);
  AddChained("quadratic smoothing", model, DType::kF32, 32010, {.smoothing_factor = 0.2f, .smoothing_curve = 1.5f},
             rows);
  AddChained("smoothing after a temperature", model, DType::kBF16, 32011,
             {.temperature = 0.7f, .top_p = 0.9f, .smoothing_factor = 0.3f, .smoothing_curve = 2}, rows);
  AddChained("mirostat 1", model, DType::kF32, 32012, {.temperature = 0.9f, .mirostat = 1}, rows);
  AddChained("mirostat 2", model, DType::kF32, 32013, {.mirostat = 2, .mirostat_tau = 3}, rows);
  AddChained("adaptive-p", model, DType::kF32, 2001, {.adaptive_p = true, .adaptive_target = 0.3f}, rows);
  AddChained("adaptive-p after min-p", model, DType::kBF16, 32014,
             {.min_p = 0.01f, .adaptive_p = true, .adaptive_target = 0.1f}, rows);
  rows->back().sampler_state = 0x20000000;
}

}  // namespace

std::vector<GoldenRow> GoldenRows() {
  std::vector<GoldenRow> rows;
  AddExplicitRows(&rows);
  AddShapedRows(&rows);
  AddChainedRows(&rows);
  AddTaskRows(&rows);
  AddAnswerRows(&rows);
  return rows;
}

}  // namespace sortition::law
