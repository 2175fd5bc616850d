// Builds a row from the options of a spec and the edits and noise of a view.
#include "service/sequence/row_of.h"

namespace sortition::service {

kernels::RowRequest RowOf(const SequenceSpec& spec, const PositionView* view, uint32_t position, uint32_t draw_salt) {
  kernels::RowRequest row;
  row.live_vocabulary = spec.live_vocabulary;
  const RowOptions& options = spec.Within(view != nullptr ? view->phase : kNoPhase);
  row.parameters = &options.parameters;
  row.noise = {spec.seed, position, spec.choice_index | draw_salt << 16};
  if (view != nullptr && view->marked_noise) row.noise = *view->marked_noise;
  row.edits = view != nullptr ? std::span<const kernels::LogitEdit>(*view->edits) : options.listed_edits;
  row.has_allowed_tokens = options.has_allowed_tokens;
  row.allowed_tokens = options.allowed_tokens;
  row.requested = spec.logprob_token_ids;
  return row;
}

void ForceToken(const PositionView* view, kernels::RowRequest* row) {
  if (view == nullptr || !view->forced) return;
  row->edits = {};
  row->has_allowed_tokens = true;
  row->allowed_tokens = {&*view->forced, 1};
  row->allowed_bits = nullptr;
}

}  // namespace sortition::service
