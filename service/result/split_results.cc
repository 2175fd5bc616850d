// Splits results by their size, and counts them.
#include "service/result/split_results.h"

#include <algorithm>
#include <utility>

namespace sortition::service {

bool IsOneMessage(const v1::StepResults& results) {
  return results.rows_size() <= 1 || results.ByteSizeLong() <= kMaxAnswerBytes;
}

std::vector<v1::StepResults> SplitResults(v1::StepResults results) {
  std::vector<v1::StepResults> messages;
  uint64_t bytes = kMaxAnswerBytes;
  for (v1::RowResult& row : *results.mutable_rows()) {
    const uint64_t more = row.ByteSizeLong();
    if (bytes + more > kMaxAnswerBytes) {
      messages.emplace_back().set_batch_id(results.batch_id());
      bytes = 0;
    }
    bytes += more;
    *messages.back().add_rows() = std::move(row);
  }
  return messages;
}

bool Continues(const v1::RowResult& row) {
  return row.draw().continues() || row.score().continues() || row.verify().continues();
}

uint32_t AnsweredRows(const v1::StepResults& results) {
  return static_cast<uint32_t>(
      std::ranges::count_if(results.rows(), [](const v1::RowResult& row) { return !Continues(row); }));
}

uint32_t TokensDrawn(const v1::StepResults& results) {
  uint32_t tokens = 0;
  for (const v1::RowResult& row : results.rows()) {
    if (Continues(row)) continue;
    if (row.has_draw()) ++tokens;
    // The last part ends with the last token's entry.
    if (row.has_verify()) tokens += row.verify().positions(row.verify().positions_size() - 1).index() + 1;
  }
  return tokens;
}

uint32_t LastPhase(const v1::RowResult& row) {
  if (Continues(row)) return 0;
  if (row.has_draw()) return row.draw().phase();
  return row.has_verify() ? row.verify().positions(row.verify().positions_size() - 1).phase() : 0;
}

}  // namespace sortition::service
