// The walk from the first position to the last accepted one.
#include "service/stream/walk.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace sortition::service {
namespace {

// The answer of a position that was served; null otherwise.
const kernels::RowOutput* AnswerOf(const PositionResult& result) {
  const auto* answer = std::get_if<kernels::RowOutput>(&result);
  return answer != nullptr && answer->error == kernels::RowError::kNone ? answer : nullptr;
}

// Whether the position before draft `index` yields this draft.
bool Yields(const PositionPlan& plan, const kernels::RowOutput& answer, size_t index) {
  return plan.kind == PositionPlan::Kind::kReject ? answer.accepted : answer.token == plan.ahead.tokens[index];
}

size_t PositionBefore(const PositionPlan& plan, size_t draft) {
  return static_cast<size_t>(plan.ahead.parents[draft] + 1);
}

// The draft that is accepted after a position; drafts are not looked for where none are verified.
std::optional<uint32_t> AcceptedAfter(const PositionPlan& plan, uint32_t position, const kernels::RowOutput& answer) {
  for (uint32_t draft = position; draft < plan.drafts(); ++draft) {
    if (PositionBefore(plan, draft) == position && Yields(plan, answer, draft)) return draft;
  }
  return std::nullopt;
}

}  // namespace

std::optional<uint32_t> PositionAfter(const PositionPlan& plan, const std::vector<uint32_t>& stop_tokens,
                                      uint32_t position, const PositionResult& result) {
  const kernels::RowOutput* const answer = AnswerOf(result);
  if (answer == nullptr) return std::nullopt;
  if (!plan.verifies()) return position + 1 < plan.positions() ? std::optional(position + 1) : std::nullopt;
  const std::optional<uint32_t> accepted = AcceptedAfter(plan, position, *answer);
  if (!accepted || std::ranges::binary_search(stop_tokens, answer->token)) return std::nullopt;
  return *accepted + 1;
}

std::variant<StepOutcome, FailedPosition> Walk(const PositionPlan& plan, const std::vector<uint32_t>& stop_tokens,
                                               absl::Span<std::optional<PositionResult>> results) {
  SORTITION_CHECK(results.size() == plan.positions());
  StepOutcome outcome;
  for (uint32_t draft = 0; draft < plan.drafts(); ++draft) {
    const std::optional<PositionResult>& result = results[PositionBefore(plan, draft)];
    const kernels::RowOutput* const answer = result ? AnswerOf(*result) : nullptr;
    outcome.matched.push_back(answer != nullptr && Yields(plan, *answer, draft));
  }
  for (std::optional<uint32_t> position = 0; position;) {
    SORTITION_CHECK(results[*position].has_value());
    PositionResult& result = *results[*position];
    const kernels::RowOutput* const answer = AnswerOf(result);
    if (answer == nullptr) return FailedPosition{*position, std::move(result)};
    const std::optional<uint32_t> accepted = AcceptedAfter(plan, *position, *answer);
    if (accepted) outcome.path.push_back(*accepted);
    position = PositionAfter(plan, stop_tokens, *position, result);
    outcome.rows.push_back(std::move(std::get<kernels::RowOutput>(result)));
  }
  return outcome;
}

}  // namespace sortition::service
