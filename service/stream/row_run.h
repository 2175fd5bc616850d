// One row of a step from its request to its outcome: what each of its positions asks of a kernel, and what the answers
// come to. Whose kernels answer is another's business: a step in flight has devices, a sequence in the caller's process
// has its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kernels/row.h"
#include "service/memory/mask_memory.h"
#include "service/refusal.h"
#include "service/request/step_request.h"
#include "service/sequence/look_ahead.h"
#include "service/sequence/sequence.h"
#include "service/sequence/sequence_spec.h"
#include "service/stream/walk.h"

namespace sortition::service {

// Names mask `number` of the plan of step row `row`.
std::string MaskField(const PositionPlan& plan, uint32_t row, size_t number);

// Not thread-safe. May be moved until the first request has been asked for.
class RowRun {
 public:
  // `masks`: the packed masks of request.plan.masks, empty where there is none.
  RowRun(std::shared_ptr<const SequenceSpec> spec, StepRowRequest request, std::vector<RowMaskBits> masks);

  const SequenceSpec& spec() const { return *spec_; }
  const StepRowRequest& request() const { return request_; }
  const PositionPlan& plan() const { return request_.plan; }
  // A sampler keeps a state: a position runs when the one before it is answered, and only if the answer needs it.
  bool runs_in_order() const { return runs_in_order_; }

  // The row of the step's dense draft probabilities that position `index` looks at, if any.
  std::optional<uint32_t> DraftRowAt(uint32_t index) const;
  // What a kernel is asked at position `index`: all but its logits. `view` is what the history says there, null where
  // the sequence keeps none; `dense` are the probabilities of DraftRowAt, null without it. Refers to this object, to
  // `*view` and to `dense`.
  kernels::RowRequest RequestAt(uint32_t index, const PositionView* view, kernels::DType dtype, const void* dense,
                                kernels::DType draft_dtype) const;

  // Takes the result of a position; true once every position has one.
  bool Take(uint32_t index, PositionResult result);
  // Where a row that runs in order goes on from position `index`, whose result has been taken; absent where it ends.
  struct Next {
    uint32_t index = 0;
    uint64_t sampler_state = 0;  // that its request is to have
  };
  std::optional<Next> After(uint32_t index) const;

  // What the row came to, or why it has no answer; once. `row` is its index, for the refusal's field.
  std::variant<StepOutcome, Refusal> Finish(uint32_t row);
  // Nobody reads requests any more.
  void ReleaseMasks() { masks_.clear(); }

 private:
  const kernels::RowParameters& sampled_with() const { return more_ ? *more_ : spec_->parameters; }
  Refusal WhyUnusable(uint32_t row, const FailedPosition& failed) const;

  std::shared_ptr<const SequenceSpec> spec_;
  StepRowRequest request_;  // its lists of allowed tokens are cut to the sequence's
  std::vector<RowMaskBits> masks_;
  std::vector<bool> lists_none_;                // of each mask: it is an empty list, before it is cut
  std::optional<kernels::RowParameters> more_;  // where the step asks for more than the sequence
  bool runs_in_order_;
  absl::InlinedVector<std::optional<PositionResult>, 1> results_;  // absent: not taken yet
  uint32_t missing_;
};

}  // namespace sortition::service
