// A merge of the first tokens with a heap of those that edits have moved.
#include "kernels/cpu/changed_tokens.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/one_edit.h"
#include "kernels/law/reference_row.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

Candidate AsSent(const TokenBits& token) { return Candidate::Of(law::Key(token.bits), token.token); }

}  // namespace

void Fetch(std::span<const LogitEdit> edits) {
  constexpr size_t kMostBytes = size_t{64} << 10;  // most lines of a longer list would not be used
  const auto* const bytes = reinterpret_cast<const char*>(edits.data());
  for (size_t at = 0; at < edits.size_bytes() && at < kMostBytes; at += 64) __builtin_prefetch(bytes + at);
}

ChangedTokens::ChangedTokens(const RowRequest& request, const CompactRow& row, Scratch* scratch)
    : request_(request),
      row_(row),
      last_(AsSent(row.first.back())),
      edited_(scratch->edited.Reserve(row.first.size() + kMostRaised)) {}

bool ChangedTokens::Raise(std::vector<uint32_t>* unknown) {
  size_t count = 0;
  for (const LogitEdit& edit : request_.edits) {
    if (!MayRaise(edit) || (edit.flags & LogitEdit::kBanned) != 0 || !law::IsAllowed(request_, edit.token)) continue;
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

Candidate ChangedTokens::Next() {
  while (at_ < row_.first.size()) {
    const TokenBits& token = row_.first[at_];
    const Candidate sent = AsSent(token);
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

const TokenBits* ChangedTokens::FindKnown(uint32_t token) const {
  for (const std::span<const TokenBits> tokens : {row_.first, row_.others}) {
    const auto found = std::ranges::find(tokens, token, &TokenBits::token);
    if (found != tokens.end()) return &*found;
  }
  return nullptr;
}

void ChangedTokens::Push(uint32_t bits, uint32_t token) {
  const Candidate candidate = Candidate::Of(law::Key(bits), token);
  if (bits == law::kMaskedBits || candidate < last_) return;
  edited_[count_++] = candidate;
  std::push_heap(edited_, edited_ + count_);
}

Candidate ChangedTokens::Pop() {
  std::pop_heap(edited_, edited_ + count_);
  return edited_[--count_];
}

}  // namespace sortition::kernels::cpu
