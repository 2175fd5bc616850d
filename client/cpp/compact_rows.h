// Compact forms of rows, made where the rows are (kernels/law/COMPACT.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/compact_row.h"
#include "kernels/row.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

// Returns the kernels' name of an element type that has been checked.
kernels::DType KernelType(v1::DType dtype);

// The logits of one position: the whole row, or the shard of it that this process has.
struct WholeLogits {
  const std::byte* data = nullptr;  // any alignment
  v1::DType dtype = v1::DTYPE_F32;
  uint32_t live_vocabulary = 0;  // live tokens here; 0 in a shard of padding alone
  uint32_t first_token = 0;      // the id of the first of them
  bool is_shard = false;
};

// The compact form of one position.
class CompactPosition {
 public:
  // The parts that are wanted: the first `count` tokens and, if set, the sums.
  struct Parts {
    uint32_t count = 0;
    bool sums = false;  // otherwise those alone that logprobs need, raw or tempered, or the kept mass; none in a shard
    bool own_sum = true;   // the sum at the row's own temperature may be among them
    bool foresee = false;  // whether the service will require more
  };
  // Absent if the row fails with these logits, or is whole and has no live token: then it travels whole. Takes one pass
  // over the logits, and one more for each sum. Thread-safe.
  static std::optional<CompactPosition> Of(const WholeLogits& logits, const kernels::RowParameters& parameters,
                                           const Parts& parts);
  // True if the form has a sum.
  static bool HasSums(const WholeLogits& logits, const kernels::RowParameters& parameters, const Parts& parts);
  // Makes the form from a statement, which has at least the wanted sums. Their `data` is not read.
  static std::optional<CompactPosition> OfStated(const WholeLogits& logits, const kernels::RowParameters& parameters,
                                                 const Parts& parts, const kernels::StatedRow& stated);

  // Adds tokens that are below the row's live vocabulary. Those that are not here are left out.
  void Add(std::span<const uint32_t> tokens, const WholeLogits& logits);

  size_t tokens() const { return ids_.size(); }
  uint64_t bytes() const { return ids_.size() * sizeof(uint32_t) + elements_.size(); }
  bool has_sums() const { return has_sums_; }
  // The reason for which the service will require more of a draw from this statement, as far as it follows without the
  // row's masks and edits. Absent if none does, or if Parts::foresee was not set.
  std::optional<kernels::RowRequiredReason> foreseen() const { return foreseen_; }
  // Appends tokens and logits to `*pairs`, and describes them in `*message`.
  void AppendTo(std::string* pairs, v1::CompactRow* message) const;

 private:
  uint32_t first_ = 0;
  bool is_whole_ = false;
  bool has_sums_ = false;
  std::optional<kernels::RowRequiredReason> foreseen_;
  std::optional<uint64_t> unit_sum_;
  std::optional<uint64_t> sum_;
  std::vector<uint32_t> ids_;  // the first ones in order, then others by id; ids of the whole row
  std::string elements_;       // the ids' logits, as the row has them
};

}  // namespace sortition::client
