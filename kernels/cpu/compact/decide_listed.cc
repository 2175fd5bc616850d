// Steps 1 to 3 of COMPACT.md, section 2, without sorting what is in order already. The other steps are the law's.
#include "kernels/cpu/compact/decide_listed.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cpu/candidate.h"
#include "kernels/cpu/changed_tokens.h"
#include "kernels/cpu/one_edit.h"
#include "kernels/law/compact.h"
#include "kernels/law/reference_row.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

// Returns the number of tokens that the masks allow, or a part of them that is at least `enough`.
size_t CountAllowed(const RowRequest& request, size_t enough) {
  if (request.has_allowed_tokens) {
    if (request.allowed_bits == nullptr) return request.allowed_tokens.size();
    return size_t(
        std::ranges::count_if(request.allowed_tokens, [&](uint32_t id) { return law::IsAllowed(request, id); }));
  }
  if (request.allowed_bits == nullptr) return request.live_vocabulary;
  size_t count = 0;
  for (uint32_t id = 0; id < request.live_vocabulary && count < enough; id += 32) {
    const uint32_t left = std::min(request.live_vocabulary - id, 32u);
    count += size_t(std::popcount(request.allowed_bits[id / 32] & (~0u >> (32 - left))));
  }
  return count;
}

// Calls `take` with each token that the masks allow, ids ascending.
template <typename Take>
void ForEachAllowed(const RowRequest& request, Take take) {
  if (request.has_allowed_tokens) {
    for (const uint32_t id : request.allowed_tokens) {
      if (law::IsAllowed(request, id)) take(id);
    }
    return;
  }
  for (uint32_t id = 0; id < request.live_vocabulary; id += 32) {
    const uint32_t left = std::min(request.live_vocabulary - id, 32u);
    uint32_t word = request.allowed_bits == nullptr ? ~0u : request.allowed_bits[id / 32];
    for (word &= ~0u >> (32 - left); word != 0; word &= word - 1) take(id + uint32_t(std::countr_zero(word)));
  }
}

bool IsBanned(const LogitEdit& edit) { return (edit.flags & LogitEdit::kBanned) != 0; }

class ListedRun {
 public:
  ListedRun(const RowRequest& request, const CompactRow& row, bool may_raise, Scratch* scratch)
      : request_(request), parameters_(*request.parameters), row_(row), may_raise_(may_raise), scratch_(scratch) {}

  std::optional<Decision> Run() {
    has_many_ = HasManyUnknown(request_, row_);
    if (!has_many_ || row_.unit_sum || row_.sum) MarkKnown();
    if (!has_many_ && CountUnknown() == 0) return RunWhole();
    if (RepetitionRaises(parameters_) || row_.first.empty()) return std::nullopt;
    Fetch(request_.edits);
    ChangedTokens tokens(request_, row_, scratch_);
    std::vector<uint32_t> raised;
    if (may_raise_ && !tokens.Raise(&raised)) return std::nullopt;
    if (!raised.empty()) return RowRequired{RowRequiredReason::kTokens, std::move(raised)};

    law::ListedRow listed;
    listed.kept.reserve(row_.first.size());
    for (Candidate next = tokens.Next(); next != ChangedTokens::kNone; next = tokens.Next()) {
      listed.kept.push_back({next.token(), law::KeyBits(next.key())});
    }
    if (listed.kept.empty()) return Refused(RowRequiredReason::kCut);
    listed.rest = law::Rest{row_.first.back().bits,
                            request_.live_vocabulary - uint32_t(listed.kept.size()),
                            WeightsOf(row_.unit_sum, law::UnitTemperature(), listed.kept[0]),
                            {}};
    if (const auto temperature = law::StatedTemperature(parameters_)) {
      listed.rest->own = WeightsOf(row_.sum, *temperature, listed.kept[0]);
    }
    return RunFrom(std::move(listed));
  }

 private:
  // Every token that may be live after the changes is known.
  std::optional<Decision> RunWhole() const {
    std::vector<Candidate> live;
    live.reserve(row_.first.size() + row_.others.size());
    for (const std::span<const TokenBits> tokens : {row_.first, row_.others}) {
      for (const TokenBits& token : tokens) {
        const uint32_t bits = Changed(token);
        if (law::IsTooLarge(bits)) return std::nullopt;
        if (bits != law::kMaskedBits) live.push_back(Candidate::Of(law::Key(bits), token.token));
      }
    }
    if (live.empty()) return law::FailedRow(RowFault::kNoLiveToken, 0);
    if (!std::ranges::is_sorted(live, std::greater())) std::ranges::sort(live, std::greater());
    law::ListedRow listed;
    listed.kept.reserve(live.size());
    for (const Candidate token : live) listed.kept.push_back({token.token(), law::KeyBits(token.key())});
    return RunFrom(std::move(listed));
  }

  std::optional<Decision> RunFrom(law::ListedRow listed) const {
    listed.raw.assign(row_.first.begin(), row_.first.end());
    if (!row_.is_whole) listed.raw_rest.emplace().unit.all = row_.unit_sum;
    if (parameters_.raw_logprob && listed.raw.empty()) return Refused(RowRequiredReason::kRow);
    auto result = law::RunListed(request_, listed);
    if (auto* const output = std::get_if<RowOutput>(&result)) return *std::move(output);
    return Refused(std::get<RowRequiredReason>(result));
  }

  // Names the unknown tokens if they are few.
  std::optional<Decision> Refused(RowRequiredReason reason) const {
    if (!has_many_ && CountUnknown() <= kMaxTopLogprobs) {
      RowRequired required{RowRequiredReason::kTokens};
      ForEachAllowed(request_, [&](uint32_t id) {
        if (!IsKnown(id) && !IsBannedById(id)) required.tokens.push_back(id);
      });
      return required;
    }
    if (reason == RowRequiredReason::kSums) return std::nullopt;  // names the edited tokens that are not known
    return RowRequired{reason};
  }

  // Returns the number of tokens that are unknown, allowed and not banned.
  size_t CountUnknown() const {
    if (row_.is_whole) return 0;
    size_t count = CountAllowed(request_, std::numeric_limits<size_t>::max());
    for (const std::span<const TokenBits> tokens : {row_.first, row_.others}) {
      for (const TokenBits& token : tokens) count -= law::IsAllowed(request_, token.token);
    }
    for (const LogitEdit& edit : request_.edits) {
      count -= IsBanned(edit) && !IsKnown(edit.token) && law::IsAllowed(request_, edit.token);
    }
    return count;
  }

  void MarkKnown() {
    const size_t words = (request_.live_vocabulary + 63) / 64;
    known_ = scratch_->known_words.Reserve(words);
    std::memset(known_, 0, words * sizeof(*known_));
    for (const std::span<const TokenBits> tokens : {row_.first, row_.others}) {
      for (const TokenBits& token : tokens) known_[token.token / 64] |= uint64_t{1} << token.token % 64;
    }
  }
  bool IsKnown(uint32_t id) const { return row_.is_whole || (known_[id / 64] >> id % 64 & 1) != 0; }

  bool IsBannedById(uint32_t id) const {
    const LogitEdit* const edit = FindEdit(request_.edits, id);
    return edit != nullptr && IsBanned(*edit);
  }

  // Returns the bits after the changes.
  uint32_t Changed(TokenBits token) const {
    if (!law::IsAllowed(request_, token.token)) return law::kMaskedBits;
    const LogitEdit* const edit = FindEdit(request_.edits, token.token);
    return edit == nullptr ? token.bits : ChangedBits(parameters_, *edit, token.bits);
  }

  // Returns what follows from the sum of all weights before the changes.
  law::RestWeights WeightsOf(std::optional<uint64_t> sum, const law::Temperature& temperature,
                             TokenBits largest) const {
    law::RestWeights weights = {SumAfterChanges(sum, temperature, largest), {}};
    const auto needs_bounds = [](const law::StageWords& stage) { return law::CutOf(stage.kind) == law::kCutMass; };
    if (weights.all || !sum || largest.bits != row_.first[0].bits) return weights;
    if (std::ranges::none_of(law::StagesOf(parameters_), needs_bounds)) return weights;
    // The rest weighs no more than before, up to its known tokens.
    const law::Scale scale = law::ScaleOf(largest.bits, temperature);
    const auto weight = [&](uint32_t bits) {
      return bits == law::kMaskedBits ? 0 : law::Weight(law::Distance(bits, scale));
    };
    const auto candidate = [](TokenBits token) { return Candidate::Of(law::Key(token.bits), token.token); };
    const Candidate last = candidate(row_.first.back());
    for (const std::span<const TokenBits> tokens : {row_.first, row_.others}) {
      for (const TokenBits& token : tokens) {
        const uint32_t bits = Changed(token);
        *sum += (candidate({token.token, bits}) < last ? weight(bits) : 0) - weight(token.bits);
      }
    }
    weights.most = sum;
    return weights;
  }

  // Derives the sum of all weights after the changes from the sum before them. Absent if it does not follow.
  std::optional<uint64_t> SumAfterChanges(std::optional<uint64_t> sum, const law::Temperature& temperature,
                                          TokenBits largest) const {
    if (!sum || request_.has_allowed_tokens || request_.allowed_bits != nullptr) return {};
    if (largest != row_.first[0]) return {};
    const law::Scale scale = law::ScaleOf(largest.bits, temperature);
    const auto weight = [&](uint32_t bits) {
      return bits == law::kMaskedBits ? 0 : law::Weight(law::Distance(bits, scale));
    };
    std::vector<TokenBits> known;  // by id; filled at the first edit that needs it
    for (const LogitEdit& edit : request_.edits) {
      if (edit.flags == 0 && edit.bias == 0 && edit.penalty == 0) continue;
      if (!IsKnown(edit.token)) return {};
      if (row_.is_whole) continue;
      if (known.empty()) {
        known.assign(row_.first.begin(), row_.first.end());
        known.insert(known.end(), row_.others.begin(), row_.others.end());
        std::ranges::sort(known, {}, &TokenBits::token);
      }
      const TokenBits token = *std::ranges::lower_bound(known, edit.token, {}, &TokenBits::token);
      *sum += weight(ChangedBits(parameters_, edit, token.bits)) - weight(token.bits);
    }
    return sum;
  }

  const RowRequest& request_;
  const RowParameters& parameters_;
  const CompactRow& row_;
  const bool may_raise_;
  Scratch* const scratch_;
  bool has_many_ = false;      // more unknown tokens than a refusal names
  uint64_t* known_ = nullptr;  // a bit a token; set if it may be looked at
};

}  // namespace

bool HasManyUnknown(const RowRequest& request, const CompactRow& row) {
  if (row.is_whole) return false;
  const size_t named = row.first.size() + row.others.size() + request.edits.size() + kMaxTopLogprobs;
  return named < CountAllowed(request, named + 1);
}

std::optional<Decision> DecideListed(const RowRequest& request, const CompactRow& row, bool may_raise,
                                     Scratch* scratch) {
  return ListedRun(request, row, may_raise, scratch).Run();
}

}  // namespace sortition::kernels::cpu
