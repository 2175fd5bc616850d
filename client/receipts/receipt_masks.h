// Masks of steps from a file, found by the hashes that receipts have of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/receipts/row_file.h"
#include "service/receipt/record.h"
#include "service/text/sequence_spec.h"

namespace sortition::client {

// Holds 40 bytes a mask. Not thread-safe.
class ReceiptMasks {
 public:
  // Knows no mask.
  ReceiptMasks() = default;

  // Reads a file of packed masks, in any order. Errors begin with "--masks".
  static absl::StatusOr<ReceiptMasks> Open(const std::string& path, const service::SequenceSpec& spec);

  // Fills `words` with the mask of the receipt's step; leaves it empty if the step had none. NotFound if the file lacks
  // the mask.
  absl::Status Find(const service::Receipt& receipt, std::vector<uint32_t>* words);

 private:
  std::optional<RowMatrix> matrix_;
  std::map<service::ReceiptHash, uint64_t> places_;  // rows of matrix_
};

}  // namespace sortition::client
