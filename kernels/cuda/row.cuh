// A row as a kernel sees it: the sent logits, and over them a bitmap of what shows and the keys of patched tokens.
//
// Logits are never rewritten. Every token's key is made anew from what was sent, and the largest keys of groups tell
// which groups need to be looked at.
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

  // The 16 bytes from token `first`, a multiple of kPerQuad below `vocabulary`. Past the vocabulary, -Inf.
  __device__ static Quad Load(const void* logits, u32 first, u32 vocabulary) {
    Quad quad;
    if (first + kPerQuad <= vocabulary) {
      const uint4 loaded = __ldg(static_cast<const uint4*>(logits) + first / kPerQuad);
      quad.words[0] = loaded.x;
      quad.words[1] = loaded.y;
      quad.words[2] = loaded.z;
      quad.words[3] = loaded.w;
      return quad;
    }
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

  // Element `i`, as f32 bits.
  __device__ static u32 Bits(const Quad& quad, u32 i) {
    if (kBytes == 4) return quad.words[i];
    const u32 word = quad.words[i / 2];
    if (kType == DType::kBF16) return i % 2 == 0 ? word << 16 : word & 0xffff0000u;
    return WidenF16(i % 2 == 0 ? word & 0xffffu : word >> 16);
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
  __device__ Row(Shared& memory, const BatchView& batch, u32 index)
      : shared(memory),
        state(batch.states[index]),
        output(batch.outputs[index]),
        groups(GroupsOf(memory.input.vocabulary)),
        scratch(memory.input.scratch),
        layout(LayScratch(groups, 0)) {}

  __device__ bool Has(u32 flag) const { return (shared.input.flags & flag) != 0; }
  __device__ bool IsVisibleInPart() const { return shared.input.allowed != nullptr || shared.input.patch_count != 0; }

  __device__ i64* noise() const { return reinterpret_cast<i64*>(scratch + layout.noise); }
  __device__ u32* maxima() const { return scratch + layout.maxima; }
  __device__ u32* raw_maxima() const { return IsVisibleInPart() ? scratch + layout.raw_maxima : maxima(); }
  __device__ u32* patch_keys() const { return scratch + layout.patch_keys; }
  // Only of rows with patches.
  __device__ u32* visible_words() const { return scratch + layout.visible; }
  __device__ const u32* visible() const {
    return shared.input.patch_count != 0 ? visible_words() : shared.input.allowed;
  }
  __device__ u16* group_list() const {
    return groups <= kSharedGroups ? shared.groups : reinterpret_cast<u16*>(scratch + layout.lists);
  }
  __device__ u16* survivor_list() const {
    return groups <= kSharedGroups ? shared.survivors : reinterpret_cast<u16*>(scratch + layout.lists) + groups;
  }

  Shared& shared;
  RowState& state;
  RowOutput& output;
  u32 groups;
  u32* scratch;
  ScratchLayout layout;
};

// A row as one of its distributions sees it.
struct View {
  const u32* maxima;   // of groups, of tokens that show what was sent
  const u32* visible;  // null where all tokens do
  u32 patch_count;
};

__device__ inline u32 VisibleBits(const u32* visible, u32 first) {
  return visible == nullptr ? 0xffffffffu : visible[first / 32] >> (first % 32);
}

// The view of the raw or of the changed row, its maxima on chip if they fit.
__device__ inline View OpenView(const Row& row, bool raw) {
  const u32* const maxima = raw ? row.raw_maxima() : row.maxima();
  const View view = {maxima, raw ? nullptr : row.visible(), raw ? 0 : row.shared.input.patch_count};
  if (row.groups > kSharedGroups) return view;
  __syncthreads();
  for (u32 i = Thread(); i < row.groups; i += kThreads) row.shared.maxima[i] = maxima[i];
  __syncthreads();
  return {row.shared.maxima, view.visible, view.patch_count};
}

__device__ inline u32 LargestKey(const Row& row, const View& view) {
  u32 largest = 0;
  for (u32 i = Thread(); i < row.groups; i += kThreads) largest = max(largest, view.maxima[i]);
  for (u32 i = Thread(); i < view.patch_count; i += kThreads) largest = max(largest, row.patch_keys()[i]);
  return MaxOfAll(row.shared, largest);
}

// Calls visit(key, token) for every live patched token.
template <typename Visit>
__device__ void VisitPatched(const Row& row, const View& view, Visit visit) {
  for (u32 i = Thread(); i < view.patch_count; i += kThreads) {
    const u32 key = row.patch_keys()[i];
    if (key != 0) visit(key, row.shared.input.patches[i].token);
  }
}

// Calls visit(key, token) for every live token of `count` listed groups that shows what was sent. Those of a call in
// turn of one thread lie in one group as long as they can.
template <typename Visit>
__device__ void VisitGroups(const Row& row, const View& view, const u16* list, u32 count, Visit visit) {
  const u32 vocabulary = row.shared.input.vocabulary;
  WithElements(row.shared.input.dtype, [&](auto elements) {
    using E = decltype(elements);
    for (u32 i = Thread(); i < count * E::kQuads; i += kThreads) {
      const u32 first = list[i / E::kQuads] * kGroupSize + i % E::kQuads * E::kPerQuad;
      if (first >= vocabulary) continue;
      const auto quad = E::Load(row.shared.input.logits, first, vocabulary);
      const u32 visible = VisibleBits(view.visible, first);
#pragma unroll
      for (u32 j = 0; j < E::kPerQuad; ++j) {
        const u32 key = Key(Canonical(E::Bits(quad, j)));
        if (key != 0 && (visible >> j & 1) != 0) visit(key, first + j);
      }
    }
  });
}

// Appends to `list`, in no particular order, the groups i < row.groups that `take(i)`; returns their number.
template <typename Take>
__device__ u32 ListGroups(const Row& row, u16* list, Take take) {
  SetCount(row.shared, 0);
  for (u32 base = 0; base < row.groups; base += kThreads) {
    const u32 group = base + Thread();
    const bool taken = group < row.groups && take(group);
    const u32 votes = __ballot_sync(kAllLanes, taken);
    u32 start = 0;
    if (Lane() == 0 && votes != 0) start = atomicAdd(&row.shared.count, __popc(votes));
    start = __shfl_sync(kAllLanes, start, 0);
    if (taken) list[start + __popc(votes & ((1u << Lane()) - 1))] = u16(group);
  }
  return CountOf(row.shared);
}

// Calls visit(rank) for every live token whose rank is at least `last`, which is kLastLive or greater.
template <typename Visit>
__device__ void VisitFrom(const Row& row, const View& view, u64 last, Visit visit) {
  u16* const list = row.group_list();
  const u32 floor = KeyOfRank(last);
  const u32 count = ListGroups(row, list, [&](u32 group) { return view.maxima[group] >= floor; });
  const auto visit_rank = [&](u32 key, u32 token) {
    const u64 rank = RankOf(key, token);
    if (rank >= last) visit(rank);
  };
  VisitGroups(row, view, list, count, visit_rank);
  VisitPatched(row, view, visit_rank);
}

}  // namespace sortition::kernels::cuda
