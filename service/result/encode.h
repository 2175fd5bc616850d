// Results and refusals as messages of the contract.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/row.h"
#include "service/refusal.h"
#include "sortition/v1/errors.pb.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

void EncodeError(const Refusal& refusal, v1::Error* error);

// The answer to a message that is refused as a whole: by its sequence or mask where it names one, else by its index on
// the stream. Not for steps.
v1::StreamResponse EncodeRefused(const v1::StreamRequest& message, uint64_t message_index, const Refusal& refusal);

// The logprobs are computed here, on the host, from the device's integers.
void EncodeLogprobs(const kernels::Distribution& distribution, double temperature, v1::Logprobs* logprobs);

// Everything but the kept tokens, which may take several messages (encode_outcome.h). `answer.error` is kNone.
void EncodeDraw(const kernels::RowOutput& answer, const kernels::RowParameters& parameters,
                std::optional<uint64_t> history_hash, v1::DrawResult* result);

}  // namespace sortition::service
