// Selection through group maxima.
#include "kernels/cpu/select.h"

#include <algorithm>

#include "kernels/check.h"

namespace sortition::kernels::cpu {

namespace {

// CollectBetween from the listed groups and the edited tokens.
std::span<Candidate> CollectFrom(const Kernels& kernels, const RowView& row, const uint32_t* groups, uint32_t count,
                                 uint32_t floor, uint32_t ceiling, Array<Candidate>* memory) {
  Candidate* const candidates = memory->Reserve(size_t{count} * law::kGroupSize + row.edited.size());
  const uint32_t sent = kernels.CollectTokens(row, groups, count, floor, ceiling, candidates);
  const auto edited = uint32_t(row.edited.size());
  return {candidates, sent + kernels.CopyBetween(row.edited.data(), edited, floor, ceiling, candidates + sent)};
}

// CollectBetween from the row's listed tokens.
std::span<Candidate> CopyListed(const Kernels& kernels, const RowView& row, uint32_t floor, uint32_t ceiling,
                                Array<Candidate>* memory) {
  const auto count = uint32_t(row.listed.size());
  Candidate* const candidates = memory->Reserve(count);
  return {candidates, kernels.CopyBetween(row.listed.data(), count, floor, ceiling, candidates)};
}

}  // namespace

std::span<Candidate> CollectBetween(const Kernels& kernels, const RowView& row, uint32_t floor, uint32_t ceiling,
                                    Scratch* scratch, Array<Candidate>* memory) {
  if (floor >= row.listed_floor) return CopyListed(kernels, row, floor, ceiling, memory);
  uint32_t* const groups = scratch->groups.Reserve(row.groups);
  const uint32_t count = kernels.SelectAtLeast(row.maxima, row.groups, floor, groups);
  return CollectFrom(kernels, row, groups, count, floor, ceiling, memory);
}

std::optional<std::span<Candidate>> CollectIfFew(const Kernels& kernels, const RowView& row, uint32_t floor,
                                                 Scratch* scratch, Array<Candidate>* memory) {
  if (floor >= row.listed_floor && row.listed.size() <= Kept::kMostListed)
    return CopyListed(kernels, row, floor, kNoCeiling, memory);
  uint32_t* const groups = scratch->groups.Reserve(row.groups);
  const uint32_t count = kernels.SelectAtLeast(row.maxima, row.groups, floor, groups);
  if (count * law::kGroupSize > Kept::kMostListed) return std::nullopt;
  return CollectFrom(kernels, row, groups, count, floor, kNoCeiling, memory);
}

Sample SampleBetween(const Kernels& kernels, const RowView& row, uint32_t floor, uint32_t ceiling, size_t count,
                     Scratch* scratch, Array<Candidate>* memory) {
  uint32_t* const groups = scratch->groups.Reserve(row.groups);
  const uint32_t all = kernels.SelectAtLeast(row.maxima, row.groups, floor, groups);
  const uint32_t step = std::max(1u, uint32_t(all * law::kGroupSize / count));
  uint32_t some = 0;
  for (uint32_t i = 0; i < all; i += step) groups[some++] = groups[i];
  Candidate* const candidates = memory->Reserve(size_t{some} * law::kGroupSize);
  return {{candidates, kernels.CollectTokens(row, groups, some, floor, ceiling, candidates)}, step};
}

namespace {

// Returns the first `count` tokens and up to `more` that come next.
std::span<Candidate> SelectUpTo(const Kernels& kernels, const RowView& row, uint32_t count, uint32_t more,
                                uint32_t floor, Scratch* scratch, Array<Candidate>* memory) {
  const bool are_listed = row.listed.size() >= count || floor >= row.listed_floor;
  SORTITION_CHECK(are_listed || !row.IsOnlyListed());
  uint32_t* const folded = scratch->folded.Reserve(row.groups);
  const uint32_t from = are_listed ? std::max(floor, row.listed_floor)
                                   : kernels.LowerBoundOfNth(row.reached, row.groups, count, floor, folded);
  const std::span<Candidate> candidates = CollectBetween(kernels, row, from, kNoCeiling, scratch, memory);
  if (candidates.size() <= size_t{count} + more) return candidates;
  const Candidate last = kernels.NthCandidate(candidates.data(), uint32_t(candidates.size()), count);
  return candidates.first(kernels.MoveNotAfter(candidates.data(), uint32_t(candidates.size()), last));
}

}  // namespace

std::span<Candidate> SelectFirst(const Kernels& kernels, const RowView& row, uint32_t count, uint32_t floor,
                                 Scratch* scratch, Array<Candidate>* memory) {
  return SelectUpTo(kernels, row, count, 0, floor, scratch, memory);
}

std::span<Candidate> SelectAbout(const Kernels& kernels, const RowView& row, uint32_t count, uint32_t floor,
                                 Scratch* scratch, Array<Candidate>* memory) {
  return SelectUpTo(kernels, row, count, count, floor, scratch, memory);
}

std::span<Candidate> CollectNotAfter(const Kernels& kernels, const RowView& row, Candidate last, Scratch* scratch,
                                     Array<Candidate>* memory) {
  const std::span<Candidate> candidates = CollectBetween(kernels, row, last.key(), kNoCeiling, scratch, memory);
  return candidates.first(kernels.MoveNotAfter(candidates.data(), uint32_t(candidates.size()), last));
}

Candidate First(const Kernels& kernels, const RowView& row) {
  if (!row.listed.empty()) return std::ranges::max(row.listed);
  const uint32_t group = kernels.FindMax(row.maxima, row.groups);
  // The group's tokens with the largest key, by ascending id.
  Candidate ties[law::kGroupSize + Array<Candidate>::kPadding];
  Candidate first;
  if (kernels.CollectTokens(row, &group, 1, row.max_key, kNoCeiling, ties) != 0) first = ties[0];
  for (const Candidate& candidate : row.edited) first = std::max(first, candidate);
  SORTITION_CHECK(first.key() == row.max_key);
  return first;
}

}  // namespace sortition::kernels::cpu
