// Positions of a row: which follow, and which the walk visits.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "service/text/row.h"

namespace sortition::service {

uint32_t RowPlan::DistributionOf(uint32_t index) const {
  std::vector<bool> has_drafts(positions());
  for (const int32_t parent : ahead.parents) has_drafts[static_cast<size_t>(parent + 1)] = true;
  return static_cast<uint32_t>(std::count(has_drafts.begin(), has_drafts.begin() + index, true));
}

std::optional<uint32_t> RowRun::AcceptedAfter(uint32_t index) const {
  const kernels::RowOutput& output = result_.outputs[index];
  if (plan().has_test() && !output.accepted) return std::nullopt;
  for (uint32_t draft = index; draft < plan().drafts(); ++draft) {
    const auto position_before = static_cast<uint32_t>(plan().ahead.parents[draft] + 1);
    if (position_before == index && output.token == plan().ahead.tokens[draft]) return draft;
  }
  return std::nullopt;
}

bool RowRun::EndsAt(uint32_t token, uint32_t position) const {
  return (!parts_.views.empty() && parts_.views[position].ends_result) || spec().stops(token);
}

std::optional<uint32_t> RowRun::PositionAfter(uint32_t index) const {
  if (ServedAt(index) == nullptr) return std::nullopt;
  if (!plan().verifies()) return index + 1 < plan().positions() ? std::optional(index + 1) : std::nullopt;
  const std::optional<uint32_t> accepted = AcceptedAfter(index);
  if (!accepted || EndsAt(plan().ahead.tokens[*accepted], *accepted + 1)) return std::nullopt;
  return *accepted + 1;
}

std::optional<uint32_t> RowRun::Walk() {
  for (uint32_t draft = 0; draft < plan().drafts(); ++draft) {
    const auto position = static_cast<uint32_t>(plan().ahead.parents[draft] + 1);
    result_.matched.push_back(ServedAt(position) != nullptr && AcceptedAfter(position) == draft);
  }
  size_t walked = 0;
  for (std::optional<uint32_t> position = 0; position;) {
    if (ServedAt(*position) == nullptr) return position;
    const std::optional<uint32_t> next = PositionAfter(*position);
    if (const auto accepted = AcceptedAfter(*position)) result_.path.push_back(*accepted);
    // The walk goes upwards: the output's place is free.
    if (walked != *position) result_.outputs[walked] = std::move(result_.outputs[*position]);
    ++walked;
    position = next;
  }
  result_.outputs.resize(walked);
  return std::nullopt;
}

}  // namespace sortition::service
