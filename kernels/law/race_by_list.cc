// The place in the race of one output.
#include "kernels/law/race_by_list.h"

#include "kernels/law/chain.h"
#include "kernels/law/race_place.h"

namespace sortition::law {

void PlaceByList(const kernels::RowRequest& asked, kernels::RowOutput* output) {
  if (!asked.wants_race_place || output->error != kernels::RowFault::kNone) return;
  const kernels::RowParameters& parameters = *asked.parameters;
  output->race = RacePlaceOf(output->kept_tokens, ProcessedScale(parameters, *output), asked.noise, asked.given);
  if (!parameters.processed_logprob) output->processed = {};
  if (!parameters.kept_tokens) output->kept_tokens.clear();
  if (!parameters.processed_logprob && !parameters.kept_tokens && !parameters.kept_count) output->kept = 0;
}

}  // namespace sortition::law
