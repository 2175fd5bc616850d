// Positions of a plan: how deep they lie, which follow, and which the walk visits.
#include "service/text/walk.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace sortition::service {
namespace {

// Returns the output of a position that was served; null if it failed.
const kernels::RowOutput* ServedBy(const PositionOutput& output) {
  const auto* served = std::get_if<kernels::RowOutput>(&output);
  return served != nullptr && served->error == kernels::RowFault::kNone ? served : nullptr;
}

// Returns true if `output`, of the position before draft `index`, yields this draft.
bool Yields(const RowPlan& plan, const kernels::RowOutput& output, size_t index) {
  return (!plan.has_test() || output.accepted) && output.token == plan.ahead.tokens[index];
}

uint32_t PositionBefore(const RowPlan& plan, size_t draft) {
  return static_cast<uint32_t>(plan.ahead.parents[draft] + 1);
}

// Returns the draft that is accepted after a position, if any; never one where nothing is verified.
std::optional<uint32_t> AcceptedAfter(const RowPlan& plan, uint32_t position, const kernels::RowOutput& output) {
  for (uint32_t draft = position; draft < plan.drafts(); ++draft) {
    if (PositionBefore(plan, draft) == position && Yields(plan, output, draft)) return draft;
  }
  return std::nullopt;
}

}  // namespace

uint32_t RowPlan::DepthOf(uint32_t index) const {
  uint32_t depth = 0;
  for (int32_t at = static_cast<int32_t>(index) - 1; at >= 0; at = ahead.parents[static_cast<size_t>(at)]) ++depth;
  return depth;
}

std::optional<uint32_t> RowPlan::FirstDraftAfter(uint32_t index) const {
  if (!verifies()) return std::nullopt;
  const auto at = std::ranges::find(ahead.parents, static_cast<int32_t>(index) - 1);
  if (at == ahead.parents.end()) return std::nullopt;
  return static_cast<uint32_t>(at - ahead.parents.begin());
}

uint32_t RowPlan::DistributionOf(uint32_t index) const {
  std::vector<bool> has_drafts(positions());
  for (const int32_t parent : ahead.parents) has_drafts[static_cast<size_t>(parent + 1)] = true;
  return static_cast<uint32_t>(std::count(has_drafts.begin(), has_drafts.begin() + index, true));
}

bool WalkEnds::At(uint32_t token, uint32_t position) const {
  return (!views.empty() && views[position].ends_result) || std::ranges::binary_search(stop_tokens, token);
}

std::optional<uint32_t> PositionAfter(const RowPlan& plan, const WalkEnds& ends, uint32_t position,
                                      const PositionOutput& output) {
  const kernels::RowOutput* const served = ServedBy(output);
  if (served == nullptr) return std::nullopt;
  if (!plan.verifies()) return position + 1 < plan.positions() ? std::optional(position + 1) : std::nullopt;
  const std::optional<uint32_t> accepted = AcceptedAfter(plan, position, *served);
  if (!accepted || ends.At(served->token, *accepted + 1)) return std::nullopt;
  return *accepted + 1;
}

std::optional<FailedPosition> Walk(const RowPlan& plan, const WalkEnds& ends,
                                   absl::Span<std::optional<PositionOutput>> outputs, RowResult* result) {
  SORTITION_CHECK(outputs.size() == plan.positions());
  for (uint32_t draft = 0; draft < plan.drafts(); ++draft) {
    const uint32_t position = PositionBefore(plan, draft);
    const kernels::RowOutput* const served = outputs[position] ? ServedBy(*outputs[position]) : nullptr;
    result->matched.push_back(served != nullptr && AcceptedAfter(plan, position, *served) == draft);
  }
  for (std::optional<uint32_t> position = 0; position;) {
    SORTITION_CHECK(outputs[*position].has_value());
    PositionOutput& output = *outputs[*position];
    const kernels::RowOutput* const served = ServedBy(output);
    if (served == nullptr) return FailedPosition{*position, std::move(output)};
    const std::optional<uint32_t> accepted = AcceptedAfter(plan, *position, *served);
    if (accepted) result->path.push_back(*accepted);
    position = PositionAfter(plan, ends, *position, output);
    result->outputs.push_back(std::move(std::get<kernels::RowOutput>(output)));
  }
  return std::nullopt;
}

}  // namespace sortition::service
