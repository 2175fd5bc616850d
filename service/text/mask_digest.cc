// Hashes sets of tokens in one form: the words of their bits that differ from the word before.
#include "service/text/mask_digest.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/hash/hash.h"
#include "service/receipt/record.h"

namespace sortition::service {
namespace {

constexpr uint32_t kWordBits = 32;
constexpr uint32_t kNoWord = ~uint32_t{0};

// Takes the tokens of one word from the front of a sorted list. Returns their bits.
uint32_t TakeWord(uint32_t word, std::span<const uint32_t>* tokens) {
  uint32_t bits = 0;
  size_t taken = 0;
  for (; taken < tokens->size() && (*tokens)[taken] / kWordBits == word; ++taken) {
    bits |= 1u << (*tokens)[taken] % kWordBits;
  }
  *tokens = tokens->subspan(taken);
  return bits;
}

uint32_t NextWord(std::span<const uint32_t> tokens) { return tokens.empty() ? kNoWord : tokens.front() / kWordBits; }

// Collects the words that differ from the word before. All bits are set before the first word and behind the live
// vocabulary, so that a set of all tokens has no change.
class Changes {
 public:
  explicit Changes(uint32_t live_vocabulary)
      : last_((live_vocabulary - 1) / kWordBits),
        tail_(live_vocabulary % kWordBits == 0 ? 0 : ~uint32_t{0} << live_vocabulary % kWordBits) {}

  uint32_t last() const { return last_; }
  void Add(uint32_t word, uint32_t bits) {
    if (word == last_) bits |= tail_;
    if (bits != before_) changes_.push_back(uint64_t{word} << kWordBits | bits);
    before_ = bits;
  }
  uint64_t Digest() const { return changes_.empty() ? 0 : absl::HashOf(changes_); }

 private:
  const uint32_t last_;
  const uint32_t tail_;
  uint32_t before_ = ~uint32_t{0};
  std::vector<uint64_t> changes_;
};

uint64_t DigestMask(const PositionMask& mask, std::span<const uint32_t> packed, uint32_t live_vocabulary) {
  if (!mask.limits()) return 0;
  Changes changes(live_vocabulary);
  std::span<const uint32_t> banned = mask.banned_tokens;
  if (mask.is_packed()) {
    for (uint32_t word = 0; word <= changes.last(); ++word) {
      changes.Add(word, packed[word] & ~TakeWord(word, &banned));
    }
    return changes.Digest();
  }
  const uint32_t unlisted = mask.has_allowed_tokens ? 0 : ~uint32_t{0};
  std::span<const uint32_t> allowed = mask.allowed_tokens;
  for (uint32_t next = 0; next <= changes.last();) {
    const uint32_t word = std::min({NextWord(allowed), NextWord(banned), changes.last()});
    if (word > next) changes.Add(next, unlisted);
    const uint32_t listed = unlisted | TakeWord(word, &allowed);
    changes.Add(word, listed & ~TakeWord(word, &banned));
    next = word + 1;
  }
  return changes.Digest();
}

// Returns the tokens that a mask allows and does not ban, as words. `packed`: its words if it is packed.
std::vector<uint32_t> ToMaskWords(const PositionMask& mask, std::span<const uint32_t> packed,
                                  uint32_t live_vocabulary) {
  std::vector<uint32_t> words((live_vocabulary + 31) / 32, mask.has_allowed_tokens ? 0 : ~uint32_t{0});
  if (mask.is_packed()) words.assign(packed.begin(), packed.end());
  for (const uint32_t token : mask.allowed_tokens) words[token / 32] |= 1u << token % 32;
  for (const uint32_t token : mask.banned_tokens) words[token / 32] &= ~(1u << token % 32);
  return words;
}

}  // namespace

void HashMasks(const std::vector<RowMaskBits>& masks, uint32_t live_vocabulary, RowPlan* plan) {
  for (size_t i = 0; i < masks.size(); ++i) {
    const PositionMask& mask = plan->masks[i];
    if (!mask.limits()) {
      plan->mask_hashes.emplace_back();
    } else if (mask.banned_tokens.empty()) {
      plan->mask_hashes.emplace_back(mask.is_packed() ? MaskHashOf(masks[i].words(), live_vocabulary)
                                                      : MaskHashOfTokens(mask.allowed_tokens, live_vocabulary));
    } else {
      plan->mask_hashes.emplace_back(MaskHashOf(ToMaskWords(mask, masks[i].words(), live_vocabulary), live_vocabulary));
    }
  }
}

uint64_t DigestMasks(const RowPlan& plan, const std::vector<RowMaskBits>& bits, uint32_t live_vocabulary) {
  std::vector<uint64_t> digests;
  for (size_t i = 0; i < plan.masks.size(); ++i) {
    digests.push_back(DigestMask(plan.masks[i], bits[i].words(), live_vocabulary));
  }
  if (std::ranges::all_of(digests, [](uint64_t digest) { return digest == 0; })) return 0;
  if (digests.size() == 1) digests.resize(plan.positions(), digests[0]);
  return absl::HashOf(digests);
}

}  // namespace sortition::service
