// The changed row is listed from its first token on, as far as its filters look.
#include "kernels/cpu/decide_row.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/describe.h"
#include "kernels/cpu/filter.h"
#include "kernels/cpu/race.h"
#include "kernels/cpu/scale.h"
#include "kernels/law/compact.h"
#include "kernels/law/reference_row.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

constexpr uint32_t kOne = 0x3f800000u;  // f32 bits

// More edits than these that may raise a token are left to the reference.
constexpr size_t kMostRaised = 32;

Candidate Sent(const TokenBits& token) { return Candidate::Of(law::Key(token.bits), token.token); }

// Returns the token's edit, or null. Without branches, for the processor cannot guess them.
const LogitEdit* FindEdit(std::span<const LogitEdit> edits, uint32_t token) {
  if (edits.empty()) return nullptr;
  const LogitEdit* first = edits.data();
  for (size_t count = edits.size(); count > 1;) {
    const size_t half = count / 2;
    first += first[half].token <= token ? half : 0;
    count -= half;
  }
  return first->token == token ? first : nullptr;
}

// Fetches a list of edits, in the order of memory: FindEdit would wait for each line that it looks at.
void Fetch(std::span<const LogitEdit> edits) {
  constexpr size_t kMostBytes = size_t{64} << 10;  // of more, most lines would be fetched in vain
  const auto* const bytes = reinterpret_cast<const char*>(edits.data());
  for (size_t at = 0; at < edits.size_bytes() && at < kMostBytes; at += 64) __builtin_prefetch(bytes + at);
}

// Returns the token's bits after its edit.
uint32_t ChangedBits(const RowParameters& parameters, const LogitEdit& edit, uint32_t bits) {
  if ((edit.flags & LogitEdit::kBanned) != 0) return law::kMaskedBits;
  const bool repeated = (edit.flags & LogitEdit::kRepeated) != 0;
  return law::Changed(bits, edit.bias, repeated ? parameters.repetition : 0,
                      repeated ? parameters.inverse_repetition : 0, edit.penalty);
}

// Returns the number of tokens that the masks allow, or a part of them that is at least `enough`.
size_t CountAllowed(const RowRequest& request, size_t enough) {
  if (request.has_allowed_tokens) {
    if (request.allowed_bits == nullptr) return request.allowed_tokens.size();
    return size_t(
        std::ranges::count_if(request.allowed_tokens, [&](uint32_t id) { return law::IsAllowed(request, id); }));
  }
  if (request.allowed_bits == nullptr) return request.live_vocabulary;
  size_t count = 0;
  for (uint32_t id = 0; id + 32 <= request.live_vocabulary && count < enough; id += 32) {
    count += size_t(std::popcount(request.allowed_bits[id / 32]));
  }
  return count;
}

// True if what is asked beside the token follows from the kept tokens, or is stated.
bool IsKnown(const RowParameters& parameters, const CompactRow& row) {
  if (parameters.tempered_logprob || parameters.kept_log_mass) return false;
  return !parameters.raw_logprob || (row.unit_sum && parameters.raw_top <= row.first.size());
}

// True if the draw is one that DecideDraw decides, as far as the options say.
bool IsPlainDraw(const RowRequest& request, const CompactRow& row) {
  const RowParameters& parameters = *request.parameters;
  const bool widens = parameters.repetition != 0 && parameters.repetition < kOne;
  const bool names_tokens = !request.requested.empty() || request.wants_race_place;
  if (request.task != RowTask::kDraw || !parameters.chain.empty() || widens || names_tokens) return false;
  if (row.is_whole || row.first.empty() || !IsKnown(parameters, row)) return false;
  const size_t named = row.first.size() + row.others.size() + request.edits.size() + kMaxTopLogprobs;
  return named < CountAllowed(request, named + 1);
}

// The changed tokens that stand at or before the last of the first tokens, one after the other in order.
//
// Edits that lower a token leave it behind its place. So the next token is the next one of `first` if it is not edited
// and no edited token before it is left; edited tokens wait in a heap until the tokens of `first` are behind them.
class ChangedTokens {
 public:
  ChangedTokens(const RowRequest& request, const CompactRow& row, Scratch* scratch)
      : request_(request),
        row_(row),
        last_(Sent(row.first.back())),
        edited_(scratch->edited.Reserve(row.first.size() + kMostRaised)) {}

  // Puts the tokens that edits may raise into the heap. False if that is not decided here. Otherwise `*unknown` names
  // those of them that are not known.
  bool Raise(std::vector<uint32_t>* unknown) {
    size_t count = 0;
    for (const LogitEdit& edit : request_.edits) {
      const bool rises = int32_t(edit.bias) > 0 || int32_t(edit.penalty) > 0;
      if (!rises || (edit.flags & LogitEdit::kBanned) != 0 || !law::IsAllowed(request_, edit.token)) continue;
      if (++count > kMostRaised) return false;
      const TokenBits* const known = FindKnown(edit.token);
      if (known == nullptr) {
        unknown->push_back(edit.token);
        continue;
      }
      const uint32_t bits = ChangedBits(*request_.parameters, edit, known->bits);
      if (law::IsTooLarge(bits)) return false;
      raised_.push_back(edit.token);
      Push(bits, edit.token);
    }
    return true;
  }

  // Returns the next token, or kNone. The key of kNone is below every token's.
  static constexpr Candidate kNone = {0};
  Candidate Next() {
    while (at_ < row_.first.size()) {
      const TokenBits& token = row_.first[at_];
      const Candidate sent = Sent(token);
      if (count_ != 0 && edited_[0] > sent) return Pop();
      ++at_;
      if (!raised_.empty() && std::ranges::binary_search(raised_, token.token)) continue;
      if (!law::IsAllowed(request_, token.token)) continue;
      const LogitEdit* const edit = FindEdit(request_.edits, token.token);
      if (edit == nullptr) return sent;
      const uint32_t bits = ChangedBits(*request_.parameters, *edit, token.bits);
      SORTITION_CHECK(law::Key(bits) <= sent.key());
      Push(bits, token.token);
    }
    return count_ == 0 ? kNone : Pop();
  }

  // The place behind which tokens are that Next does not return.
  Candidate last() const { return last_; }

 private:
  const TokenBits* FindKnown(uint32_t token) const {
    for (const std::span<const TokenBits> tokens : {row_.first, row_.others}) {
      const auto found = std::ranges::find(tokens, token, &TokenBits::token);
      if (found != tokens.end()) return &*found;
    }
    return nullptr;
  }

  void Push(uint32_t bits, uint32_t token) {
    const Candidate candidate = Candidate::Of(law::Key(bits), token);
    if (bits == law::kMaskedBits || candidate < last_) return;
    edited_[count_++] = candidate;
    std::push_heap(edited_, edited_ + count_);
  }

  Candidate Pop() {
    std::pop_heap(edited_, edited_ + count_);
    return edited_[--count_];
  }

  const RowRequest& request_;
  const CompactRow& row_;
  const Candidate last_;
  size_t at_ = 0;                 // in `first`
  Candidate* const edited_;       // a heap, the first in order before all
  size_t count_ = 0;              // in it
  std::vector<uint32_t> raised_;  // ids ascending
};

// Describes the distribution before the changes from what the row states. False if it does not state enough.
bool DescribeRaw(const RowRequest& request, const CompactRow& row, RowOutput* output) {
  const auto chosen = std::ranges::find(row.first, output->token, &TokenBits::token);
  if (chosen == row.first.end()) return false;
  const auto top = std::min<size_t>(request.parameters->raw_top, row.first.size());
  output->raw.max_bits = row.first[0].bits;
  output->raw.weight_sum = *row.unit_sum;
  output->raw.chosen = *chosen;
  output->raw.rank = uint32_t(chosen - row.first.begin()) + 1;
  output->raw.top.assign(row.first.begin(), row.first.begin() + ptrdiff_t(top));
  return true;
}

// Returns the output of a row that keeps these tokens, of which `token` is drawn and `first` is the first in order.
// Absent if the row does not state enough for it.
std::optional<Decision> Answer(const Kernels& kernels, const RowRequest& request, const CompactRow& row,
                               const RowScale& scale, Candidate first, std::span<Candidate> kept, uint32_t token,
                               Scratch* scratch) {
  const RowParameters& parameters = *request.parameters;
  RowOutput output;
  output.token = token;
  if (parameters.processed_logprob || parameters.kept_count || parameters.kept_tokens) {
    output.kept = uint32_t(kept.size());
  }
  if (parameters.raw_logprob && !DescribeRaw(request, row, &output)) return std::nullopt;
  Row changed;
  changed.max_key = first.key();
  const Kept all = Kept::Of(kept);
  if (parameters.processed_logprob && parameters.greedy) {
    DescribePointMass(first, first, parameters.processed_top, {}, &output.processed);
  } else if (parameters.processed_logprob) {
    const Candidate chosen = *std::ranges::find(kept, token, &Candidate::token);
    Describe(kernels, changed, scale, all, chosen, parameters.processed_top, {}, scratch, &output.processed);
  }
  if (parameters.entropy) {
    output.entropy =
        parameters.greedy ? EntropySums{law::kUnitWeight, 0} : SumEntropy(kernels, changed, scale, all, scratch);
  }
  if (parameters.kept_tokens) ListKept(kernels, changed, all, scratch, &output.kept_tokens);
  return output;
}

}  // namespace

std::optional<Decision> DecideDraw(const Target& target, const RowRequest& request, const CompactRow& row,
                                   bool may_raise, Scratch* scratch) {
  if (!IsPlainDraw(request, row)) return std::nullopt;
  Fetch(request.edits);
  const Kernels& kernels = target.kernels;
  const RowParameters& parameters = *request.parameters;
  ChangedTokens tokens(request, row, scratch);
  std::vector<uint32_t> unknown;
  if (may_raise && !tokens.Raise(&unknown)) return std::nullopt;
  if (!unknown.empty()) return RowRequired{RowRequiredReason::kTokens, std::move(unknown)};

  const Candidate first = tokens.Next();
  if (first == ChangedTokens::kNone) return RowRequired{RowRequiredReason::kCut};
  const RowScale scale = ScaleOf(parameters, first.key());
  if (parameters.greedy) {
    Candidate alone = first;
    return Answer(kernels, request, row, scale, first, {&alone, 1}, first.token(), scratch);
  }
  const bool min_p = parameters.min_p_distance != RowParameters::kMinPOff;
  const uint32_t floor = min_p ? FirstKeyWithin(law::MakeBound(parameters.min_p_distance), scale.scale) : 1;
  // The tokens that min-p keeps, at most so many as top-k.
  Candidate* const listed = scratch->kept.Reserve(row.first.size() + kMostRaised);
  size_t count = 0;
  const auto is_full = [&] { return parameters.top_k != 0 && count == parameters.top_k; };
  Candidate next = first;
  while (next.key() >= floor) {
    listed[count++] = next;
    if (is_full()) break;
    next = tokens.Next();
  }
  if (next == ChangedTokens::kNone && tokens.last().key() >= floor) {
    if (parameters.top_k != 0) return RowRequired{RowRequiredReason::kCut};
    if (parameters.top_p != 0) return std::nullopt;
    return RowRequired{RowRequiredReason::kRow};
  }
  std::span<Candidate> kept(listed, count);
  if (parameters.top_p != 0) kept = TopPOfCandidates(kernels, parameters.top_p, scale, kept, scratch);
  if (kept.size() > Kept::kMostListed) return std::nullopt;
  const uint32_t token = Draw(kernels, Row(), scale, Kept::Of(kept), law::KeyOf(request.noise), std::nullopt, scratch);
  return Answer(kernels, request, row, scale, first, kept, token, scratch);
}

Decision DecideRow(const Target& target, const RowRequest& request, const CompactRow& row, bool may_raise,
                   Scratch* scratch) {
  if (auto decision = DecideDraw(target, request, row, may_raise, scratch)) return *std::move(decision);
  return law::SampleCompactRowReference(request, row);
}

Decision DecideRow(const RowRequest& request, const CompactRow& row, bool may_raise, Scratch* scratch) {
  return DecideRow(BestTarget(), request, row, may_raise, scratch);
}

}  // namespace sortition::kernels::cpu
