// A compact row: what a producer states of a row of logits, in place of the logits. kernels/law/COMPACT.md says which
// answers follow from it. Plain data; the spans refer to memory of the caller.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/row.h"

namespace sortition::kernels {

// All bits are canonical bits of logits as sent, before any change. Sums have the law's scale of weights. A row with a
// logit that fails it has no compact form.
struct CompactRow {
  std::span<const TokenBits> first;   // the row's first live tokens, in order
  bool is_whole = false;              // no token outside of `first` is live
  std::span<const TokenBits> others;  // further tokens, ids ascending; each comes after all of `first`, or is masked
  std::optional<uint64_t> unit_sum;   // of the weights of all live tokens, at temperature 1
  std::optional<uint64_t> sum;        // of the same at the row's own temperature
};

// A compact row that owns its memory.
struct StatedRow {
  std::vector<TokenBits> first;
  bool is_whole = false;
  std::vector<TokenBits> others;
  std::optional<uint64_t> unit_sum;
  std::optional<uint64_t> sum;

  CompactRow row() const { return {first, is_whole, others, unit_sum, sum}; }
  bool operator==(const StatedRow&) const = default;
};

// Why a compact row does not decide its answer.
enum class RowRequiredReason : uint8_t {
  kTokens,  // the answer depends on logits of the tokens that are named
  kCut,     // a filter may keep tokens that are not listed
  kSums,    // a sum over the whole row is needed: it is not stated, or edits of tokens that are named change it
  kRow,     // the answer depends on every token: a draw without filters, a rank that the list does not show
};

struct RowRequired {
  RowRequiredReason reason = RowRequiredReason::kRow;
  std::vector<uint32_t> tokens = {};  // ids ascending. With their logits among `others` this reason is gone
  bool operator==(const RowRequired&) const = default;
};

}  // namespace sortition::kernels
