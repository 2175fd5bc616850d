// The changed row is listed from its first token on, as far as its filters look.
#include "kernels/cpu/decide_row.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/filter.h"
#include "kernels/cpu/race.h"
#include "kernels/cpu/scale.h"
#include "kernels/law/compact.h"
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

// True if the draw is one that DecideDraw decides, as far as the options say.
bool IsPlainDraw(const RowRequest& request, const CompactRow& row) {
  const RowParameters& parameters = *request.parameters;
  const bool asks_for_more = parameters.raw_logprob || parameters.processed_logprob || parameters.entropy ||
                             parameters.kept_count || parameters.kept_tokens || parameters.tempered_logprob ||
                             parameters.kept_log_mass;
  const bool widens = parameters.repetition != 0 && parameters.repetition < kOne;
  const bool is_masked = request.has_allowed_tokens || request.allowed_bits != nullptr;
  if (request.task != RowTask::kDraw || !parameters.chain.empty() || asks_for_more || widens || is_masked) return false;
  const size_t named = row.first.size() + row.others.size() + request.edits.size();
  return !row.is_whole && !row.first.empty() && named + kMaxTopLogprobs < request.live_vocabulary;
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
      if (!rises || (edit.flags & LogitEdit::kBanned) != 0) continue;
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

RowOutput OutputOf(uint32_t token) {
  RowOutput output;
  output.token = token;
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
  if (parameters.greedy) return OutputOf(first.token());
  const RowScale scale = ScaleOf(parameters, first.key());
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
  return OutputOf(Draw(kernels, Row(), scale, Kept::Of(kept), law::KeyOf(request.noise), std::nullopt, scratch));
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
