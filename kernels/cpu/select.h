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

// All tokens of a key from `floor` up to, but not including, `ceiling`, in no particular order, in `*memory`. floor
// >= 1. Reads the groups that have a key >= `floor`.
std::span<Candidate> CollectBetween(const Kernels& kernels, const Row& row, uint32_t floor, uint32_t ceiling,
                                    Scratch* scratch, Array<Candidate>* memory);

// Those of a key >= `floor` if the groups that have one are few: at most Kept::kMostListed tokens. Nothing otherwise.
std::optional<std::span<Candidate>> CollectIfFew(const Kernels& kernels, const Row& row, uint32_t floor,
                                                 Scratch* scratch, Array<Candidate>* memory);

// All tokens that are not after `last`, likewise.
std::span<Candidate> CollectNotAfter(const Kernels& kernels, const Row& row, Candidate last, Scratch* scratch,
                                     Array<Candidate>* memory);

// Those of CollectBetween in every `step`-th group, but for edited ones; so many steps that about `count` tokens are
// looked at.
struct Sample {
  std::span<Candidate> candidates;  // in `*memory`
  uint32_t step;
};
Sample SampleBetween(const Kernels& kernels, const Row& row, uint32_t floor, uint32_t ceiling, size_t count,
                     Scratch* scratch, Array<Candidate>* memory);

// The first `count` tokens in order among those of a key >= `floor`, or all of them if there are fewer; in no
// particular order, in `*memory`. count >= 1. Reads about `count` groups where there are that many.
std::span<Candidate> SelectFirst(const Kernels& kernels, const Row& row, uint32_t count, uint32_t floor,
                                 Scratch* scratch, Array<Candidate>* memory);

// These tokens and at most as many more, which come next in order, likewise; ids ascend where no token is edited.
std::span<Candidate> SelectAbout(const Kernels& kernels, const Row& row, uint32_t count, uint32_t floor,
                                 Scratch* scratch, Array<Candidate>* memory);

// The first token in order. `row` has a live token.
Candidate First(const Kernels& kernels, const Row& row);

}  // namespace sortition::kernels::cpu
