// Repetitions of the end of a history.
#include "service/text/dry.h"

#include <algorithm>
#include <span>

namespace sortition::service {
namespace {

using Found = ContextIndex::Found;

std::span<const TokenString> BreakersFrom(const DryOptions& options, uint32_t head) {
  const auto first = std::ranges::lower_bound(options.breakers, head, {}, [](const TokenString& b) { return b[0]; });
  auto last = first;
  while (last != options.breakers.end() && last->front() == head) ++last;
  return {first, last};
}

bool IsBreaker(const DryOptions& options, uint32_t token) {
  const std::span<const TokenString> breakers = BreakersFrom(options, token);
  return !breakers.empty() && breakers.front().size() == 1;  // sorted, so a single token is first
}

bool StandsAt(const TokenString& breaker, const TokenLog& log, uint32_t position) {
  if (breaker.size() > log.length() - position) return false;
  for (uint32_t i = 0; i < breaker.size(); ++i) {
    if (log.at(position + i) != breaker[i]) return false;
  }
  return true;
}

}  // namespace

Dry::Dry(const DryOptions& options, const TokenLog& log)
    : window_(options.window), least_(options.allowed_length), reach_(options.reach()), index_(least_, reach_) {
  for (uint64_t at = uint64_t{Start(log.length())} + reach_; at < log.length(); ++at) {
    index_.AddNewest(log, static_cast<uint32_t>(at));
  }
}

void Dry::Pushed(const TokenLog& log) {
  const uint32_t length = log.length();
  const uint32_t start = Start(length);
  if (start > Start(length - 1) && start - 1 + reach_ < length - 1) index_.RemoveOldest(log);
  if (length - 1 >= uint64_t{start} + reach_) index_.AddNewest(log, length - 1);
}

void Dry::Popping(const TokenLog& log, uint32_t length) {
  const uint32_t start = Start(length);
  if (length - 1 >= uint64_t{start} + reach_) index_.RemoveNewest(log);
  if (start > Start(length - 1) && start - 1 + reach_ < length - 1) index_.AddOldest(log, start - 1 + reach_);
}

void Dry::FindAtStart(const TokenLog& log, ContextIndex::AllFound* found) const {
  const uint32_t length = log.length();
  const uint32_t start = Start(length);
  const uint32_t last = log.at(length - 1);
  const auto end = static_cast<uint32_t>(std::min<uint64_t>(uint64_t{start} + reach_, length));
  for (uint32_t position = start + least_; position < end;) {
    const std::span<const uint32_t> run = log.StartingAt(position - 1);
    const std::span<const uint32_t> before = run.first(std::min<size_t>(run.size(), end - position));
    // Counts first, because a compiler makes vector instructions of a sum and not of a search.
    uint32_t equal = 0;
    for (const uint32_t token : before) equal += token == last;
    for (uint32_t at = position; equal != 0; ++at) {
      if (before[at - position] != last) continue;
      --equal;
      const uint32_t matched = log.CommonEnd(at, length, at - start);
      if (matched >= least_) found->push_back({log.at(at), matched});
    }
    position += static_cast<uint32_t>(before.size());
  }
}

DryTermList Dry::Terms(const TokenLog& log, const DryOptions& options) const {
  const uint32_t length = log.length();
  if (length <= least_) return {};
  ContextIndex::AllFound found;
  index_.Find(log, length, &found);
  FindAtStart(log, &found);
  if (found.empty()) return {};
  const uint32_t limit = RepetitionLimit(log, options, length - Start(length), reach_);
  if (limit < least_) return {};

  // Sorts by token, the longest repetition of each first.
  std::ranges::sort(found, [](const Found& a, const Found& b) {
    return a.token != b.token ? a.token < b.token : a.length > b.length;
  });
  DryTermList terms;
  for (const Found& one : found) {
    if (!terms.empty() && terms.back().token == one.token) continue;
    if (!IsBreaker(options, one.token)) {
      terms.push_back({one.token, options.terms[std::min(one.length, limit) - least_]});
    }
  }
  return terms;
}

uint32_t RepetitionLimit(const TokenLog& log, const DryOptions& options, uint32_t length, uint32_t reach) {
  if (options.breakers.empty()) return length;
  const uint32_t far = std::min(length, reach + options.longest_breaker);
  for (uint32_t back = 0; back < far; ++back) {
    const uint32_t position = log.length() - 1 - back;
    uint32_t longest = 0;
    for (const TokenString& breaker : BreakersFrom(options, log.at(position))) {
      if (StandsAt(breaker, log, position)) longest = std::max(longest, static_cast<uint32_t>(breaker.size()));
    }
    if (longest > 0) return back + 1 - longest;
  }
  return length;
}

}  // namespace sortition::service
