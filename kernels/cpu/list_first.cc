// Finds a key that enough tokens reach, then lists these tokens.
#include "kernels/cpu/list_first.h"

#include <algorithm>
#include <optional>
#include <span>

#include "kernels/cpu/allowed_words.h"
#include "kernels/cpu/one_edit.h"
#include "kernels/cpu/scale.h"
#include "kernels/cpu/select.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

constexpr uint32_t kAllOfMinP = ~0u;

bool HasMinP(const RowRequest& request) {
  return request.parameters->min_p_distance != RowParameters::kMinPOff && !request.parameters->greedy;
}

// Returns how many first tokens the request looks at, unless min-p keeps fewer. kAllOfMinP: min-p alone limits them. 0:
// the request needs other tokens too.
uint32_t NumberLookedAt(const RowRequest& request) {
  const RowParameters& parameters = *request.parameters;
  if (!parameters.chain.empty() || parameters.tempered_logprob || parameters.kept_log_mass) return 0;
  if (parameters.greedy) return 1;
  if (parameters.top_k != 0 && parameters.top_k < request.live_vocabulary) {
    return parameters.top_k <= Kept::kMostListed ? parameters.top_k : 0;
  }
  return HasMinP(request) && parameters.top_p == 0 ? kAllOfMinP : 0;
}

// Returns the smallest key that min-p keeps if `max_key` is the largest.
uint32_t FirstKeyOfMinP(const RowParameters& parameters, uint32_t max_key) {
  const law::Temperature temperature = {parameters.multiplier, parameters.exponent, parameters.window};
  const law::Scale scale = law::ScaleOf(law::KeyBits(max_key), temperature);
  return FirstKeyWithin(law::MakeBound(parameters.min_p_distance), max_key, scale);
}

// A changed row in the making.
class FirstLister {
 public:
  FirstLister(const Kernels& kernels, const RowRequest& request, const RowView& raw, bool may_raise, Scratch* scratch)
      : kernels_(kernels),
        request_(request),
        raw_(raw),
        may_raise_(may_raise),
        scratch_(*scratch),
        maxima_(raw.maxima) {
    IndexEdits();
    if (!IsMasked(request)) return;
    mask_ = AllowedWordsInPlace(request);
    if (mask_ == nullptr) {
      uint64_t* const words = scratch_.mask.Reserve(raw.groups);
      FillAllowedWords(request, raw.groups, words);
      mask_ = words;
    }
  }

  // Leaves out the groups that the mask hides, if there is one.
  void LeaveOutMasked() {
    if (mask_ == nullptr || maxima_ != raw_.maxima) return;
    uint32_t* const masked = scratch_.changed_maxima.Reserve(raw_.groups);
    kernels_.MaskWholeGroups(mask_, raw_.maxima, raw_.groups, masked);
    maxima_ = masked;
  }

  // Returns a key >= `floor` that about `groups` groups reach before the edits, or `floor` where fewer reach it.
  uint32_t LevelOf(uint32_t groups, uint32_t floor) {
    uint32_t* const folded = scratch_.folded.Reserve(raw_.groups);
    return kernels_.LowerBoundOfNth(maxima_, raw_.groups, groups, floor, folded);
  }

  // Returns the tokens with a key >= `level` after the edits, and others that edits have moved below it. Absent if an
  // edit fails the row.
  std::optional<std::span<Candidate>> ListFrom(uint32_t level) {
    uint32_t* const groups = scratch_.groups.Reserve(raw_.groups);
    const uint32_t count = kernels_.SelectAtLeast(maxima_, raw_.groups, level, groups);
    const std::span<const LogitEdit> edits = EditsThatMatter({groups, count});
    RowView shown = raw_;
    shown.sent_words = mask_;
    Candidate* const tokens = scratch_.listed.Reserve(size_t{count} * law::kGroupSize + edits.size());
    Edited edited = {.live = scratch_.edited.Reserve(edits.size()),
                     .live_count = 0,
                     .moved_groups = scratch_.survivors.Reserve(edits.size()),
                     .moved_keys = scratch_.moved_keys.Reserve(edits.size()),
                     .moved_count = 0};
    if (!edits.empty()) {
      uint64_t* const words = FillWords({groups, count}, edits);
      if (!kernels_.EditTokens(shown, *request_.parameters, edits, words, &edited)) return std::nullopt;
      shown.sent_words = words;
    }
    const uint32_t sent = kernels_.CollectTokens(shown, groups, count, level, kNoCeiling, tokens);
    std::copy_n(edited.live, edited.live_count, tokens + sent);
    return std::span(tokens, sent + edited.live_count);
  }

 private:
  // Notes where each group's edits begin. The entry of a group without edits may be any number.
  void IndexEdits() {
    uint32_t* const index = scratch_.first_edit.Reserve(raw_.groups);
    for (size_t i = request_.edits.size(); i != 0; --i) index[request_.edits[i - 1].token / law::kGroupSize] = i - 1;
  }

  // Returns the edits that matter: those of the groups, or all edits if one may move a token up.
  std::span<const LogitEdit> EditsThatMatter(std::span<const uint32_t> groups) {
    const std::span<const LogitEdit> edits = request_.edits;
    if (edits.empty() || may_raise_) return edits;
    LogitEdit* const some = scratch_.some_edits.Reserve(edits.size());
    size_t count = 0;
    for (const uint32_t group : groups) {
      for (size_t i = scratch_.first_edit.data()[group]; i < edits.size(); ++i) {
        if (edits[i].token / law::kGroupSize != group) break;
        some[count++] = edits[i];
      }
    }
    return {some, count};
  }

  // Returns mask words. Only the listed and the edited groups' words are filled.
  uint64_t* FillWords(std::span<const uint32_t> groups, std::span<const LogitEdit> edits) {
    uint64_t* const words = scratch_.sent_words.Reserve(raw_.groups);
    const auto set = [&](uint32_t group) { words[group] = mask_ == nullptr ? ~uint64_t{0} : mask_[group]; };
    for (const uint32_t group : groups) set(group);
    for (const LogitEdit& edit : edits) set(edit.token / law::kGroupSize);
    return words;
  }

  const Kernels& kernels_;
  const RowRequest& request_;
  const RowView& raw_;
  const bool may_raise_;
  Scratch& scratch_;
  const uint64_t* mask_ = nullptr;  // null: all tokens are allowed
  const uint32_t* maxima_;          // as they were sent; 0 for groups that are left out
};

}  // namespace

bool LooksAtFirst(const RowRequest& request) { return NumberLookedAt(request) != 0; }

bool ListFirst(const Kernels& kernels, const RowRequest& request, const RowView& raw, bool may_raise, Scratch* scratch,
               RowView* row) {
  const uint32_t number = NumberLookedAt(request);
  if (number == 0 || raw.max_key == 0) return false;
  const RowParameters& parameters = *request.parameters;
  const bool has_min_p = HasMinP(request);
  const uint32_t kept_as_sent = has_min_p ? FirstKeyOfMinP(parameters, raw.max_key) : 1;
  const auto kept_of = [&](uint32_t max_key) {
    return max_key == raw.max_key || !has_min_p ? kept_as_sent : FirstKeyOfMinP(parameters, max_key);
  };
  FirstLister lister(kernels, request, raw, may_raise || RepetitionRaises(parameters), scratch);

  // A mask hides many tokens, edits change few. So without a mask the first level fits the row as it was sent.
  constexpr uint32_t kMore = 16;
  const bool masked = IsMasked(request);
  uint32_t groups = masked ? 2 * number + kMore : number + kMore;
  if (number == kAllOfMinP || (masked && has_min_p)) groups = kMore;
  uint32_t level = masked ? 1 : kept_as_sent;
  if (masked || number != kAllOfMinP) level = lister.LevelOf(groups, level);
  for (;;) {
    const std::optional<std::span<Candidate>> known = lister.ListFrom(level);
    if (!known) return false;
    uint32_t max_key = 0;
    uint32_t count = 0;  // tokens with a key >= level
    for (const Candidate& token : *known) {
      max_key = std::max(max_key, token.key());
      count += token.key() >= level;
    }
    // A larger key elsewhere in the row would make min-p keep less. If no token reaches `level`, kept_from is below it.
    const uint32_t kept_from = max_key != 0 ? kept_of(max_key) : 1;
    if (level == 1 || count >= number || kept_from >= level) {
      if (number == kAllOfMinP && count > Kept::kMostListed) return false;
      *row = raw;
      row->maxima = row->reached = nullptr;
      row->max_key = max_key;
      row->listed = known->first(kernels.MoveNotAfter(known->data(), uint32_t(known->size()), {uint64_t{level} << 32}));
      row->listed_floor = level;
      return true;
    }
    if (known->size() >= number) {
      // `number` tokens have this key or a larger one.
      level = std::max(kept_from, kernels.NthCandidate(known->data(), uint32_t(known->size()), number).key());
    } else if (number == kAllOfMinP && max_key != 0) {
      level = kept_from;
    } else {
      lister.LeaveOutMasked();
      groups *= 4;
      level = lister.LevelOf(groups, kept_from);
    }
  }
}

}  // namespace sortition::kernels::cpu
