// Encodes the result of a row: its tokens, and the logprobs, which are computed here, on the host, from devices'
// integers.
#pragma once

#include <cstdint>
#include <optional>

#include "google/protobuf/repeated_field.h"
#include "kernels/row.h"
#include "service/row/row_plan.h"
#include "service/sequence/row_result.h"
#include "service/sequence/sequence_spec.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Where a row's answer goes.
struct RowPlace {
  uint32_t row = 0;
  uint64_t step_id = 0;
};

// Appends the answer in as many messages as it takes (`continues`): one holds at most kPieceTokens log probabilities,
// kept tokens or probabilities, and so less than 1 MB. Answers what `spec` and `plan` ask for, and no more.
inline constexpr uint32_t kPieceTokens = 1u << 16;
void EncodeOutcome(const RowResult& result, const RowPlan& plan, const SequenceSpec& spec, RowPlace place,
                   google::protobuf::RepeatedPtrField<v1::RowResult>* results);

}  // namespace sortition::service
