// The receipts of a row's tokens.
#pragma once

#include <vector>

#include "service/receipt/record.h"
#include "service/text/row_plan.h"
#include "service/text/row_result.h"
#include "service/text/sequence_spec.h"

namespace sortition::service {

// Returns a receipt for each token of a draw's or a verification's result, without chain, index and previous hash. The
// outputs have the kept tokens and the processed distribution. Thread-safe.
std::vector<Receipt> MakeReceipts(const RowResult& result, const RowPlan& plan, const SequenceSpec& spec);

}  // namespace sortition::service
