// The rows of a chain again, from logits and the masks of its steps.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/receipts/receipt_check.h"
#include "client/receipts/receipt_masks.h"
#include "client/receipts/receipt_report.h"
#include "client/receipts/row_file.h"
#include "service/text/text.h"

namespace sortition::client {

// Row i of the logits belongs to the chain's i-th receipt in the files. Not thread-safe.
class ReceiptRows {
 public:
  struct Options {
    std::string path;
    std::optional<v1::DType> dtype;   // for raw elements
    std::vector<uint32_t> prompt;     // where an option looks at the history
    std::optional<double> tolerance;  // nats; absent: the same bytes as those that were sampled
    std::string chain;                // id in hexadecimal; empty: the files' first one
    std::string masks = {};           // file of packed masks in any order; empty: none is known
  };
  explicit ReceiptRows(Options options) : options_(std::move(options)) {}

  // Compares a receipt that `check` has just read, and reports differences to `check`.
  void Take(const std::string& id, const CheckedChain& chain, const service::Receipt& receipt, ReceiptCheck* check);

  const RowCounts& counts() const { return counts_; }
  // Returns why nothing could be compared, if a file or an option is at fault.
  const absl::Status& status() const { return status_; }

 private:
  bool Begin(const CheckedChain& chain);
  std::optional<kernels::RowOutput> Run(const service::Receipt& receipt, kernels::NoiseKey* noise);
  // Returns how the output differs from the receipt; empty if it does not.
  std::string DifferenceOf(const service::Receipt& receipt, const kernels::RowOutput& output,
                           const kernels::NoiseKey& noise) const;

  const Options options_;
  std::string chain_;  // the chain that is compared; empty until it is met
  std::optional<RowMatrix> matrix_;
  ReceiptMasks masks_;
  std::shared_ptr<const service::SequenceSpec> spec_;  // with kept tokens added
  std::unique_ptr<service::Text> state_;               // null if no option looks at the history
  uint64_t next_row_ = 0;
  uint32_t phase_ = 0;  // phase of the last run row, by the history
  RowCounts counts_;
  absl::Status status_;
};

}  // namespace sortition::client
