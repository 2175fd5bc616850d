// Encodes the result of one row. The log probabilities are computed here, on the host, from the devices' integers.
#pragma once

#include <cstdint>
#include <optional>

#include "google/protobuf/repeated_field.h"
#include "kernels/row.h"
#include "service/request/position_plan.h"
#include "service/sequence/sequence.h"
#include "service/sequence/sequence_spec.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// The row that a result belongs to.
struct RowPlace {
  uint32_t row = 0;  // index into Step.rows
  uint64_t step_id = 0;
};

// Numbers of one part: log probabilities, kept tokens and probabilities together. A part is smaller than 1 MB.
inline constexpr uint32_t kPartNumbers = 1u << 16;

// Appends the result of one row, in as many parts as it takes (RowResult). It has what `spec` and `plan` ask for, and
// no more. `history_hash` is that of the history with the row's tokens, absent for a sequence without state. The
// checkpoint is not set.
void EncodeOutcome(const StepOutcome& outcome, const PositionPlan& plan, const SequenceSpec& spec,
                   std::optional<uint64_t> history_hash, RowPlace place,
                   google::protobuf::RepeatedPtrField<v1::RowResult>* results);

}  // namespace sortition::service
