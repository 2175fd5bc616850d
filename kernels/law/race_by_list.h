// Places in the race for kernels that do not find them: from the list of the kept tokens.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/check.h"
#include "kernels/row.h"

namespace sortition::law {

// `output` comes from a row that listed its kept tokens instead of its place in the race. Turns it into the output for
// `asked`. Pure and thread-safe.
void PlaceByList(const kernels::RowRequest& asked, kernels::RowOutput* output);

// The rows of a batch as the kernels take them: rows that want a place in the race list their kept tokens instead.
// Costs nothing if no row wants one. Not thread-safe. A Row has a kernels::RowRequest `request`.
template <typename Row>
class RaceByList {
 public:
  // `rows` must stay alive and unchanged.
  explicit RaceByList(std::span<const Row> rows) : asked_(rows), rows_(rows) {
    const auto wants_place = [](const Row& row) { return row.request.wants_race_place; };
    const auto count = std::ranges::count_if(rows, wants_place);
    if (count == 0) return;
    parameters_.reserve(size_t(count));
    changed_.assign(rows.begin(), rows.end());
    for (Row& row : changed_) {
      if (!row.request.wants_race_place) continue;
      kernels::RowParameters& parameters = parameters_.emplace_back(*row.request.parameters);
      parameters.processed_logprob = parameters.kept_tokens = true;
      row.request.parameters = &parameters;
      row.request.wants_race_place = false;
    }
    rows_ = changed_;
  }
  RaceByList(const RaceByList&) = delete;
  RaceByList& operator=(const RaceByList&) = delete;

  std::span<const Row> rows() const { return rows_; }
  // Turns the outputs of these rows, one for each, into the original rows' outputs.
  void Finish(std::span<kernels::RowOutput> outputs) const {
    if (changed_.empty()) return;
    SORTITION_CHECK(outputs.size() == asked_.size());
    for (size_t i = 0; i < outputs.size(); ++i) PlaceByList(asked_[i].request, &outputs[i]);
  }

 private:
  const std::span<const Row> asked_;
  std::vector<kernels::RowParameters> parameters_;  // of the rows that want a place
  std::vector<Row> changed_;                        // all rows; empty if none wants a place
  std::span<const Row> rows_;
};

}  // namespace sortition::law
