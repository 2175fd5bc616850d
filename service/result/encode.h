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

// The logprobs are computed here, on the host, from the device's integers. `answer.error` is kNone.
void EncodeDraw(const kernels::RowAnswer& answer, const kernels::RowParameters& parameters,
                std::optional<uint64_t> history_hash, v1::DrawResult* result);

// Why a row that a device judged unusable is refused. `answer.error` is not kNone.
Refusal RefusalOf(const kernels::RowAnswer& answer, uint32_t row);

}  // namespace sortition::service
