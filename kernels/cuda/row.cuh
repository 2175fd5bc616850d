// A row as a kernel sees it: the sent logits, a bitmap of the tokens that show theirs, and the keys of edited tokens.
//
// Logits are never rewritten. Each read makes a token's key from its sent logit. The largest keys of groups tell which
// groups need to be read.
#pragma once

#include "kernels/cuda/shared.cuh"

namespace sortition::kernels::cuda {

// A row's elements of one type, 16 bytes at a time.
template <DType kType>
struct Elements {
  static constexpr DType kDType = kType;
  static constexpr u32 kBytes = kType == DType::kF32 ? 4 : 2;
  static constexpr u32 kPerQuad = 16 / kBytes;
  static constexpr u32 kQuads = kGroupSize / kPerQuad;  // of a group
  static constexpr u32 kMaskedWord = kType == DType::kF32   ? 0xff800000u
                                     : kType == DType::kF16 ? 0xfc00fc00u
                                                            : 0xff80ff80u;

  struct Quad {
    u32 words[4];
  };

  // Returns the address of the 16 bytes that begin at token `first`, a multiple of kPerQuad.
  __device__ static const uint4* At(const void* logits, u32 first) {
    return static_cast<const uint4*>(logits) + first / kPerQuad;
  }

  __device__ static Quad LoadWhole(const uint4* at) {
    const uint4 loaded = __ldg(at);
    return {loaded.x, loaded.y, loaded.z, loaded.w};
  }

  // Returns the 16 bytes that begin at token `first` < vocabulary; -Inf past the vocabulary.
  __device__ static Quad Load(const void* logits, u32 first, u32 vocabulary) {
    if (first + kPerQuad <= vocabulary) return LoadWhole(At(logits, first));
    Quad quad;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      quad.words[i] = kMaskedWord;
      if (kBytes == 4) {
        if (first + i < vocabulary) quad.words[i] = static_cast<const u32*>(logits)[first + i];
      } else {
        const u16* const halves = static_cast<const u16*>(logits) + first + 2 * i;
        if (first + 2 * i < vocabulary) quad.words[i] = (kMaskedWord & 0xffff0000u) | halves[0];
        if (first + 2 * i + 1 < vocabulary) quad.words[i] = (quad.words[i] & 0xffffu) | u32(halves[1]) << 16;
      }
    }
    return quad;
  }

  // The same if `first` is below `end`, which is at most `vocabulary`.
  __device__ static Quad LoadBefore(const void* logits, u32 first, u32 end, u32 vocabulary) {
    if (first < end) return Load(logits, first, vocabulary);
    return {kMaskedWord, kMaskedWord, kMaskedWord, kMaskedWord};
  }

  // Element `i`, as f32 bits.
  __device__ static u32 Bits(const Quad& quad, u32 i) {
    if (kBytes == 4) return quad.words[i];
    const u32 word = quad.words[i / 2];
    if (kType == DType::kBF16) return i % 2 == 0 ? word << 16 : word & 0xffff0000u;
    return WidenHalf(i % 2 == 0 ? word & 0xffffu : word >> 16);
  }
};

// Calls `run` with the row's Elements.
template <typename Run>
__device__ void WithElements(DType dtype, Run run) {
  if (dtype == DType::kBF16) {
    run(Elements<DType::kBF16>());
  } else if (dtype == DType::kF16) {
    run(Elements<DType::kF16>());
  } else {
    run(Elements<DType::kF32>());
  }
}

// One row and its memory.
struct Row {
  __device__ Row(const BatchView& batch, u32 index)
      : state(batch.states[index]),
        output(batch.outputs[index]),
        groups(GroupsOf(OnChip().input.vocabulary)),
        scratch(OnChip().input.scratch),
        layout(LayScratch(groups, 0)) {}

  __device__ bool Has(u32 flag) const { return (OnChip().input.flags & flag) != 0; }
  __device__ bool IsVisibleInPart() const {
    return OnChip().input.allowed != nullptr || OnChip().input.edit_count != 0;
  }

  __device__ u32* noise() const { return scratch + layout.noise; }
  __device__ u32* maxima() const { return scratch + layout.maxima; }
  __device__ u32* raw_maxima() const { return IsVisibleInPart() ? scratch + layout.raw_maxima : maxima(); }
  __device__ u32* edit_keys() const { return scratch + layout.edit_keys; }
  // Only rows with edits have these.
  __device__ u32* visible_words() const { return scratch + layout.visible; }
  __device__ const u32* visible() const {
    return OnChip().input.edit_count != 0 ? visible_words() : OnChip().input.allowed;
  }
  __device__ u16* group_list() const {
    return groups <= kSharedGroups ? OnChip().groups : reinterpret_cast<u16*>(scratch + layout.lists);
  }
  __device__ u16* survivor_list() const {
    return groups <= kSharedGroups ? OnChip().survivors : reinterpret_cast<u16*>(scratch + layout.lists) + groups;
  }

  RowState& state;
  RawOutput& output;
  u32 groups;
  u32* scratch;
  ScratchLayout layout;
};

// A row as one of its distributions sees it.
struct View {
  const u32* maxima;   // one a group, of tokens that show their sent logit
  const u32* visible;  // null: all tokens show
  u32 edit_count;
};

// `Word` is const u32; const volatile u32 where other threads clear bits of other tokens at the same time.
template <typename Word>
__device__ u32 VisibleBits(Word* visible, u32 first) {
  return visible == nullptr ? 0xffffffffu : visible[first / 32] >> (first % 32);
}

// The view of the raw or of the changed row, its maxima on chip if they fit.
__device__ inline View OpenView(const Row& row, bool raw) {
  const u32* const maxima = raw ? row.raw_maxima() : row.maxima();
  const View view = {maxima, raw ? nullptr : row.visible(), raw ? 0 : OnChip().input.edit_count};
  if (row.groups > kSharedGroups) return view;
  // All loads are under way before the first is used.
  constexpr u32 kEach = kSharedGroups / kThreads;
  u32 keys[kEach];
#pragma unroll
  for (u32 i = 0; i < kEach; ++i) {
    const u32 group = i * kThreads + Thread();
    keys[i] = group < row.groups ? maxima[group] : 0;
  }
  __syncthreads();
#pragma unroll
  for (u32 i = 0; i < kEach; ++i) OnChip().maxima[i * kThreads + Thread()] = keys[i];
  __syncthreads();
  return {OnChip().maxima, view.visible, view.edit_count};
}

__device__ inline u32 LargestKey(const Row& row, const View& view) {
  u32 largest = 0;
  for (u32 i = Thread(); i < row.groups; i += kThreads) largest = max(largest, view.maxima[i]);
  for (u32 i = Thread(); i < view.edit_count; i += kThreads) largest = max(largest, row.edit_keys()[i]);
  return MaxOfAll(largest);
}

// Calls visit(key, token) for every live edited token.
template <typename Visit>
__device__ void VisitEdited(const Row& row, const View& view, Visit visit) {
  for (u32 i = Thread(); i < view.edit_count; i += kThreads) {
    const u32 key = row.edit_keys()[i];
    if (key != 0) visit(key, OnChip().input.edits[i].token);
  }
}

// Calls visit(key, token) for every live token of `count` listed groups that shows its sent logit (`visible_words`).
// Consecutive calls of a thread are for tokens of one group as long as possible.
template <typename Word, typename Visit>
__device__ void VisitVisible(Word* visible_words, const u16* list, u32 count, Visit visit) {
  const u32 vocabulary = OnChip().input.vocabulary;
  WithElements(OnChip().input.dtype, [&](auto elements) {
    using E = decltype(elements);
    const void* const logits = OnChip().input.logits;
    const u32 quads = count * E::kQuads;
    const auto first_of = [&](u32 i) {
      return i < quads ? list[i / E::kQuads] * kGroupSize + i % E::kQuads * E::kPerQuad : vocabulary;
    };
    u32 first_of_next = first_of(Thread());
    auto next = E::LoadBefore(logits, first_of_next, vocabulary, vocabulary);
    for (u32 i = Thread(); i < quads; i += kThreads) {
      // The next load is under way while this one is visited.
      const u32 first = first_of_next;
      const auto quad = next;
      first_of_next = first_of(i + kThreads);
      next = E::LoadBefore(logits, first_of_next, vocabulary, vocabulary);
      if (first >= vocabulary) continue;
      const u32 visible = VisibleBits(visible_words, first);
#pragma unroll
      for (u32 j = 0; j < E::kPerQuad; ++j) {
        const u32 key = Key(Canonical(E::Bits(quad, j)));
        if (key != 0 && (visible >> j & 1) != 0) visit(key, first + j);
      }
    }
  });
}

template <typename Visit>
__device__ void VisitGroups(const View& view, const u16* list, u32 count, Visit visit) {
  VisitVisible(view.visible, list, count, visit);
}

// Appends to `list`, in no particular order, the groups i < row.groups that `take(i)`; returns their number.
template <typename Take>
__device__ u32 ListGroups(const Row& row, u16* list, Take take) {
  constexpr u32 kAtOnce = 4;  // groups that a thread reads before the warp reserves room
  SetCount(0);
  for (u32 base = Thread(); base - Thread() < row.groups; base += kAtOnce * kThreads) {
    u32 votes[kAtOnce];
    u32 taken = 0;
#pragma unroll
    for (u32 i = 0; i < kAtOnce; ++i) {
      const u32 group = base + i * kThreads;
      votes[i] = __ballot_sync(kAllLanes, group < row.groups && take(group));
      taken += __popc(votes[i]);
    }
    u32 start = 0;
    if (Lane() == 0 && taken != 0) start = atomicAdd(&OnChip().count, taken);
    start = __shfl_sync(kAllLanes, start, 0);
#pragma unroll
    for (u32 i = 0; i < kAtOnce; ++i) {
      if ((votes[i] >> Lane() & 1) != 0)
        list[start + __popc(votes[i] & ((1u << Lane()) - 1))] = u16(base + i * kThreads);
      start += __popc(votes[i]);
    }
  }
  return CountOf();
}

// Calls visit(rank) for every live token with a rank of at least `last`. `last` >= kLastLive.
template <typename Visit>
__device__ void VisitFrom(const Row& row, const View& view, u64 last, Visit visit) {
  u16* const list = row.group_list();
  const u32 floor = KeyOfRank(last);
  const u32 count = ListGroups(row, list, [&](u32 group) { return view.maxima[group] >= floor; });
  const auto visit_rank = [&](u32 key, u32 token) {
    const u64 rank = RankOf(key, token);
    if (rank >= last) visit(rank);
  };
  VisitGroups(view, list, count, visit_rank);
  VisitEdited(row, view, visit_rank);
}

}  // namespace sortition::kernels::cuda
