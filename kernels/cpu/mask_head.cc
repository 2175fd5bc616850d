// Words, maxima and edited tokens of a row without its head.
#include "kernels/cpu/mask_head.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/select.h"

namespace sortition::kernels::cpu {

void MaskHead(const Kernels& kernels, Candidate first, Scratch* scratch, Row* row) {
  const std::span<Candidate> head = CollectBetween(kernels, *row, first.key(), kNoCeiling, scratch, &scratch->leading);
  uint64_t* const words = scratch->sent_words.Reserve(row->groups);
  if (row->sent_words == nullptr) std::fill_n(words, row->groups, ~uint64_t{0});
  const size_t padded = (row->groups + 63) / 64 * 64;
  uint32_t* const maxima = scratch->changed_maxima.Reserve(row->groups);
  uint32_t* const reached = scratch->reached.Reserve(row->groups);
  if (row->reached != reached) std::copy_n(row->reached, padded, reached);
  // Of groups that lose nothing no token comes before `first`, whatever bound is known.
  std::transform(row->maxima, row->maxima + padded, maxima, [&](uint32_t key) { return std::min(key, first.key()); });

  uint32_t* const groups = scratch->groups.Reserve(head.size());
  uint32_t count = 0;
  for (const Candidate& candidate : head) {
    if (candidate <= first) continue;
    words[candidate.token() / law::kGroupSize] &= ~(uint64_t{1} << (candidate.token() % law::kGroupSize));
    groups[count++] = candidate.token() / law::kGroupSize;
  }
  std::sort(groups, groups + count);
  count = uint32_t(std::unique(groups, groups + count) - groups);

  Candidate* const edited = scratch->edited.data();
  Candidate* const kept_end =
      std::remove_if(edited, edited + row->edited.size(), [&](Candidate c) { return c > first; });
  row->edited = {edited, size_t(kept_end - edited)};
  row->sent_words = words;
  row->maxima = maxima;
  row->reached = reached;
  uint32_t* const largest = scratch->folded.Reserve(count);
  kernels.LargestSentKeys(*row, groups, count, largest);
  for (uint32_t i = 0; i < count; ++i) maxima[groups[i]] = reached[groups[i]] = largest[i];
  for (const Candidate& candidate : row->edited) {
    const uint32_t group = candidate.token() / law::kGroupSize;
    maxima[group] = std::max(maxima[group], candidate.key());
    reached[group] = std::max(reached[group], candidate.key());
  }
  row->max_key = first.key();
}

}  // namespace sortition::kernels::cpu
