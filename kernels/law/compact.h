// The law of compact rows (COMPACT.md): the reference of both ends, slow and plain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/compact_row.h"
#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::law {

// Returns the output that the whole row would have, or why the compact row does not decide it. `request.logits` is not
// read and may be null. The row is sound by FindUnsound (asserted, except for the sums). Pure; thread-safe.
std::variant<kernels::RowOutput, kernels::RowRequired> SampleCompactRowReference(const kernels::RowRequest& request,
                                                                                 const kernels::CompactRow& row);

// A statement of a compact row that its own content contradicts.
struct Unsound {
  enum class Claim : uint8_t { kFirst, kOthers, kUnitSum, kSum };
  Claim claim = Claim::kFirst;
  size_t index = 0;  // of the token, in `first` or `others`
  std::string_view why;
};

// Returns the first unsound statement, if there is one. Takes any row. Pure; thread-safe; O(k log k).
std::optional<Unsound> FindUnsound(const kernels::RowParameters& parameters, uint32_t live_vocabulary,
                                   const kernels::CompactRow& row);

// Returns the temperature at which CompactRow::sum is stated; absent if the row's chain sets none.
std::optional<Temperature> StatedTemperature(const kernels::RowParameters& parameters);

// Merges the statements of a row's shards into the whole row's (COMPACT.md, section 4). `shards` are sound, use the
// whole row's ids, and their disjoint parts cover the vocabulary. Their sums are left out. Pure; O(k log k).
kernels::StatedRow MergeShards(std::span<const kernels::StatedRow> shards);

// Returns a producer's statement of the request's logits: the first `count` live tokens, the other tokens of `named`,
// and every sum. `named` is sorted. Absent if the row fails with these logits: then the whole row is sent. Masks and
// edits of the request are ignored.
std::optional<kernels::StatedRow> StateRowReference(const kernels::RowRequest& request, uint32_t count,
                                                    std::span<const uint32_t> named);

}  // namespace sortition::law
