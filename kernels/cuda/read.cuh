// The one pass over the logits that every row pays: the largest key of each group, and the check of the domain.
//
// A warp reads a tile: eight loads of 16 bytes a lane, all under way before the first is used. 8 lanes (of 16-bit
// elements; 16 of f32) hold one group of each load. Logits become signed integers in the order of the numbers, and are
// compared as these, 16-bit ones two at a time.
#pragma once

#include "kernels/cuda/noise.cuh"
#include "kernels/cuda/row.cuh"

namespace sortition::kernels::cuda {

constexpr u32 kLoads = 8;

// A word of one or two elements in the order of integers; its own inverse. -NaN comes first, NaN last.
template <DType kType>
struct Order;

template <>
struct Order<DType::kF32> {
  static constexpr u32 kNothing = 0x80000000u;
  __device__ static u32 Of(u32 word) { return word ^ (u32(i32(word) >> 31) & 0x7fffffffu); }
  __device__ static u32 Max(u32 a, u32 b) { return u32(max(i32(a), i32(b))); }
  __device__ static u32 Min(u32 a, u32 b) { return u32(min(i32(a), i32(b))); }
  // Returns the word with kNothing in place of elements that are not visible. `visible`: one bit an element.
  __device__ static u32 Show(u32 word, u32 visible) { return (visible & 1) != 0 ? word : kNothing; }
  // True if both extremes are numbers below 65504.
  __device__ static bool InDomain(u32 lowest, u32 highest) {
    return i32(highest) < i32(0x477fe000u) && i32(lowest) >= i32(Of(0xff800000u));
  }
  __device__ static u32 LargestBits(u32 word) { return Of(word); }
};

template <DType kType>
struct OrderOfHalves {
  static constexpr u32 kNothing = 0x80008000u;
  // Inverts the lower bits of negative halves.
  __device__ static u32 Of(u32 word) { return word ^ ((word >> 15 & 0x00010001u) * 0x7fffu); }
  __device__ static u32 Max(u32 a, u32 b) { return __vmaxs2(a, b); }
  __device__ static u32 Min(u32 a, u32 b) { return __vmins2(a, b); }
  __device__ static u32 Show(u32 word, u32 visible) {
    const u32 shown = ((visible & 1) != 0 ? 0xffffu : 0u) | ((visible & 2) != 0 ? 0xffff0000u : 0u);
    return (word & shown) | (kNothing & ~shown);
  }
  __device__ static i32 Lower(u32 word) { return i32(word << 16) >> 16; }
  __device__ static i32 Upper(u32 word) { return i32(word) >> 16; }
  __device__ static bool InDomain(u32 lowest, u32 highest) {
    // The first element that is 65504 or more, and -Inf.
    constexpr i32 kTooLarge = kType == DType::kF16 ? 0x7bff : 0x4780;
    constexpr i32 kLeast = kType == DType::kF16 ? -0x7c01 : -0x7f81;
    return max(Lower(highest), Upper(highest)) < kTooLarge && min(Lower(lowest), Upper(lowest)) >= kLeast;
  }
  __device__ static u32 LargestBits(u32 word) {
    const u32 half = Of(u32(max(Lower(word), Upper(word)))) & 0xffffu;
    return kType == DType::kF16 ? WidenHalf(half) : WidenBf16(half);
  }
};
template <>
struct Order<DType::kF16> : OrderOfHalves<DType::kF16> {};
template <>
struct Order<DType::kBF16> : OrderOfHalves<DType::kBF16> {};

// Reports elements that fail the row, and returns the quad with -Inf for every NaN. Seldom called.
template <DType kType>
__device__ typename Elements<kType>::Quad Judge(const Row& row, typename Elements<kType>::Quad quad, u32 first) {
  using E = Elements<kType>;
#pragma unroll
  for (u32 i = 0; i < E::kPerQuad; ++i) {
    const u32 bits = E::Bits(quad, i);
    const bool nan = IsNan(bits);
    if (IsTooLarge(bits) || (nan && !row.Has(kFlagMaskNan))) {
      atomicMax(&row.state.sent_error, ~(2 * (first + i) + (nan ? 0u : 1u)));
    }
    if (!nan) continue;
    if (E::kBytes == 4) {
      quad.words[i] = E::kMaskedWord;
    } else {
      const u32 half = i % 2 == 0 ? 0xffffu : 0xffff0000u;
      quad.words[i / 2] = (quad.words[i / 2] & ~half) | (E::kMaskedWord & half);
    }
  }
  return quad;
}

// Leaves in values[0] of each lane the largest of values[GroupOfLane] over the lanes of its group.
template <DType kType>
__device__ void ReduceOverLanes(u32 (&values)[kLoads]) {
  u32 distance = Elements<kType>::kQuads / 2;
#pragma unroll
  for (u32 half = kLoads / 2; half >= 1; half /= 2, distance /= 2) {
    const bool upper = (Lane() & distance) != 0;
#pragma unroll
    for (u32 i = 0; i < half; ++i) {
      const u32 mine = upper ? values[i + half] : values[i];
      const u32 other = upper ? values[i] : values[i + half];
      values[i] = Order<kType>::Max(mine, __shfl_xor_sync(kAllLanes, other, distance));
    }
  }
  if (distance != 0) values[0] = Order<kType>::Max(values[0], __shfl_xor_sync(kAllLanes, values[0], distance));
}

// Reads a warp's tile from `tile_group`. `visible` belongs to the section that begins at `section_group`, or is null.
template <DType kType>
__device__ void ReadTile(const Row& row, u32 tile_group, u32 section_group, const u32* visible) {
  using E = Elements<kType>;
  constexpr u32 kGroupsPerLoad = 32 / E::kQuads;
  const u32 vocabulary = OnChip().input.vocabulary;
  const u32 first = tile_group * kGroupSize + Lane() * E::kPerQuad;
  typename E::Quad quads[kLoads];
  if (tile_group * kGroupSize + kLoads * 32 * E::kPerQuad <= vocabulary) {
    // Keeps other code from between the loads.
    const uint4* const at = E::At(OnChip().input.logits, first);
#pragma unroll
    for (u32 load = 0; load < kLoads; ++load) quads[load] = E::LoadWhole(at + load * 32);
  } else {
#pragma unroll
    for (u32 load = 0; load < kLoads; ++load) {
      quads[load] = E::LoadBefore(OnChip().input.logits, first + load * 32 * E::kPerQuad, vocabulary, vocabulary);
    }
  }

  u32 largest[kLoads];
  u32 highest = Order<kType>::kNothing;
  u32 lowest = ~Order<kType>::kNothing;
  const auto largest_of = [](const typename E::Quad& quad) {
    u32 result = Order<kType>::kNothing;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) result = Order<kType>::Max(result, Order<kType>::Of(quad.words[i]));
    return result;
  };
#pragma unroll
  for (u32 load = 0; load < kLoads; ++load) {
    largest[load] = largest_of(quads[load]);
    highest = Order<kType>::Max(highest, largest[load]);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) lowest = Order<kType>::Min(lowest, Order<kType>::Of(quads[load].words[i]));
  }
  if (!Order<kType>::InDomain(lowest, highest)) {
#pragma unroll
    for (u32 load = 0; load < kLoads; ++load) {
      quads[load] = Judge<kType>(row, quads[load], first + load * 32 * E::kPerQuad);
      largest[load] = largest_of(quads[load]);
    }
  }

  // After the reduction a lane has the maximum of one group of one load.
  const u32 load_of_lane = Lane() / (E::kQuads / kLoads) % kLoads;
  const u32 group = tile_group + load_of_lane * kGroupsPerLoad + Lane() / E::kQuads;
  if (visible == nullptr || row.Has(kFlagRaw)) {
    u32 reduced[kLoads];
#pragma unroll
    for (u32 load = 0; load < kLoads; ++load) reduced[load] = largest[load];
    ReduceOverLanes<kType>(reduced);
    u32* const maxima = visible == nullptr ? row.maxima() : row.raw_maxima();
    if (group < row.groups) maxima[group] = Key(Canonical(Order<kType>::LargestBits(reduced[0])));
  }
  if (visible == nullptr) return;
#pragma unroll
  for (u32 load = 0; load < kLoads; ++load) {
    const u32 token = first + load * 32 * E::kPerQuad;
    largest[load] = Order<kType>::kNothing;
    if (token >= vocabulary) continue;
    const u32 bits = VisibleBits(visible, token - section_group * kGroupSize);
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32 shown = Order<kType>::Show(Order<kType>::Of(quads[load].words[i]), bits >> (i * E::kPerQuad / 4));
      largest[load] = Order<kType>::Max(largest[load], shown);
    }
  }
  ReduceOverLanes<kType>(largest);
  if (group < row.groups) row.maxima()[group] = Key(Canonical(Order<kType>::LargestBits(largest[0])));
}

// The first edit of a token >= `token`.
__device__ inline u32 FirstEdit(const RowInput& input, u32 token) {
  u32 low = 0;
  u32 high = input.edit_count;
  while (low < high) {
    const u32 middle = low + (high - low) / 2;
    if (input.edits[middle].token < token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// f32 bits of an element.
__device__ inline u32 BitsAt(const void* elements, DType dtype, u32 index) {
  if (dtype == DType::kF32) return static_cast<const u32*>(elements)[index];
  const u32 half = static_cast<const u16*>(elements)[index];
  return dtype == DType::kF16 ? WidenHalf(half) : WidenBf16(half);
}

// f32 bits of a token as it was sent.
__device__ inline u32 SentBits(const RowInput& input, u32 token) { return BitsAt(input.logits, input.dtype, token); }

__device__ inline u32 ChangedKey(const Row& row, const LogitEdit& edit) {
  const RowInput& input = OnChip().input;
  if ((edit.flags & LogitEdit::kBanned) != 0) return 0;
  const bool repeated = (edit.flags & LogitEdit::kRepeated) != 0;
  const u32 bits = Changed(Canonical(SentBits(input, edit.token)), edit.bias, repeated ? input.repetition : 0,
                           repeated ? input.inverse_repetition : 0, edit.penalty);
  if (!IsTooLarge(bits)) return Key(bits);
  atomicMax(&row.state.changed_error, ~edit.token);
  return 0;
}

// Writes the section's bitmap of visible tokens, on chip and to the scratch, and the keys of edited tokens.
__device__ __noinline__ void LayChanges(const Row& row, u32 first_group, u32 end_group) {
  const RowInput& input = OnChip().input;
  const u32 first_word = 2 * first_group;
  const u32 words = min(2 * end_group, (input.vocabulary + 31) / 32) - first_word;
  for (u32 i = Thread(); i < words; i += kThreads) {
    OnChip().visible[i] = input.allowed != nullptr ? input.allowed[first_word + i] : 0xffffffffu;
  }
  __syncthreads();
  if (input.edit_count == 0) return;
  const u32 first_edit = FirstEdit(input, first_group * kGroupSize);
  const u32 end_edit = FirstEdit(input, end_group * kGroupSize);
  for (u32 i = first_edit + Thread(); i < end_edit; i += kThreads) {
    const LogitEdit edit = input.edits[i];
    const u32 offset = edit.token - first_group * kGroupSize;
    const u32 bit = 1u << (offset % 32);
    const bool allowed = (atomicAnd(&OnChip().visible[offset / 32], ~bit) & bit) != 0;
    row.edit_keys()[i] = allowed ? ChangedKey(row, edit) : 0;
  }
  __syncthreads();
  for (u32 i = Thread(); i < words; i += kThreads) row.visible_words()[first_word + i] = OnChip().visible[i];
}

__device__ inline DrawKey KeyOfDraw(const RowInput& input) {
  DrawKey key;
  key.seed_low = input.seed_low;
  key.seed_high = input.seed_high;
  key.position = input.position;
  key.stream = input.stream;
  return key;
}

// Writes a bound of each group's noise for the race; first_group is even. This does not wait for logits.
__device__ __noinline__ void MakeNoise(const Row& row, const DrawKey& key, u32 first_group, u32 end_group) {
  for (u32 group = first_group + 2 * Thread(); group < end_group; group += 2 * kThreads) {
    const PhiloxWords words = NoiseWords(group / 2, kGroupTag, key);
    row.noise()[group] = NoiseBound(WordOf(words, 0));
    if (group + 1 < end_group) row.noise()[group + 1] = NoiseBound(WordOf(words, 1));
  }
}

// The warps share the section's tiles. A separate function, so that later code takes no register from it.
template <DType kType>
__device__ __noinline__ void ReadTiles(const Row& row, u32 first_group, u32 end_group, const u32* visible) {
  constexpr u32 kGroups = kLoads * 32 / Elements<kType>::kQuads;
  for (u32 group = first_group + Warp() * kGroups; group < end_group; group += kWarps * kGroups) {
    ReadTile<kType>(row, group, first_group, visible);
  }
}

// Groups [first_group, end_group) of the row; first_group is a multiple of kTileGroups.
__device__ inline void ReadSection(const Row& row, u32 first_group, u32 end_group) {
  const u32* visible = nullptr;
  if (row.IsVisibleInPart()) {
    LayChanges(row, first_group, end_group);
    visible = OnChip().visible;
  }
  WithElements(OnChip().input.dtype,
               [&](auto elements) { ReadTiles<decltype(elements)::kDType>(row, first_group, end_group, visible); });
  if (row.Has(kFlagOpenRace)) MakeNoise(row, KeyOfDraw(OnChip().input), first_group, end_group);
}

}  // namespace sortition::kernels::cuda
