// Selection through group maxima.
#include "kernels/cpu/select.h"

#include <algorithm>
#include <functional>

#include "kernels/check.h"

namespace sortition::kernels::cpu {
namespace {

// A key that at least `count` tokens reach, if there are so many groups: the count-th largest group maximum.
uint32_t LowerBoundOfNth(const Row& row, uint32_t count, std::vector<uint32_t>* sorted) {
  if (count > row.maxima.size()) return 1;
  sorted->assign(row.maxima.begin(), row.maxima.end());
  std::nth_element(sorted->begin(), sorted->begin() + (count - 1), sorted->end(), std::greater<>());
  return (*sorted)[count - 1];
}

}  // namespace

void SelectFirst(const Row& row, uint32_t count, uint32_t floor, Scratch* scratch) {
  const uint32_t from = std::max(floor, LowerBoundOfNth(row, count, &scratch->sorted_maxima));
  std::vector<Candidate>& candidates = scratch->candidates;
  candidates.clear();
  ForEachFrom(row, from, [&](uint32_t token, uint32_t key) { candidates.push_back({key, token}); });
  if (candidates.size() <= count) return;
  std::nth_element(candidates.begin(), candidates.begin() + (count - 1), candidates.end(), InOrder);
  candidates.resize(count);
}

Candidate First(const Row& row) {
  const uint32_t group = uint32_t(std::ranges::find(row.maxima, row.max_key) - row.maxima.begin());
  GroupKeys keys;
  LoadKeys(row, group, &keys);
  const uint32_t offset = uint32_t(std::ranges::find(keys, row.max_key) - keys.begin());
  SORTITION_CHECK(offset < law::kGroupSize);
  return {row.max_key, group * law::kGroupSize + offset};
}

}  // namespace sortition::kernels::cpu
