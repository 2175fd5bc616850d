// Two more questions to a kernel, and the law's function over its answer.
#include "devices/race_by_list.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/law/chain.h"
#include "kernels/law/race_place.h"

namespace sortition::devices {

using kernels::RowOutput;
using kernels::RowParameters;
using kernels::RowRequest;

RaceByList::RaceByList(std::span<const DeviceRow> rows) : asked_(rows), rows_(rows) {
  const auto wants_place = [](const DeviceRow& row) { return row.request.wants_race_place; };
  const auto count = std::ranges::count_if(rows, wants_place);
  if (count == 0) return;
  parameters_.reserve(size_t(count));
  changed_.assign(rows.begin(), rows.end());
  for (DeviceRow& row : changed_) {
    if (!row.request.wants_race_place) continue;
    RowParameters& parameters = parameters_.emplace_back(*row.request.parameters);
    parameters.processed_logprob = parameters.kept_tokens = true;
    row.request.parameters = &parameters;
    row.request.wants_race_place = false;
  }
  rows_ = changed_;
}

void RaceByList::Finish(std::span<RowOutput> outputs) const {
  if (changed_.empty()) return;
  SORTITION_CHECK(outputs.size() == asked_.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const RowRequest& request = asked_[i].request;
    RowOutput& output = outputs[i];
    if (!request.wants_race_place || output.error != kernels::RowError::kNone) continue;
    const RowParameters& parameters = *request.parameters;
    output.race =
        law::RacePlaceOf(output.kept_tokens, law::ProcessedScale(parameters, output), request.noise, request.given);
    if (!parameters.processed_logprob) output.processed = {};
    if (!parameters.kept_tokens) output.kept_tokens.clear();
    if (!parameters.processed_logprob && !parameters.kept_tokens && !parameters.kept_count) output.kept = 0;
  }
}

}  // namespace sortition::devices
