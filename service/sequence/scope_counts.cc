// Counts from tokens and from snapshots.
#include "service/sequence/scope_counts.h"

#include <algorithm>

namespace sortition::service {
namespace {

PenaltyCounts::Counts CountFrom(uint32_t start, const SequenceSpec& spec, uint32_t prompt_length, const TokenLog& log) {
  PenaltyCounts::Counts counts;
  for (uint32_t at = start; at < log.length(); ++at) CountToken(spec, prompt_length, at, log.at(at), &counts);
  return counts;
}

// Returns the counts that the snapshot lists, or nothing if they are invalid.
std::optional<PenaltyCounts::Counts> Listed(const SequenceSnapshot& snapshot, uint32_t live_vocabulary) {
  const size_t distinct = snapshot.tokens.size();
  if (snapshot.in_history.size() != distinct || snapshot.in_output.size() != distinct) return std::nullopt;
  PenaltyCounts::Counts counts;
  for (size_t i = 0; i < distinct; ++i) {
    const uint32_t all = snapshot.in_history[i];
    const uint32_t in_output = snapshot.in_output[i];
    if (all == 0 || in_output > all || snapshot.tokens[i] >= live_vocabulary) return std::nullopt;
    if (!counts.try_emplace(snapshot.tokens[i], TokenCount{all - in_output, in_output}).second) return std::nullopt;
  }
  return counts;
}

}  // namespace

void CountToken(const SequenceSpec& spec, uint32_t prompt_length, uint32_t position, uint32_t token,
                PenaltyCounts::Counts* counts) {
  if (!InScope(spec, prompt_length, position)) return;
  TokenCount& count = (*counts)[token];
  ++(position >= prompt_length ? count.in_output : count.in_prompt);
}

PenaltyCounts::Counts CountScope(const SequenceSpec& spec, uint32_t prompt_length, const TokenLog& log) {
  if (!spec.penalises()) return {};
  const uint32_t window = spec.history.scope.window;
  const uint32_t start = window == 0 || window >= log.length() ? 0 : log.length() - window;
  return CountFrom(std::max(start, log.kept_from()), spec, prompt_length, log);
}

std::optional<PenaltyCounts::Counts> CountsOf(const SequenceSnapshot& snapshot, const SequenceSpec& spec,
                                              const TokenLog& log) {
  const std::optional<PenaltyCounts::Counts> counts = Listed(snapshot, spec.live_vocabulary);
  if (!counts) return std::nullopt;
  if (!CountsWholeHistory(spec)) {
    if (!counts->empty()) return std::nullopt;
    return CountScope(spec, snapshot.prompt_length, log);
  }
  uint64_t in_prompt = 0;
  uint64_t in_output = 0;
  for (const auto& [token, count] : *counts) {
    in_prompt += count.in_prompt;
    in_output += count.in_output;
  }
  const uint32_t ignored = std::min(spec.history.scope.ignored_prefix, snapshot.prompt_length);
  if (in_prompt != snapshot.prompt_length - ignored || in_output != log.length() - snapshot.prompt_length) {
    return std::nullopt;
  }
  // The counts must include the kept tokens; otherwise cutting those off would count below zero.
  for (const auto& [token, kept] : CountFrom(log.kept_from(), spec, snapshot.prompt_length, log)) {
    const auto it = counts->find(token);
    if (it == counts->end() || it->second.in_prompt < kept.in_prompt || it->second.in_output < kept.in_output) {
      return std::nullopt;
    }
  }
  return counts;
}

}  // namespace sortition::service
