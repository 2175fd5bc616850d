// Encodes results and refusals as messages of the contract.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/row.h"
#include "service/refusal.h"
#include "service/text/sequence_spec.h"
#include "service/text/text_end.h"
#include "sortition/v1/errors.pb.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Sets `*error` to a refusal.
void EncodeError(const Refusal& refusal, v1::Error* error);

// Returns the answer to a message that is refused as a whole. It names the message's sequence or mask if there is one,
// otherwise the message's index on the stream. Not for steps.
v1::StreamResponse EncodeRefused(const v1::StreamRequest& message, uint64_t message_index, const Refusal& refusal);

// Sets the log probabilities, kept mass, entropy and kept count of `*to` that `parameters` request. Computes log
// probabilities on the host from the device's integers. `To` is DrawResult or Position.
template <typename To>
void EncodeAsked(const kernels::RowOutput& output, const kernels::RowParameters& parameters, To* to);

// Sets everything but the kept tokens, which may take several parts (encode_result.h). `answer.error` is kNone.
void EncodeDraw(const kernels::RowOutput& answer, const SequenceSpec& spec, uint32_t phase,
                std::optional<uint64_t> history_hash, v1::DrawResult* result);

// Sets the finish reason and the rewind of a result whose last token is `last`. `To` is DrawResult or VerifyResult.
template <typename To>
void EncodeEnd(const TextEnd& end, uint32_t last, const SequenceSpec& spec, To* to);

}  // namespace sortition::service
