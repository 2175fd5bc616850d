// Counts of tokens in the scope of penalties and the logit edits that follow from them, kept incrementally.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/row.h"
#include "service/text/sequence_spec.h"

namespace sortition::service {

// Occurrences of a token in the scope of penalties.
struct TokenOccurrences {
  uint32_t in_prompt = 0;
  uint32_t in_output = 0;
  uint32_t all() const { return in_prompt + in_output; }
  bool operator==(const TokenOccurrences&) const = default;
};

// Occurrences that a token gains; less than 0: that it loses.
struct CountChange {
  uint32_t token = 0;
  int32_t in_prompt = 0;
  int32_t in_output = 0;
  bool Reverts(const CountChange& other) const {
    return token == other.token && in_prompt == -other.in_prompt && in_output == -other.in_output;
  }
};

// Sorts the changes by token and makes one of those of a token. O(changes).
void SumChanges(std::vector<CountChange>* changes);

// Counts the tokens of a history while it is read. Not thread-safe. Memory is O(tokens that have come), and an address
// for each page below the highest of them.
class TokenCounter {
 public:
  // Lost occurrences have been counted before. O(1).
  void Count(const CountChange& change);
  // Calls take(token, count) for each token from `from` on and below `to` that occurs, in order. Both begin a page.
  template <typename Take>
  void ForEach(uint32_t from, uint32_t to, Take take) const {
    for (size_t page = from / kPageTokens; page < std::min<size_t>(to / kPageTokens, pages_.size()); ++page) {
      for (size_t i = 0; pages_[page] && i < kPageTokens; ++i) {
        const TokenOccurrences& count = (*pages_[page])[i];
        if (count.all() != 0) take(static_cast<uint32_t>(page * kPageTokens + i), count);
      }
    }
  }
  size_t size() const { return size_; }
  uint64_t bytes() const;

  static constexpr uint32_t kPageTokens = 64;

 private:
  using Page = std::array<TokenOccurrences, kPageTokens>;

  std::vector<std::unique_ptr<Page>> pages_;  // null where no token has come
  size_t used_pages_ = 0;
  size_t size_ = 0;  // tokens that occur
};

// Returns the edit of a token with the bias and ban of `listed` (its other fields are ignored), this count, and this
// DRY term.
kernels::LogitEdit MakeEdit(const PenaltyScope& scope, const PhaseOptions& options, const kernels::LogitEdit& listed,
                            TokenOccurrences count, double dry = 0);

// Not thread-safe. Memory is O(tokens that are listed or counted). Every call must get the same scope
// and options.
class PenaltyCounts {
 public:
  static constexpr uint32_t kEnd = kernels::kMaxVocabulary + 1;  // above all tokens; begins a page of a TokenCounter

  // Takes counts of this scope: a TokenCounter's, or PenaltyCounts under other options. O(tokens).
  template <typename Counts>
  PenaltyCounts(const PenaltyScope& scope, const PhaseOptions& options, const Counts& counted)
      : PenaltyCounts(options, counted.size()) {
    Extend(scope, options, counted, 0, kEnd);
  }
  // Takes nothing yet. `counted`: tokens that will be counted.
  PenaltyCounts(const PhaseOptions& options, size_t counted);
  // Takes the tokens from `from` on and below `to` that are listed or counted. Those below `from` were taken before.
  template <typename Counts>
  void Extend(const PenaltyScope& scope, const PhaseOptions& options, const Counts& counted, uint32_t from,
              uint32_t to);

  // Applies the changes and empties their list. O(changes * log tokens) if no token comes or goes, else O(tokens), too.
  void Apply(const PenaltyScope& scope, const PhaseOptions& options, std::vector<CountChange>* changes);

  // Sorted by token; counts() is parallel, zero for tokens that are only listed.
  const std::vector<kernels::LogitEdit>& edits() const { return edits_; }
  const std::vector<TokenOccurrences>& counts() const { return counts_; }
  // As a TokenCounter's.
  template <typename Take>
  void ForEach(uint32_t from, uint32_t to, Take take) const {
    const auto first = std::ranges::lower_bound(edits_, from, {}, &kernels::LogitEdit::token);
    for (auto edit = first; edit != edits_.end() && edit->token < to; ++edit) {
      const TokenOccurrences& count = counts_[static_cast<size_t>(edit - edits_.begin())];
      if (count.all() != 0) take(edit->token, count);
    }
  }
  size_t size() const { return edits_.size(); }
  TokenOccurrences count(uint32_t token) const;

  uint64_t bytes() const;

 private:
  void Erase();
  void Insert(const std::vector<kernels::LogitEdit>& edits, const std::vector<TokenOccurrences>& counts);

  std::vector<kernels::LogitEdit> edits_;
  std::vector<TokenOccurrences> counts_;
};

template <typename Counts>
void PenaltyCounts::Extend(const PenaltyScope& scope, const PhaseOptions& options, const Counts& counted, uint32_t from,
                           uint32_t to) {
  auto listed = std::ranges::lower_bound(options.listed_edits, from, {}, &kernels::LogitEdit::token);
  const auto push = [&](const kernels::LogitEdit& edit, TokenOccurrences count) {
    edits_.push_back(MakeEdit(scope, options, edit, count));
    counts_.push_back(count);
  };
  counted.ForEach(from, to, [&](uint32_t token, TokenOccurrences count) {
    for (; listed != options.listed_edits.end() && listed->token < token; ++listed) push(*listed, {});
    const bool is_listed = listed != options.listed_edits.end() && listed->token == token;
    push(is_listed ? *listed++ : kernels::LogitEdit{.token = token}, count);
  });
  for (; listed != options.listed_edits.end() && listed->token < to; ++listed) push(*listed, {});
}

}  // namespace sortition::service
