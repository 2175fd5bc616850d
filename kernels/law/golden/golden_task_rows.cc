// Golden rows of other tasks than a draw, and of all answers besides a token: each feature of kernels/features.h, in
// each form that kernels treat separately.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/law/chain.h"
#include "kernels/law/golden/golden_row_makers.h"

namespace sortition::law {
namespace {

using kernels::DType;
using kernels::LogitEdit;

const SamplingParameters kUsual = {.temperature = 0.7f, .top_k = 50, .top_p = 0.95f, .min_p = 0.02f};

// A drafter that agrees with the row: its first tokens in order, each half as likely as the one before.
struct Agreeing {
  explicit Agreeing(const GoldenRow& row, float first) : tokens(FirstTokens(row, 16)), leading(tokens) {
    std::ranges::sort(tokens);
    for (const uint32_t token : tokens) {
      const auto place = std::ranges::find(leading, token) - leading.begin();
      q.push_back(std::ldexp(first, -int(place)));
    }
  }
  std::vector<uint32_t> tokens;  // ascending
  std::vector<uint32_t> leading;
  std::vector<float> q;
};

// `place` in the drafter's order of the draft.
GoldenRow VerifyAgreeing(const GoldenRow& row, uint32_t place) {
  const Agreeing drafter(row, 0.5f);
  return VerifySparse(row, drafter.leading[place], drafter.tokens, drafter.q);
}

// Half of the drafter's probability is spread evenly over the vocabulary, a power of two.
GoldenRow VerifyHalfAgreeing(const GoldenRow& row, DType dtype, uint32_t place) {
  const Agreeing drafter(row, 0.25f);
  return VerifyDense(row, drafter.leading[place], dtype, drafter.tokens, drafter.q, 0.5f / float(row.vocabulary));
}

void AddScores(std::vector<GoldenRow>* rows) {
  const std::vector<float> logits = {0.5f, 2, 1, 3, -kInfinity};
  rows->push_back(Score(Explicit("score", logits), 1));
  rows->push_back(Score(Explicit("score of a token that is filtered out", logits, {.top_k = 2}), 0));
  rows->push_back(Score(Explicit("score of a masked token", logits), 4));
  rows->push_back(Score(Explicit("score of another token than greedy's", logits, {.temperature = 0}), 2));
  rows->push_back(Score(Explicit("score of a row that fails", {1, std::nanf(""), 0}), 2));
  rows->push_back(Score(Shaped("score, model bf16", GoldenShape::kModel, DType::kBF16, 50257, kUsual), 17));
  rows->push_back(Score(Shaped("score, raw logprob alone", GoldenShape::kModel, DType::kF32, 32015), 4321));
  rows->back().compiled.processed_logprob = false;
  rows->back().compiled.processed_top = 0;
  rows->push_back(Score(Chained("score after a chain", GoldenShape::kModel, DType::kF16, 5003,
                                {.temperature = 0.8f, .typical_p = 0.9f, .top_a = 0.1f}),
                        99));
  rows->push_back(
      Score(Chained("score moves mirostat's state", GoldenShape::kModel, DType::kF32, 2003, {.mirostat = 2}), 1));
  rows->back().given = FirstTokens(rows->back(), 1)[0];
}

void AddSmallVerifications(std::vector<GoldenRow>* rows) {
  const std::vector<float> even = {0, 0, -20, -20};
  rows->push_back(VerifyCertain(Explicit("verify: a certain draft, likely", {0, 9, 0, 0}), 1));
  rows->push_back(VerifyCertain(Explicit("verify: a certain draft, unlikely", {0, 0, 0, -9}), 3));
  rows->push_back(VerifyCertain(Explicit("verify: a masked draft", {0, 1, -kInfinity}), 2));
  rows->push_back(VerifyCertain(Explicit("verify: greedy, its token", {0, 2, 1}, {.temperature = 0}), 1));
  rows->push_back(VerifyCertain(Explicit("verify: greedy, another", {0, 2, 1}, {.temperature = 0}), 2));
  rows->push_back(VerifySparse(Explicit("verify: one token is left", even, {.top_k = 2}), 2, {0, 2}, {0.5f, 0.5f}));
  rows->push_back(VerifySparse(Explicit("verify: sparse", {1, 2, 3, 4}), 0, {0, 1, 3}, {0.75f, 0.125f, 0.125f}));
  rows->push_back(VerifyDense(Explicit("verify: dense, its zeros among them", {1, 2, 3, 4}), 1, DType::kF32,
                              {0, 1, 2, 3}, {0x1p-130f, 0.25f, -0.0f, 0.75f}, 0));
  rows->push_back(VerifyDense(Explicit("verify: nothing is left, so anything is", even, {.top_k = 2}), 2, DType::kF32,
                              {0, 1, 2}, {0.5f, 0.5f, 0.005f}, 0));
  rows->push_back(VerifyDense(Explicit("verify: a probability below 0 fails the row", {1, 2, 3}), 0, DType::kBF16,
                              {0, 1, 2}, {0.75f, 0.5f, -0.25f}, 0));
  rows->push_back(VerifyDense(Explicit("verify: a NaN among probabilities fails the row", {1, 2, 3}), 0, DType::kF32,
                              {0, 1, 2}, {0.5f, std::nanf(""), 2.0f}, 0));
  rows->push_back(VerifyDense(Explicit("verify: a sum other than 1 fails the row", {1, 2, 3}), 0, DType::kF16,
                              {0, 1, 2}, {0.5f, 0.25f, 0.125f}, 0));
  rows->push_back(VerifyDense(Explicit("verify: an impossible draft fails the row", {1, 2, 3}), 2, DType::kF32, {0, 1},
                              {0.5f, 0.5f}, 0));
  rows->push_back(VerifyDense(Explicit("verify: logits fail before drafts", {1, std::nanf(""), 3}), 2, DType::kF32,
                              {0, 1}, {0.5f, 2.0f}, 0));
}

void AddLargeVerifications(std::vector<GoldenRow>* rows) {
  const auto model = GoldenShape::kModel;
  rows->push_back(VerifyCertain(Shaped("verify: certain, model bf16", model, DType::kBF16, 128256, kUsual), 0));
  rows->back().given = FirstTokens(rows->back(), 2)[1];
  rows->push_back(VerifyAgreeing(Shaped("verify: sparse, model f32", model, DType::kF32, 50257, {.min_p = 0.01f}), 0));
  rows->push_back(
      VerifyHalfAgreeing(Shaped("verify: dense f32, model f32", model, DType::kF32, 32768, kUsual), DType::kF32, 3));
  rows->push_back(VerifyHalfAgreeing(Shaped("verify: dense bf16, flat f16", GoldenShape::kFlat, DType::kF16, 4096),
                                     DType::kBF16, 0));
  rows->push_back(VerifyHalfAgreeing(
      Shaped("verify: dense f16, ties bf16", GoldenShape::kTies, DType::kBF16, 16384, {.top_p = 0.9f}), DType::kF16,
      5));
  rows->push_back(VerifyHalfAgreeing(Chained("verify after a chain: dense bf16, model bf16", model, DType::kBF16, 32768,
                                             {.temperature = 0.8f, .typical_p = 0.95f}),
                                     DType::kBF16, 1));
  rows->push_back(VerifyAgreeing(Chained("verify after a chain: sparse, holes f32", GoldenShape::kHoles, DType::kF32,
                                         4001, {.top_k = 30, .top_n_sigma = 2, .top_h = 0.6f}),
                                 1));
  rows->push_back(
      VerifyCertain(Chained("verify moves mirostat's state", model, DType::kF32, 2005, {.mirostat = 1}), 7));
}

// Rows that need no sum of weights, which kernels treat apart.
void AddTokensAlone(std::vector<GoldenRow>* rows) {
  const auto add = [&](std::string name, GoldenShape shape, DType dtype, uint32_t vocabulary,
                       const SamplingParameters& options) {
    rows->push_back(TokenAlone(Shaped("token alone: " + std::move(name), shape, dtype, vocabulary, options)));
  };
  rows->push_back(TokenAlone(Explicit("token alone", {0, 1, 2, 1, 0})));
  add("model bf16", GoldenShape::kModel, DType::kBF16, 128256, kUsual);
  add("temperature, model f32", GoldenShape::kModel, DType::kF32, 50257, {.temperature = 1.1f});
  add("greedy, ties f16", GoldenShape::kTies, DType::kF16, 32018, {.temperature = 0});
  add("top-p, flat f32", GoldenShape::kFlat, DType::kF32, 8009, {.top_p = 0.8f});
  add("its distribution is a chain's", GoldenShape::kModel, DType::kF32, 6007, {.typical_p = 0.8f});
  rows->push_back(TokenAlone(Shaped("token and raw logprob", GoldenShape::kModel, DType::kF16, 3011, kUsual)));
  rows->back().compiled.raw_logprob = true;
  rows->push_back(TokenAlone(Shaped("token and processed logprob", GoldenShape::kModel, DType::kBF16, 3019, kUsual)));
  rows->back().compiled.processed_logprob = true;
  for (const uint32_t likely : {1u, 3u}) {
    rows->push_back(Explicit(likely == 1 ? "a right hint" : "a wrong hint", {-9, 9, -9, 0}));
    rows->back().likely = likely;
  }
}

void AddLogprobs(std::vector<GoldenRow>* rows) {
  rows->push_back(Explicit("logprobs by name", {0, -kInfinity, 2, 1, 3}, {.top_k = 3}));
  rows->back().requested = {2, 0, 1, 2};
  rows->push_back(Shaped("logprobs by name, model f32", GoldenShape::kModel, DType::kF32, 32023, kUsual));
  for (uint32_t i = 0; i < 60; ++i) rows->back().requested.push_back(i * 523 + i % 3);
  for (const uint32_t token : FirstTokens(rows->back(), 20)) rows->back().requested.push_back(token);
  rows->push_back(Chained("logprobs by name after a chain, ties bf16", GoldenShape::kTies, DType::kBF16, 2011,
                          {.top_k = 300, .top_a = 0.05f}));
  for (uint32_t i = 0; i < 100; ++i) rows->back().requested.push_back(i * 20);
  rows->push_back(Shaped("first 1,000 tokens, model bf16", GoldenShape::kModel, DType::kBF16, 32026, {.top_k = 200}));
  rows->back().compiled.raw_top = rows->back().compiled.processed_top = kernels::kMaxTopLogprobs;
}

void AddEntropiesAndKeptSets(std::vector<GoldenRow>* rows) {
  const auto model = GoldenShape::kModel;
  rows->push_back(Explicit("entropy", {0, 1, 2}, {.temperature = 0.5f}));
  rows->back().compiled.entropy = true;
  rows->push_back(TokenAlone(Shaped("entropy alone, model bf16", model, DType::kBF16, 50257)));
  rows->back().compiled.entropy = true;
  rows->push_back(Chained("entropy after a chain", GoldenShape::kFlat, DType::kF32, 2017, {.eta_cutoff = 1e-4f}));
  rows->back().compiled.entropy = true;

  rows->push_back(Explicit("kept set", {0, 3, 1, 2, -kInfinity}, {.top_k = 3}));
  rows->back().compiled.kept_tokens = true;
  rows->push_back(TokenAlone(Shaped("kept count alone, model f32", model, DType::kF32, 32027, {.min_p = 0.001f})));
  rows->back().compiled.kept_count = true;
  rows->push_back(TokenAlone(Shaped("kept set alone, model bf16", model, DType::kBF16, 128256, kUsual)));
  rows->back().compiled.kept_tokens = true;
  rows->push_back(Shaped("kept set of all, holes f16", GoldenShape::kHoles, DType::kF16, 300));
  rows->back().compiled.kept_tokens = true;
  rows->push_back(Chained("kept set after a chain, ties f32", GoldenShape::kTies, DType::kF32, 2027,
                          {.top_k = 100, .smoothing_factor = 0.3f}));
  rows->back().compiled.kept_tokens = true;
}

// All answers in one row, for each form that kernels have for rows.
void AddEverything(std::vector<GoldenRow>* rows) {
  const auto ask = [](GoldenRow row) {
    row.compiled.entropy = row.compiled.kept_count = row.compiled.kept_tokens = true;
    row.requested = FirstTokens(row, 3);
    row.requested.push_back(row.vocabulary - 1);
    row.edits = {{row.requested[0], LogitEdit::kRepeated, 0, PenaltyBits(0.2f, 0.1f, 2)},
                 {row.requested[1], 0, CanonicalBits(0.75f), 0}};
    if (row.edits[0].token > row.edits[1].token) std::swap(row.edits[0], row.edits[1]);
    row.allowed_bits.assign((row.vocabulary + 31) / 32, 0xfffeffff);
    return row;
  };
  const SamplingParameters options = {.temperature = 0.9f, .top_k = 40, .repetition_penalty = 1.2f};
  SamplingParameters chained = options;
  chained.xtc_probability = 1;
  chained.xtc_threshold = 0.05f;
  const auto model = GoldenShape::kModel;
  rows->push_back(ask(Score(Shaped("everything: score", model, DType::kF16, 1031, options), 5)));
  rows->push_back(ask(VerifyAgreeing(Shaped("everything: verify", model, DType::kBF16, 1033, options), 2)));
  rows->push_back(
      ask(VerifyAgreeing(Chained("everything: verify after a chain", model, DType::kF32, 1039, chained), 0)));
}

}  // namespace

void AddTaskRows(std::vector<GoldenRow>* rows) {
  AddScores(rows);
  AddSmallVerifications(rows);
  AddLargeVerifications(rows);
}

void AddAnswerRows(std::vector<GoldenRow>* rows) {
  AddTokensAlone(rows);
  AddLogprobs(rows);
  AddEntropiesAndKeptSets(rows);
  AddEverything(rows);
}

}  // namespace sortition::law
