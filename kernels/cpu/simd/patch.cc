// What patches make of the tokens they name.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/patch.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
//
#include <algorithm>
#include <cstring>

#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/law.inc"
//
#include "kernels/cpu/simd/load.inc"

HWY_BEFORE_NAMESPACE();
namespace sortition::kernels::cpu::HWY_NAMESPACE {
namespace {

static_assert(sizeof(TokenPatch) == 16 && offsetof(TokenPatch, flags) == 4 && offsetof(TokenPatch, bias) == 8 &&
              offsetof(TokenPatch, penalty) == 12);

template <DType kType>
HWY_INLINE bool PatchKeysAs(const Row& row, const RowParameters& parameters, std::span<const TokenPatch> patches,
                            uint32_t* keys, uint32_t* moved, uint32_t* moved_count) {
  const D32 d;
  const V32 repetition = hn::Set(d, parameters.repetition);
  const V32 inverse_repetition = hn::Set(d, parameters.inverse_repetition);
  const V32 repeated_flag = hn::Set(d, parameters.repetition == 0 ? 0u : uint32_t{TokenPatch::kRepeated});
  const V32 zero = hn::Zero(d);
  M32 failed = hn::Ne(zero, zero);
  *moved_count = 0;
  for (uint32_t i = 0; i < patches.size(); i += kLanes) {
    const uint32_t live = std::min<uint32_t>(kLanes, uint32_t(patches.size()) - i);
    alignas(64) TokenPatch some[kLanes] = {};
    const TokenPatch* source = patches.data() + i;
    if (live < kLanes) {
      std::copy_n(source, live, some);
      source = some;
    }
    alignas(64) std::byte elements[kLanes * ElementBytes(kType)] = {};
    alignas(64) uint32_t allowed[kLanes];
    for (uint32_t lane = 0; lane < live; ++lane) {
      const uint32_t token = source[lane].token;
      std::memcpy(elements + lane * ElementBytes(kType), row.elements + size_t{token} * ElementBytes(kType),
                  ElementBytes(kType));
      allowed[lane] = row.sent_words == nullptr || (row.sent_words[token / 64] >> (token % 64) & 1) != 0;
    }
    V32 token, flags, bias, penalty;
    hn::LoadInterleaved4(d, reinterpret_cast<const uint32_t*>(source), token, flags, bias, penalty);
    const M32 banned =
        hn::Or(hn::TestBit(flags, hn::Set(d, uint32_t{TokenPatch::kBanned})), hn::Eq(hn::Load(d, allowed), zero));
    const M32 repeated = hn::Ne(hn::And(flags, repeated_flag), zero);

    const V32 sent = KeyOf(LoadBits<kType>(elements));
    const V32 bits = hn::IfThenElse(hn::Eq(sent, zero), hn::Set(d, law::kMaskedBits), KeyBits(sent));
    M32 large = hn::Ne(zero, zero);
    const V32 changed = Changed(bits, bias, repetition, inverse_repetition, repeated, penalty, &large);
    const M32 valid = hn::FirstN(d, live);
    failed = hn::Or(failed, hn::And(hn::AndNot(banned, large), valid));
    const V32 key = hn::IfThenZeroElse(banned, KeyOf(changed));
    hn::StoreU(key, d, keys + i);

    const V32 maxima = hn::GatherIndex(d, row.maxima, Signed(hn::ShiftRight<6>(token)));
    const M32 moves = hn::And(valid, hn::Or(hn::Eq(sent, maxima), hn::Gt(key, maxima)));
    *moved_count += StoreWhere(moves, CountFrom(i), moved + *moved_count);
  }
  return hn::AllFalse(d, failed);
}

}  // namespace

bool PatchKeys(const Row& row, const RowParameters& parameters, std::span<const TokenPatch> patches, uint32_t* keys,
               uint32_t* moved, uint32_t* moved_count) {
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    return PatchKeysAs<kType>(row, parameters, patches, keys, moved, moved_count);
  });
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
