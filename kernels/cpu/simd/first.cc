// The first token of a row in one plain pass.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/first.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
//
#include <bit>
#include <limits>
#include <type_traits>

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/law.inc"
#include "kernels/law/row_law.h"
//
#include "kernels/cpu/simd/load.inc"
//
#include "kernels/cpu/simd/readers.inc"

HWY_BEFORE_NAMESPACE();
namespace sortition::kernels::cpu::HWY_NAMESPACE {
namespace {

// Searches by blocks of 512 bytes: each lane keeps its largest number and the first block that has it.
template <DType kType, class Reader>
class BlockSearch {
 public:
  HWY_INLINE BlockSearch() : largest_(Lowest()), block_(hn::Zero(DU())) {}

  static constexpr size_t kBytes = kBodyBytes;  // of a block
  static constexpr size_t kGroupBytes = law::kGroupSize * Reader::kBytes;
  static constexpr uint32_t kGroups = kBytes / kGroupBytes;  // of a block

  // Reads `blocks` blocks at `elements`, the first of which is block `first` of the row. Called in the row's order.
  HWY_INLINE void Read(const std::byte* elements, uint32_t first, uint32_t blocks, Reader* reader) {
    V now = hn::Set(DU(), U(first));
    const V one = hn::Set(DU(), 1);
    for (uint32_t i = 0; i < blocks; ++i, elements += kBytes) {
      auto max = LoadAhead(elements, 0, reader);
#pragma GCC unroll 16
      for (uint32_t group = 1; group < kGroups; ++group) max = Reader::Larger(max, LoadAhead(elements, group, reader));
      const auto larger = hn::RebindMask(DU(), hn::Gt(max, largest_));
      block_ = hn::IfThenElse(larger, now, block_);
      largest_ = Reader::Larger(largest_, max);
      now = hn::Add(now, one);
    }
  }

  // The largest number's f32 bits, and the first block that has it.
  HWY_INLINE void Find(uint32_t* bits, uint32_t* block) const {
    constexpr size_t kCount = hn::MaxLanes(D());
    alignas(64) T numbers[kCount];
    alignas(64) U blocks[kCount];
    hn::Store(largest_, D(), numbers);
    hn::Store(block_, DU(), blocks);
    size_t at = 0;
    for (size_t i = 1; i < kCount; ++i) {
      if (numbers[i] > numbers[at] || (numbers[i] == numbers[at] && blocks[i] < blocks[at])) at = i;
    }
    *bits = law::Widen(kType, std::bit_cast<U>(numbers[at]));
    *block = blocks[at];
  }

 private:
  using D = typename Reader::D;
  using T = hn::TFromD<D>;
  using DU = hn::RebindToUnsigned<D>;
  using U = hn::TFromD<DU>;
  using V = hn::Vec<DU>;

  static HWY_INLINE typename Reader::V Lowest() {
    return hn::Set(D(), T(std::is_same_v<T, float> ? -std::numeric_limits<float>::infinity() : -32768));
  }

  typename Reader::V largest_;
  V block_;
};

// Blocks that lie in one segment are read there; the others are copied.
template <class Search, class Reader>
HWY_INLINE void ReadCopied(uint32_t blocks, RowCopier* copier, Search* search, Reader* reader) {
  for (uint32_t block = 0; block < blocks;) {
    const size_t begin = block * Search::kBytes;
    const std::span<const std::byte> run = copier->Run(begin);
    const auto whole = uint32_t(HWY_MIN(run.size() / Search::kBytes, size_t{blocks - block}));
    if (whole != 0) {
      search->Read(run.data(), block, whole, reader);
      block += whole;
    } else {
      copier->Copy(begin, Search::kBytes);
      search->Read(copier->to() + begin, block++, 1, reader);
    }
  }
}

template <DType kType, class Reader>
HWY_INLINE bool FindFirstAs(const RowView& row, Reader* reader, Candidate* first) {
  using Search = BlockSearch<kType, Reader>;
  const uint32_t blocks = (row.groups - 1) / Search::kGroups;  // the last group may lie elsewhere
  const bool is_copied = !row.copy.segments.empty();
  Search search;
  if (is_copied) {
    RowCopier copier(row.copy);
    ReadCopied(blocks, &copier, &search, reader);
    const size_t read = blocks * Search::kBytes;
    copier.Copy(read, GroupsInPlace(row) * Search::kGroupBytes - read);
  } else {
    search.Read(row.elements, 0, blocks, reader);
  }
  if (blocks == 0) return false;
  uint32_t bits;
  uint32_t block;
  search.Find(&bits, &block);
  // Numbers above 0 that are canonical compare as their keys do.
  if (law::Canonical(bits) != bits || law::IsTooLarge(bits) || std::bit_cast<float>(bits) <= 0) return false;
  uint32_t key = law::Key(bits);
  // Reads the block again. Finds no token if another process has changed the key meanwhile.
  if (is_copied) RowCopier(row.copy).Copy(block * Search::kBytes, Search::kBytes);
  uint32_t begin = block * Search::kGroups;
  uint32_t end = begin + Search::kGroups;
  for (uint32_t group = blocks * Search::kGroups; group < row.groups; ++group) {
    reader->LoadGroup(ElementsOfGroup(row, group), 0);
    const uint32_t max_key = LargestKey<kType>(ElementsOfGroup(row, group));
    if (max_key <= key) continue;
    key = max_key;
    begin = group;
    end = group + 1;
  }
  if (reader->FoundNan() || key >= kTooLargeKey) return false;
  const VF32 least = hn::Set(DF32(), std::bit_cast<float>(law::KeyBits(key)));
  const VF32 no_end = hn::Set(DF32(), std::numeric_limits<float>::infinity());
  uint32_t tokens[law::kGroupSize + kLanes];
  for (uint32_t group = begin; group < end; ++group) {
    if (ListTokensBetween<kType>(row, group, least, no_end, Expected::kFew, tokens) == 0) continue;
    *first = Candidate::Of(key, tokens[0]);
    return true;
  }
  return false;
}

}  // namespace

bool FindPlainFirst(const RowView& row, Candidate* first) {
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    if constexpr (kType == DType::kF32) {
      Floats32 reader;
      return FindFirstAs<kType>(row, &reader, first);
    } else {
      Positive16 reader(kType == DType::kF16 ? 0xfc00 : 0xff80);
      return FindFirstAs<kType>(row, &reader, first);
    }
  });
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
