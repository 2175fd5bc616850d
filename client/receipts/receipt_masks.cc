// Hashes each mask of a file once.
#include "client/receipts/receipt_masks.h"

#include "absl/strings/str_cat.h"

namespace sortition::client {

absl::StatusOr<ReceiptMasks> ReceiptMasks::Open(const std::string& path, const service::SequenceSpec& spec) {
  auto matrix = RowMatrix::OpenWords(path, (spec.vocabulary + 31) / 32);
  if (!matrix.ok()) return absl::InvalidArgumentError(absl::StrCat("--masks: ", matrix.status().message()));
  ReceiptMasks masks;
  masks.matrix_ = *std::move(matrix);
  std::vector<uint32_t> words;
  for (uint64_t row = 0; row < masks.matrix_->rows(); ++row) {
    if (absl::Status status = masks.matrix_->ReadWords(row, &words); !status.ok()) return status;
    masks.places_.emplace(service::MaskHashOf(words, spec.live_vocabulary), row);
  }
  return masks;
}

absl::Status ReceiptMasks::Find(const service::Receipt& receipt, std::vector<uint32_t>* words) {
  words->clear();
  if (!receipt.mask) return absl::OkStatus();
  const auto found = places_.find(*receipt.mask);
  if (found == places_.end()) return absl::NotFoundError("the mask of the step is not in --masks");
  return matrix_->ReadWords(found->second, words);
}

}  // namespace sortition::client
