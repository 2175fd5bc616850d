// COMPACT.md, step by step.
#include "kernels/law/compact.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/check_row.h"
#include "kernels/law/reference_row.h"
#include "kernels/law/row_law.h"

namespace sortition::law {

using kernels::CompactRow;
using kernels::LogitEdit;
using kernels::RowFault;
using kernels::RowOutput;
using kernels::RowParameters;
using kernels::RowRequest;
using kernels::RowRequired;
using kernels::RowRequiredReason;
using kernels::StatedRow;
using kernels::TokenBits;

namespace {

// A refusal names at most this number of unknown tokens.
constexpr size_t kFewTokens = kernels::kMaxTopLogprobs;

bool Precedes(TokenBits one, TokenBits other) { return Before(Key(one.bits), one.token, Key(other.bits), other.token); }

// A compact row and the request for it.
class CompactRun {
 public:
  CompactRun(const RowRequest& request, const CompactRow& row) : request_(request), row_(row) {
    CheckClaims();
    known_.assign(row.first.begin(), row.first.end());
    known_.insert(known_.end(), row.others.begin(), row.others.end());
    std::ranges::sort(known_, {}, &TokenBits::token);
    SORTITION_CHECK(std::ranges::adjacent_find(known_, {}, &TokenBits::token) == known_.end());
  }

  std::variant<RowOutput, RowRequired> Run() const {
    if (std::vector<u32> raised = RaisedUnknown(); !raised.empty()) {
      return RowRequired{RowRequiredReason::kTokens, std::move(raised)};
    }
    std::vector<TokenBits> changed;
    for (const TokenBits& token : known_) {
      const u32 bits = ChangedBits(request_, token);
      if (IsTooLarge(bits)) return FailedRow(RowFault::kLogitTooLarge, token.token);
      changed.push_back({token.token, bits});
    }
    ListedRow known;
    known.kept = LiveInOrder(std::move(changed));
    Unknown unknown = LiveUnknown();
    const auto result = unknown.count == 0 ? RunWhole(std::move(known)) : RunFirst(std::move(known));
    if (const auto* const output = std::get_if<RowOutput>(&result)) return *output;
    RowRequired required{std::get<RowRequiredReason>(result)};
    if (unknown.count <= kFewTokens) {
      required = {RowRequiredReason::kTokens, std::move(unknown.few)};
    } else if (required.reason == RowRequiredReason::kSums) {
      required.tokens = ChangedUnknown();
    }
    return required;
  }

 private:
  using Result = std::variant<RowOutput, RowRequiredReason>;

  // Every token that may be live after the changes is known.
  Result RunWhole(ListedRow known) const {
    if (known.kept.empty()) return FailedRow(RowFault::kNoLiveToken, 0);
    return RunFrom(std::move(known));
  }

  Result RunFirst(ListedRow known) const {
    if (row_.first.empty()) return RowRequiredReason::kRow;
    // Tokens that the changes move behind the last listed place are among the rest, at unknown places.
    const TokenBits last = row_.first.back();
    std::vector<TokenBits> behind;
    std::ranges::copy_if(known.kept, std::back_inserter(behind), [&](auto& token) { return Precedes(last, token); });
    known.kept.resize(known.kept.size() - behind.size());
    if (known.kept.empty()) return RowRequiredReason::kCut;
    const auto weights = [&](std::optional<u64> sum, const Temperature& temperature) -> RestWeights {
      return {SumAfterChanges(sum, temperature, known.kept[0]), MostOfRest(sum, temperature, known.kept[0], behind)};
    };
    known.rest = Rest{
        last.bits, request_.live_vocabulary - u32(known.kept.size()), weights(row_.unit_sum, UnitTemperature()), {}};
    if (const auto temperature = StatedTemperature(*request_.parameters)) {
      known.rest->own = weights(row_.sum, *temperature);
    }
    return RunFrom(std::move(known));
  }

  Result RunFrom(ListedRow known) const {
    known.raw.assign(row_.first.begin(), row_.first.end());
    if (!row_.is_whole) known.raw_rest.emplace().unit.all = row_.unit_sum;
    if (request_.parameters->raw_logprob && known.raw.empty()) return RowRequiredReason::kRow;
    return RunListed(request_, known);
  }

  void CheckClaims() const {
    kernels::CheckOptions(request_);
    kernels::CheckEdits(request_);
    for (size_t i = 0; i < row_.first.size(); ++i) {
      const TokenBits token = row_.first[i];
      SORTITION_CHECK(token.token < request_.live_vocabulary && token.bits != kMaskedBits);
      SORTITION_CHECK(token.bits == Canonical(token.bits) && !IsTooLarge(token.bits));
      SORTITION_CHECK(i == 0 || Precedes(row_.first[i - 1], token));
    }
    for (size_t i = 0; i < row_.others.size(); ++i) {
      const TokenBits token = row_.others[i];
      SORTITION_CHECK(token.token < request_.live_vocabulary);
      SORTITION_CHECK(i == 0 || row_.others[i - 1].token < token.token);
      if (token.bits == kMaskedBits) continue;
      SORTITION_CHECK(!row_.is_whole && (row_.first.empty() || Precedes(row_.first.back(), token)));
    }
  }

  bool IsKnown(u32 id) const { return row_.is_whole || std::ranges::binary_search(known_, id, {}, &TokenBits::token); }

  // Tokens that are not known and that their edit may raise.
  std::vector<u32> RaisedUnknown() const {
    const u32 one = 0x3f800000u;
    const auto is_positive = [](u32 bits) { return bits != 0 && (bits >> 31) == 0; };
    std::vector<u32> raised;
    for (const LogitEdit& edit : request_.edits) {
      if (IsKnown(edit.token) || IsBanned(edit) || !IsAllowed(request_, edit.token)) continue;
      const bool widens = (edit.flags & LogitEdit::kRepeated) != 0 && request_.parameters->repetition != 0 &&
                          request_.parameters->repetition < one;
      if (is_positive(edit.bias) || is_positive(edit.penalty) || widens) raised.push_back(edit.token);
    }
    return raised;
  }

  // The tokens that are not known and that may be live after the changes: their number, and themselves if they are few.
  struct Unknown {
    size_t count = 0;
    std::vector<u32> few;
  };
  Unknown LiveUnknown() const {
    Unknown unknown;
    if (row_.is_whole) return unknown;
    unknown.count = CountAllowed();
    for (const TokenBits& token : known_) unknown.count -= IsAllowed(request_, token.token);
    for (const LogitEdit& edit : request_.edits) {
      unknown.count -= !IsKnown(edit.token) && IsBanned(edit) && IsAllowed(request_, edit.token);
    }
    if (unknown.count > kFewTokens) return unknown;
    for (u32 id = 0; id < request_.live_vocabulary && unknown.few.size() < unknown.count; ++id) {
      const LogitEdit* const edit = FindEdit(request_, id);
      if (!IsKnown(id) && IsAllowed(request_, id) && (edit == nullptr || !IsBanned(*edit))) unknown.few.push_back(id);
    }
    return unknown;
  }

  size_t CountAllowed() const {
    if (request_.has_allowed_tokens) {
      return size_t(std::ranges::count_if(request_.allowed_tokens, [&](u32 id) { return IsAllowed(request_, id); }));
    }
    if (request_.allowed_bits == nullptr) return request_.live_vocabulary;
    size_t count = 0;
    for (u32 id = 0; id < request_.live_vocabulary; id += 32) {
      const u32 tail = std::min(request_.live_vocabulary - id, 32u);
      count += size_t(std::popcount(request_.allowed_bits[id / 32] & (~0u >> (32 - tail))));
    }
    return count;
  }

  static bool IsBanned(const LogitEdit& edit) { return (edit.flags & LogitEdit::kBanned) != 0; }

  bool ChangesWeight(const LogitEdit& edit) const { return edit.flags != 0 || edit.bias != 0 || edit.penalty != 0; }

  // Unknown tokens whose weight an edit may change.
  std::vector<u32> ChangedUnknown() const {
    std::vector<u32> changed;
    for (const LogitEdit& edit : request_.edits) {
      if (!IsKnown(edit.token) && ChangesWeight(edit)) changed.push_back(edit.token);
    }
    return changed;
  }

  // Returns the sum of the weights of all tokens after the changes, from the sum before them. Absent if it does not
  // follow: where there is a mask, where the largest logit is another one, where a changed token is not known.
  std::optional<u64> SumAfterChanges(std::optional<u64> sum, const Temperature& temperature, TokenBits largest) const {
    if (!sum || request_.has_allowed_tokens || request_.allowed_bits != nullptr) return {};
    if (largest != row_.first[0] || !ChangedUnknown().empty()) return {};
    const Scale scale = ScaleOf(largest.bits, temperature);
    const auto weight = [&](u32 bits) { return bits == kMaskedBits ? 0 : Weight(Distance(bits, scale)); };
    for (const LogitEdit& edit : request_.edits) {
      const auto token = std::ranges::lower_bound(known_, edit.token, {}, &TokenBits::token);
      if (token == known_.end() || token->token != edit.token) continue;
      *sum += weight(ChangedBits(request_, *token)) - weight(token->bits);
    }
    return sum;
  }

  // Returns an upper bound of the rest's weights after the changes, from the sum of all weights before them. `behind`:
  // the known tokens of the rest, after the changes. Absent where the largest logit is another one.
  std::optional<u64> MostOfRest(std::optional<u64> sum, const Temperature& temperature, TokenBits largest,
                                const std::vector<TokenBits>& behind) const {
    if (!sum || largest.bits != row_.first[0].bits) return {};
    const Scale scale = ScaleOf(largest.bits, temperature);
    const auto weight = [&](u32 bits) { return bits == kMaskedBits ? 0 : Weight(Distance(bits, scale)); };
    for (const TokenBits& token : known_) *sum -= weight(token.bits);
    for (const TokenBits& token : behind) *sum += weight(token.bits);
    return sum;
  }

  const RowRequest& request_;
  const CompactRow& row_;
  std::vector<TokenBits> known_;  // by id
};

using Claim = Unsound::Claim;

// Returns why a token cannot be stated at any place; empty if it can.
std::string_view WhyNotStated(u32 live_vocabulary, TokenBits token) {
  if (token.token >= live_vocabulary) return "is not in the live vocabulary";
  if (token.bits != Canonical(token.bits)) return "has a logit that is not canonical";
  if (token.bits != kMaskedBits && IsTooLarge(token.bits)) return "has a logit that fails the row";
  return {};
}

// Every token is below the live vocabulary. Looks for the place of a token only if there is one that is listed twice.
std::optional<Unsound> FindListedTwice(u32 live_vocabulary, const CompactRow& row) {
  thread_local std::vector<u64> memory;  // a bit for each token; all 0 between calls
  if (memory.size() * 64 < live_vocabulary) memory.resize((live_vocabulary + 63) / 64);
  u64* const seen = memory.data();
  const auto clear = [&] {
    for (const std::span<const TokenBits> tokens : {row.first, row.others}) {
      for (const TokenBits& token : tokens) seen[token.token / 64] = 0;
    }
  };
  const auto was_seen = [&](u32 token) {
    const u64 before = seen[token / 64];
    seen[token / 64] = before | u64{1} << token % 64;
    return before >> token % 64 & 1;
  };
  u64 is_twice = 0;
  for (const std::span<const TokenBits> tokens : {row.first, row.others}) {
    for (const TokenBits& token : tokens) is_twice |= was_seen(token.token);
  }
  clear();
  std::optional<Unsound> unsound;
  if (is_twice == 0) return unsound;
  const auto find = [&](std::span<const TokenBits> tokens, Claim claim) {
    for (size_t i = 0; i < tokens.size() && !unsound; ++i) {
      if (was_seen(tokens[i].token) != 0) unsound = Unsound{claim, i, "is listed twice"};
    }
  };
  find(row.first, Claim::kFirst);
  find(row.others, Claim::kOthers);
  clear();
  return unsound;
}

// True if nothing is wrong with the first tokens, except that one may be listed twice. Never stops early, because
// almost every row is sound.
bool AreFirst(u32 live_vocabulary, std::span<const TokenBits> first) {
  bool is_sound = true;
  u64 before = ~u64{0};
  for (const TokenBits& token : first) {
    const u64 rank = u64{Key(token.bits)} << 32 | u32(~token.token);
    is_sound &= rank < before;
    is_sound &= token.token < live_vocabulary;
    is_sound &= token.bits == Canonical(token.bits);
    is_sound &= token.bits != kMaskedBits;
    is_sound &= !IsTooLarge(token.bits);
    before = rank;
  }
  return is_sound;
}

std::optional<Unsound> FindUnsoundTokens(u32 live_vocabulary, const CompactRow& row) {
  const bool is_first_sound = AreFirst(live_vocabulary, row.first);
  for (size_t i = 0; !is_first_sound && i < row.first.size(); ++i) {
    std::string_view why = WhyNotStated(live_vocabulary, row.first[i]);
    if (why.empty() && row.first[i].bits == kMaskedBits) why = "is masked";
    if (why.empty() && i > 0 && !Precedes(row.first[i - 1], row.first[i]))
      why = "does not come after the one before it";
    if (!why.empty()) return Unsound{Claim::kFirst, i, why};
  }
  for (size_t i = 0; i < row.others.size(); ++i) {
    const TokenBits token = row.others[i];
    std::string_view why = WhyNotStated(live_vocabulary, token);
    if (why.empty() && i > 0 && row.others[i - 1].token >= token.token) why = "has no higher id than the one before it";
    if (why.empty() && token.bits != kMaskedBits) {
      if (row.is_whole) why = "is live, and the row has no further live token";
      if (!row.first.empty() && !Precedes(row.first.back(), token)) why = "comes before the last of the first tokens";
    }
    if (!why.empty()) return Unsound{Claim::kOthers, i, why};
  }
  return FindListedTwice(live_vocabulary, row);
}

// No unlisted token weighs more than the last of the first tokens.
std::string_view WhyNoSum(u32 live_vocabulary, const CompactRow& row, const Temperature& temperature, u64 sum) {
  const Scale scale = ScaleOf(row.first[0].bits, temperature);
  u64 listed = 0;
  for (const std::span<const TokenBits> tokens : {row.first, row.others}) {
    for (const TokenBits& token : tokens) {
      if (token.bits != kMaskedBits) listed += Weight(Distance(token.bits, scale));
    }
  }
  const u64 unlisted = row.is_whole ? 0 : live_vocabulary - row.first.size() - row.others.size();
  if (sum < listed) return "is below that of the tokens listed";
  if (sum - listed > unlisted * Weight(Distance(row.first.back().bits, scale))) return "is above what the row can have";
  return {};
}

}  // namespace

std::optional<Unsound> FindUnsound(const RowParameters& parameters, uint32_t live_vocabulary, const CompactRow& row) {
  if (auto unsound = FindUnsoundTokens(live_vocabulary, row)) return unsound;
  const auto temperature = StatedTemperature(parameters);
  if (row.sum && !temperature) return Unsound{Claim::kSum, 0, "the row has no temperature of its own"};
  if (row.first.empty()) return {};
  if (row.unit_sum) {
    const std::string_view why = WhyNoSum(live_vocabulary, row, UnitTemperature(), *row.unit_sum);
    if (!why.empty()) return Unsound{Claim::kUnitSum, 0, why};
  }
  if (row.sum) {
    const std::string_view why = WhyNoSum(live_vocabulary, row, *temperature, *row.sum);
    if (!why.empty()) return Unsound{Claim::kSum, 0, why};
  }
  return {};
}

std::optional<Temperature> StatedTemperature(const RowParameters& parameters) {
  for (const StageWords& stage : StagesOf(parameters)) {
    if (stage.kind == kStageTemperature) return Temperature{stage.a, i32(stage.b), stage.c};
  }
  return {};
}

std::variant<RowOutput, RowRequired> SampleCompactRowReference(const RowRequest& request, const CompactRow& row) {
  return CompactRun(request, row).Run();
}

StatedRow MergeShards(std::span<const StatedRow> shards) {
  const auto precedes = [](const TokenBits& one, const TokenBits& other) { return Precedes(one, other); };
  StatedRow row;
  row.is_whole = true;
  size_t first = 0, others = 0;
  for (const StatedRow& shard : shards) first += shard.first.size(), others += shard.others.size();
  row.first.reserve(first);
  row.others.reserve(others);
  std::optional<TokenBits> last;  // first in order of the last first tokens: no unlisted token is before it
  for (const StatedRow& shard : shards) {
    row.first.insert(row.first.end(), shard.first.begin(), shard.first.end());
    row.others.insert(row.others.end(), shard.others.begin(), shard.others.end());
    if (shard.is_whole) continue;
    row.is_whole = false;
    if (!last || Precedes(shard.first.back(), *last)) last = shard.first.back();
  }
  std::ranges::sort(row.first, precedes);
  if (last) {
    const auto end = std::ranges::upper_bound(row.first, *last, precedes);
    row.others.insert(row.others.end(), end, row.first.end());
    row.first.erase(end, row.first.end());
  }
  std::ranges::sort(row.others, {}, &TokenBits::token);
  return row;
}

std::optional<StatedRow> StateRowReference(const RowRequest& request, uint32_t count, std::span<const u32> named) {
  std::vector<TokenBits> tokens;
  for (u32 id = 0; id < request.live_vocabulary; ++id) {
    const u32 sent = SentBits(request, id);
    if (SentError(sent, *request.parameters) != RowFault::kNone) return {};
    tokens.push_back({id, Canonical(sent)});
  }
  const std::vector<TokenBits> live = LiveInOrder(tokens);
  StatedRow stated;
  stated.first.assign(live.begin(), live.begin() + std::min<size_t>(count, live.size()));
  stated.is_whole = stated.first.size() == live.size();
  for (const u32 id : named) {
    if (std::ranges::find(stated.first, id, &TokenBits::token) == stated.first.end()) {
      stated.others.push_back(tokens[id]);
    }
  }
  if (live.empty()) return stated;
  const auto sum_at = [&](const Temperature& temperature) {
    const Scale scale = ScaleOf(live[0].bits, temperature);
    u64 sum = 0;
    for (const TokenBits& token : live) sum += Weight(Distance(token.bits, scale));
    return sum;
  };
  stated.unit_sum = sum_at(UnitTemperature());
  if (const auto temperature = StatedTemperature(*request.parameters)) stated.sum = sum_at(*temperature);
  return stated;
}

}  // namespace sortition::law
