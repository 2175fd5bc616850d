// Selection in the law's order (key descending, then id ascending) without sorting the vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/cpu/row_view.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kernels.h"

namespace sortition::kernels::cpu {

// Above every key.
inline constexpr uint32_t kNoCeiling = ~0u;

// Returns all tokens with a key in [floor, ceiling), in no particular order, in `*memory`. floor >= 1. Reads the groups
// that have a key >= `floor`.
std::span<Candidate> CollectBetween(const Kernels& kernels, const RowView& row, uint32_t floor, uint32_t ceiling,
                                    Scratch* scratch, Array<Candidate>* memory);

// Returns the tokens with a key >= `floor` if few groups have one: at most Kept::kMostListed tokens. Nothing otherwise.
std::optional<std::span<Candidate>> CollectIfFew(const Kernels& kernels, const RowView& row, uint32_t floor,
                                                 Scratch* scratch, Array<Candidate>* memory);

// Returns all tokens that are not after `last`, in no particular order, in `*memory`.
std::span<Candidate> CollectNotAfter(const Kernels& kernels, const RowView& row, Candidate last, Scratch* scratch,
                                     Array<Candidate>* memory);

// A sample of CollectBetween: its tokens in every `step`-th group, without edited ones. `step` is such that about
// `count` tokens are looked at.
struct Sample {
  std::span<Candidate> candidates;  // in `*memory`
  uint32_t step;
};
Sample SampleBetween(const Kernels& kernels, const RowView& row, uint32_t floor, uint32_t ceiling, size_t count,
                     Scratch* scratch, Array<Candidate>* memory);

// Returns the first `count` tokens among those with a key >= `floor`, or all if there are fewer; in no particular
// order, in `*memory`. count >= 1. Reads about `count` groups, or all if there are fewer.
std::span<Candidate> SelectFirst(const Kernels& kernels, const RowView& row, uint32_t count, uint32_t floor,
                                 Scratch* scratch, Array<Candidate>* memory);

// As SelectFirst, but may add up to `count` tokens that come next in order. Ids ascend where no token is edited.
std::span<Candidate> SelectAbout(const Kernels& kernels, const RowView& row, uint32_t count, uint32_t floor,
                                 Scratch* scratch, Array<Candidate>* memory);

// The first token in order. `row` has a live token.
Candidate First(const Kernels& kernels, const RowView& row);

}  // namespace sortition::kernels::cpu
