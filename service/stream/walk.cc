// The walk from the first position to the last accepted one.
#include "service/stream/walk.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace sortition::service {
namespace {

// The answer of a position that was served; null otherwise.
const kernels::RowAnswer* AnswerOf(const PositionResult& result) {
  const auto* answer = std::get_if<kernels::RowAnswer>(&result);
  return answer != nullptr && answer->error == kernels::RowError::kNone ? answer : nullptr;
}

// Whether the position before draft `index` yields this draft.
bool Yields(const PositionPlan& plan, const kernels::RowAnswer& answer, size_t index) {
  return plan.kind == PositionPlan::Kind::kReject ? answer.accepted : answer.token == plan.ahead.tokens[index];
}

size_t PositionBefore(const PositionPlan& plan, size_t draft) {
  return static_cast<size_t>(plan.ahead.parents[draft] + 1);
}

std::optional<uint32_t> AcceptedAfter(const PositionPlan& plan, size_t position, const kernels::RowAnswer& answer) {
  for (size_t draft = position; draft < plan.drafts(); ++draft) {
    if (PositionBefore(plan, draft) == position && Yields(plan, answer, draft)) return static_cast<uint32_t>(draft);
  }
  return std::nullopt;
}

}  // namespace

std::variant<StepOutcome, FailedPosition> Walk(const PositionPlan& plan, const std::vector<uint32_t>& stop_tokens,
                                               absl::Span<PositionResult> results) {
  SORTITION_CHECK(results.size() == plan.positions());
  StepOutcome outcome;
  for (size_t draft = 0; draft < plan.drafts(); ++draft) {
    const kernels::RowAnswer* answer = AnswerOf(results[PositionBefore(plan, draft)]);
    outcome.matched.push_back(answer != nullptr && Yields(plan, *answer, draft));
  }
  if (!plan.verifies()) {
    for (size_t i = 0; i < results.size(); ++i) {
      if (AnswerOf(results[i]) == nullptr) return FailedPosition{static_cast<uint32_t>(i), std::move(results[i])};
      outcome.rows.push_back(std::move(std::get<kernels::RowAnswer>(results[i])));
    }
    return outcome;
  }
  for (std::optional<size_t> position = 0; position;) {
    PositionResult& result = results[*position];
    const kernels::RowAnswer* answer = AnswerOf(result);
    if (answer == nullptr) return FailedPosition{static_cast<uint32_t>(*position), std::move(result)};
    const std::optional<uint32_t> accepted = AcceptedAfter(plan, *position, *answer);
    outcome.rows.push_back(std::move(std::get<kernels::RowAnswer>(result)));
    if (accepted) outcome.path.push_back(*accepted);
    const bool stops = std::ranges::binary_search(stop_tokens, outcome.rows.back().token);
    position = accepted && !stops ? std::optional<size_t>(*accepted + 1) : std::nullopt;
  }
  return outcome;
}

}  // namespace sortition::service
