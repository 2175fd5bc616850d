// The law of compact rows (COMPACT.md): the reference, slow and plain.
#pragma once

#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "kernels/compact_row.h"
#include "kernels/row.h"

namespace sortition::law {

// Returns the output that the whole row would have, or why the compact row does not decide it. `request.logits` is not
// read and may be null. The row keeps compact_row.h's promises (asserted, as far as the row itself shows them).
// Pure; thread-safe.
std::variant<kernels::RowOutput, kernels::RowRequired> SampleCompactRowReference(const kernels::RowRequest& request,
                                                                                 const kernels::CompactRow& row);

// A compact row that owns its memory.
struct StatedRow {
  std::vector<kernels::TokenBits> first;
  bool is_whole = false;
  std::vector<kernels::TokenBits> others;
  std::optional<uint64_t> unit_sum;
  std::optional<uint64_t> sum;

  kernels::CompactRow row() const { return {first, is_whole, others, unit_sum, sum}; }
};

// Returns what a producer states of the request's logits: the first `count` live tokens, and those of `named` that are
// not among them. `named` is sorted. Absent if the row fails with these logits: then the whole row is sent.
std::optional<StatedRow> StateRowReference(const kernels::RowRequest& request, uint32_t count,
                                           std::span<const uint32_t> named);

}  // namespace sortition::law
