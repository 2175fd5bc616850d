// Repetitions of the end of a history.
#include "service/text/history/dry.h"

#include <algorithm>
#include <span>

#include "service/text/history/token_sort.h"

namespace sortition::service {
namespace {

bool IsBreaker(const DryOptions& options, uint32_t token) {
  const auto first = std::ranges::lower_bound(options.breakers, token, {}, [](const TokenString& b) { return b[0]; });
  return first != options.breakers.end() && first->size() == 1 && first->front() == token;  // sorted, so it is first
}

}  // namespace

Dry::Dry(const DryOptions& options, const TokenLog& log)
    : window_(options.window), least_(options.allowed_length), reach_(options.reach()), whole_(least_, reach_) {
  Fill(log);
}

void Dry::Fill(const TokenLog& log) {
  if (window_ == 0) return whole_.Fill(log);
  moving_.emplace(least_, reach_);
  for (uint64_t at = uint64_t{Start(log.length())} + reach_; at < log.length(); ++at) {
    moving_->AddNewest(log, static_cast<uint32_t>(at));
  }
}

void Dry::Pushed(const TokenLog& log) {
  if (!moving_) return whole_.Pushed(log);
  const uint32_t length = log.length();
  const uint32_t start = Start(length);
  if (start > Start(length - 1) && start - 1 + reach_ < length - 1) moving_->RemoveOldest(log);
  if (length - 1 >= uint64_t{start} + reach_) moving_->AddNewest(log, length - 1);
}

void Dry::PushedAhead(const TokenLog& log) {
  if (moving_) Pushed(log);
}

void Dry::Popping(const TokenLog& log, uint32_t length) {
  if (!moving_) return whole_.Popping(log, length);
  const uint32_t start = Start(length);
  if (length - 1 >= uint64_t{start} + reach_) moving_->RemoveNewest(log);
  if (start > Start(length - 1) && start - 1 + reach_ < length - 1) moving_->AddOldest(log, start - 1 + reach_);
}

Dry Dry::Fork(const TokenLog& log, uint32_t length) {
  Dry fork(*this);
  if (!moving_) {
    fork.whole_ = whole_.Fork(log, length);
  } else if (log.length() - length > window_) {
    TokenLog cut = log;
    cut.Truncate(length);
    fork.Fill(cut);
  } else {
    for (uint32_t rest = log.length(); rest > length; --rest) fork.Popping(log, rest);
  }
  return fork;
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
  moving_ ? moving_->Find(log, length, &found) : whole_.Find(log, &found);
  FindAtStart(log, &found);
  if (found.empty()) return {};
  const uint32_t limit = RepetitionLimit(log, options, length - Start(length), reach_);
  if (limit < least_) return {};

  SortByToken(std::span(found));
  DryTermList terms;
  for (size_t i = 0, next = 0; i < found.size(); i = next) {
    uint32_t longest = 0;
    for (; next < found.size() && found[next].token == found[i].token; ++next) {
      longest = std::max(longest, found[next].length);
    }
    if (IsBreaker(options, found[i].token)) continue;
    terms.push_back({found[i].token, options.terms[std::min(longest, limit) - least_]});
  }
  return terms;
}

uint32_t RepetitionLimit(const TokenLog& log, const DryOptions& options, uint32_t length, uint32_t reach) {
  if (options.breakers.empty()) return length;
  const uint32_t far = std::min(length, reach + options.longest_breaker);
  uint32_t state = BreakerTree::kStart;
  for (uint32_t back = 0; back < far; ++back) {
    state = options.breaker_tree.Next(state, log.at(log.length() - 1 - back));
    const uint32_t longest = options.breaker_tree.BreakerAt(state);
    if (longest > 0) return back + 1 - longest;
  }
  return length;
}

}  // namespace sortition::service
