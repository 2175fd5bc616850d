// Makers of golden rows, for their lists.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/law/golden/golden_rows.h"

namespace sortition::law {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Every maker's rows want raw and processed logprobs with their first five tokens.
GoldenRow Explicit(std::string name, const std::vector<float>& logits, const SamplingParameters& options = {});
GoldenRow Shaped(std::string name, GoldenShape shape, kernels::DType dtype, uint32_t vocabulary,
                 const SamplingParameters& options = {});

// As Shaped, with the chain's first state.
GoldenRow Chained(std::string name, GoldenShape shape, kernels::DType dtype, uint32_t vocabulary,
                  const SamplingParameters& options);

// Returns the row without logprobs and their alternatives.
GoldenRow TokenAlone(GoldenRow row);

// Set tasks other than a draw; `given` is their token.
GoldenRow Score(GoldenRow row, uint32_t given);
GoldenRow VerifyCertain(GoldenRow row, uint32_t given);
// Probabilities of `tokens`, which ascend; sparse, or dense with `rest` for every other token.
GoldenRow VerifySparse(GoldenRow row, uint32_t given, std::vector<uint32_t> tokens, const std::vector<float>& q);
GoldenRow VerifyDense(GoldenRow row, uint32_t given, kernels::DType dtype, std::vector<uint32_t> tokens,
                      const std::vector<float>& q, float rest);

// The first `count` live tokens in the law's order.
std::vector<uint32_t> FirstTokens(const GoldenRow& row, uint32_t count);

// Lists that continue where golden_rows.cc ends, in the file's order.
void AddTaskRows(std::vector<GoldenRow>* rows);    // scores and verifications
void AddAnswerRows(std::vector<GoldenRow>* rows);  // answers besides a token

}  // namespace sortition::law
