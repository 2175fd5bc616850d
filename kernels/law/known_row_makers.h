// How known rows are made; for the lists of them.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/law/known_rows.h"

namespace sortition::law {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Every maker's rows ask for raw and processed logprobs with their first five tokens.
KnownRow Explicit(std::string name, const std::vector<float>& logits, const SamplingParameters& options = {});
KnownRow Shaped(std::string name, KnownShape shape, kernels::DType dtype, uint32_t vocabulary,
                const SamplingParameters& options = {});

// As Shaped, with the chain's first state.
KnownRow Chained(std::string name, KnownShape shape, kernels::DType dtype, uint32_t vocabulary,
                 const SamplingParameters& options);

// A logprob or its alternatives are no longer asked for.
KnownRow TokenAlone(KnownRow row);

// Tasks other than a draw; `given` is the token that they are about.
KnownRow Score(KnownRow row, uint32_t given);
KnownRow VerifyCertain(KnownRow row, uint32_t given);
// Probabilities of `tokens`, which ascend; sparse, or dense with `rest` for every other token.
KnownRow VerifySparse(KnownRow row, uint32_t given, std::vector<uint32_t> tokens, const std::vector<float>& q);
KnownRow VerifyDense(KnownRow row, uint32_t given, kernels::DType dtype, std::vector<uint32_t> tokens,
                     const std::vector<float>& q, float rest);

// The first `count` live tokens in the law's order.
std::vector<uint32_t> FirstTokens(const KnownRow& row, uint32_t count);

// The lists that go on where known_rows.cc ends, in the file's order.
void AddTaskRows(std::vector<KnownRow>* rows);    // scores and verifications
void AddAnswerRows(std::vector<KnownRow>* rows);  // what can be asked for beside a token

}  // namespace sortition::law
