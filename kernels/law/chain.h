// Sampler chains on the host: their compilation, and the outputs of rows that have one.
//
// Every function here is pure, thread-safe and gives the same bits on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/law/law.h"
#include "kernels/law/parameters.h"
#include "kernels/row.h"

namespace sortition::law {

// The field of SamplingParameters that a sampler is set by: "top_p".
std::string_view SamplerName(Sampler sampler);

// The orders of peers. A sampler that a peer lacks has the place that docs/semantics.md gives it.
enum class Preset { kVllm, kLlamaCpp, kHf };
std::span<const Sampler> PresetOrder(Preset preset);

// True if the sampler has another value than its off value.
bool IsOn(const SamplingParameters& parameters, Sampler sampler);

// The stages of the samplers that are on, in their order.
std::vector<kernels::Stage> CompileChain(const SamplingParameters& parameters);

// The temperature that goes with answer.processed in law::Logprob.
double ProcessedTemperature(const kernels::RowParameters& parameters, const kernels::RowOutput& answer);

// The scale that goes with it in law::Probability; answer.processed is filled.
Scale ProcessedScale(const kernels::RowParameters& parameters, const kernels::RowOutput& answer);

// The temperature of the tempered distribution: the row's own, or `dynamic` (RowOutput::temperature) if dynamic
// temperature chose one. The second function returns the number for law::Logprob of answer.tempered.
Temperature TemperedConstants(const kernels::RowParameters& parameters, uint32_t dynamic);
double TemperedTemperature(const kernels::RowParameters& parameters, const kernels::RowOutput& answer);

// The bits that answers show for a token of canonical bits `bits` in the processed distribution: its logit as the chain
// left it, before the temperature; with adaptive-p, its new logit less the largest possible one.
uint32_t ProcessedBits(uint32_t bits, const Shape& shape);

// Turns the bits of the processed distribution's tokens, which are those before the chain, into those that answers
// show. Tokens that are not in it stay so.
void ShowProcessed(const Shape& shape, kernels::RowOutput* answer);

}  // namespace sortition::law
