// Working memory of one thread that samples rows. Grows to the largest vocabulary it has met and is then reused as it
// is.
#pragma once

#include <cstdint>
#include <vector>

namespace sortition::kernels::cpu {

// A token as selection sees it.
struct Candidate {
  uint32_t key;  // law::Key of its bits
  uint32_t token;
};

// A group in the race.
struct Entrant {
  int64_t bound;  // no race key of the group's is smaller
  uint64_t word;  // the group's random word
  uint32_t group;
};

// What each stage leaves for the next lies in Row (row_view.h), which refers to the vectors here. Not thread-safe; no
// content survives from one row to the next.
struct Scratch {
  std::vector<uint32_t> raw_maxima;      // largest key of each group, unchanged logits
  std::vector<uint32_t> changed_maxima;  // the same after masks and patches
  std::vector<uint64_t> allowed_words;   // one bit a token, one word a group
  std::vector<uint32_t> patch_keys;      // the key that each patch leaves
  std::vector<uint32_t> sorted_maxima;
  std::vector<Candidate> candidates;
  std::vector<uint64_t> buckets;  // weight sums by distance
  std::vector<Entrant> entrants;
};

}  // namespace sortition::kernels::cpu
