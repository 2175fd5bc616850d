// The receipts of a row's tokens.
#pragma once

#include <vector>

#include "service/limits.h"
#include "service/receipt/record.h"
#include "service/text/row_plan.h"
#include "service/text/row_result.h"
#include "service/text/sequence_spec.h"

namespace sortition::service {

// Returns a receipt for each token of a draw's or a verification's result, without chain, index and previous hash. The
// outputs have the kept tokens and the processed distribution. Thread-safe.
std::vector<Receipt> MakeReceipts(const RowResult& result, const RowPlan& plan, const SequenceSpec& spec);

// Returns the integers that an opening states: those outside of phases, then those of each phase. Thread-safe.
std::vector<ReceiptIntegers> MakeIntegers(const SequenceSpec& spec);

// No policy and no step changes a sequence's options, so an opening's integers take at most this many bytes.
inline constexpr uint64_t kMostIntegerBytes = 4 + (1 + kMaxPhases) * (16 + kernels::kMaxStages * 20);

}  // namespace sortition::service
