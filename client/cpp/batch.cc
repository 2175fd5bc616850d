// Checks of rows, and batches made from matrices.
#include "sortition/batch.h"

#include <set>

#include "absl/strings/str_cat.h"

namespace sortition::client {

uint32_t ElementBytes(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return 4;
    case v1::DTYPE_F16:
    case v1::DTYPE_BF16:
      return 2;
    default:
      return 0;
  }
}

absl::Status CheckRow(const Row& row) {
  if (row.logits == nullptr) return absl::InvalidArgumentError("logits is null");
  const size_t lists = row.scored.empty() ? row.positions() : 1;
  if (!row.banned_tokens.empty() && row.banned_tokens.size() != lists) {
    return absl::InvalidArgumentError(
        absl::StrCat("banned_tokens: ", row.banned_tokens.size(), " lists; the row takes ", lists));
  }
  if (row.drafts == nullptr || row.scored.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("scored: there are drafts, too");
}

size_t Drafts::distributions() const {
  return parents.empty() ? tokens.size() : std::set<int32_t>(parents.begin(), parents.end()).size();
}

Batch Batch::FromMatrix(v1::DType dtype, uint32_t vocabulary_size, const void* logits, size_t stride_bytes,
                        std::span<Sequence* const> sequences) {
  if (stride_bytes == 0) stride_bytes = size_t{vocabulary_size} * ElementBytes(dtype);
  Batch batch{dtype, vocabulary_size, {}};
  batch.rows.reserve(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    batch.rows.push_back(Row{sequences[i], static_cast<const std::byte*>(logits) + i * stride_bytes});
  }
  return batch;
}

}  // namespace sortition::client
