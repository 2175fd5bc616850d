// Encodes the result of a row. The log probabilities are computed here, on the host, from the devices' integers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "google/protobuf/repeated_field.h"
#include "kernels/row.h"
#include "service/text/row_plan.h"
#include "service/text/row_result.h"
#include "service/text/sequence_spec.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// The row that a result belongs to.
struct RowPlace {
  uint32_t row = 0;  // index into Step.rows
  uint64_t step_id = 0;
};

// Numbers of one part: log probabilities, kept tokens and probabilities together. A part is smaller than 1 MB.
inline constexpr uint32_t kPartNumbers = 1u << 16;
// Bytes of receipts in one part, beside the numbers, and in one answer to an open.
inline constexpr size_t kPartReceiptBytes = 1u << 19;

// True if another part of the row's result follows.
bool Continues(const v1::RowResult& row);

// Sets the result of a draw as one message, however many tokens it lists. It has only what `spec` requests.
void EncodeWholeDraw(const RowResult& result, const SequenceSpec& spec, v1::DrawResult* draw);

// Returns an upper bound on the bytes of a draw's result as one message: what the row may keep, and the log
// probabilities that it lists.
uint64_t MostDrawBytes(const SequenceSpec& spec);

// Sets the result of a row as one message, however large. `*whole` is empty.
void EncodeWhole(const RowResult& result, const RowPlan& plan, const SequenceSpec& spec, v1::RowResult* whole);

// Appends the result of one row, in one or more parts (v1::RowResult). It has exactly the fields that `spec` and `plan`
// request. The checkpoint is not set.
void EncodeResult(const RowResult& result, const RowPlan& plan, const SequenceSpec& spec, RowPlace place,
                  google::protobuf::RepeatedPtrField<v1::RowResult>* results);

// Sets the receipts of the row whose last part is the last of `results`, and adds parts where they are long.
void EncodeReceipts(std::string_view records, google::protobuf::RepeatedPtrField<v1::RowResult>* results);

}  // namespace sortition::service
