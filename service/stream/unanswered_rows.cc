// Counting down.
#include "service/stream/unanswered_rows.h"

#include <utility>

#include "kernels/check.h"
#include "service/result/split_results.h"

namespace sortition::service {

void UnansweredRows::Answer(v1::StepResults results, absl::FunctionRef<void(v1::StepResults, bool)> send) {
  for (v1::StepResults& message : SplitResults(std::move(results))) {
    const uint32_t rows = AnsweredRows(message);
    const uint32_t before = rows_.fetch_sub(rows);
    SORTITION_CHECK(before >= rows);
    send(std::move(message), before == rows);
  }
}

}  // namespace sortition::service
