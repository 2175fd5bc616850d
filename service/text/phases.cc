// A state machine over tokens. Its changes are kept, so that tokens can be cut off again.
#include "service/text/phases.h"

#include <algorithm>

#include "kernels/check.h"

namespace sortition::service {
namespace {

// Returns the number of the phase that begins with the output; kNoPhase if there is none.
uint32_t OutputPhase(const std::vector<Phase>& phases) {
  const auto found = std::ranges::find_if(phases, [](const Phase& phase) { return phase.begin.empty(); });
  return found == phases.end() ? kNoPhase : 1 + static_cast<uint32_t>(found - phases.begin());
}

// Returns the position of the first token of `then`, if nothing ends the phase before. A budget that ends within the
// prompt ends with the prompt. `phase` has a budget and began at `begin`.
uint64_t BudgetEnd(const Phase& phase, uint32_t begin, uint32_t prompt_length) {
  const uint64_t end = uint64_t{begin} + *phase.max_tokens;
  return begin <= prompt_length ? std::max<uint64_t>(end, prompt_length) : end;
}

}  // namespace

PhaseTrack PhaseTrack::Of(const std::vector<Phase>& phases, const TokenLog& log, uint32_t prompt_length) {
  SORTITION_CHECK(log.kept_from() == 0);
  PhaseTrack track;
  track.BeginOutput(phases, 0, prompt_length);
  for (uint32_t length = 1; length <= log.length(); ++length) track.Pushed(phases, log, length, prompt_length);
  return track;
}

void PhaseTrack::Pushed(const std::vector<Phase>& phases, const TokenLog& log, uint32_t length,
                        uint32_t prompt_length) {
  const Mark at = now();
  const uint32_t last = log.at(length - 1);
  // Most tokens end no tag, which their comparison with the tags' last tokens shows.
  const auto is_at_end = [&](const TokenString& tag) {
    return !tag.empty() && tag.back() == last && tag.size() <= length - at.position && log.EndsIn(tag, length);
  };
  if (at.phase == kNoPhase) {
    for (uint32_t i = 0; i < phases.size(); ++i) {
      if (!is_at_end(phases[i].begin)) continue;
      marks_.push_back({length, i + 1});
      break;
    }
  } else {
    const Phase& phase = phases[at.phase - 1];
    const uint64_t then = phase.max_tokens ? BudgetEnd(phase, at.position, prompt_length) : length;
    const bool is_over = length > then ? length == then + phase.then.size() : is_at_end(phase.end);
    if (is_over) marks_.push_back({length, kNoPhase});
  }
  BeginOutput(phases, length, prompt_length);
}

void PhaseTrack::BeginOutput(const std::vector<Phase>& phases, uint32_t length, uint32_t prompt_length) {
  if (length != prompt_length || now().phase != kNoPhase) return;
  if (const uint32_t phase = OutputPhase(phases); phase != kNoPhase) marks_.push_back({length, phase});
}

void PhaseTrack::Cut(const std::vector<Phase>& phases, uint32_t length, uint32_t prompt_length) {
  while (marks_.size() > 1 && now().position > length) marks_.pop_back();
  // A cut into the prompt that is reverted leaves this mark where the prompt does not end.
  const bool began_with_output = now().phase != kNoPhase && phases[now().phase - 1].begin.empty();
  if (marks_.size() > 1 && began_with_output && now().position != prompt_length) marks_.pop_back();
  BeginOutput(phases, length, prompt_length);
}

void PhaseTrack::Trim(uint32_t lowest) {
  const auto kept = std::ranges::find_if(marks_, [&](const Mark& mark) { return mark.position >= lowest; });
  if (kept - marks_.begin() > 1) marks_.erase(marks_.begin(), kept - 1);
}

std::optional<uint32_t> PhaseTrack::Forced(const std::vector<Phase>& phases, uint32_t position,
                                           uint32_t prompt_length) const {
  if (now().phase == kNoPhase) return std::nullopt;
  const Phase& phase = phases[now().phase - 1];
  if (!phase.max_tokens) return std::nullopt;
  const uint64_t then = BudgetEnd(phase, now().position, prompt_length);
  if (position < then) return std::nullopt;
  return phase.then[position - then];
}

uint32_t PhaseTrack::Lookback(const std::vector<Phase>& phases) {
  size_t longest = 1;
  for (const Phase& phase : phases) longest = std::max({longest, phase.begin.size(), phase.end.size()});
  return static_cast<uint32_t>(longest) - 1;
}

}  // namespace sortition::service
