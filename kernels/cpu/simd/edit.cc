// Effect of edits on the tokens that they name.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/edit.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
//
#include <algorithm>
#include <cstring>

#include "kernels/cpu/one_edit.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/simd/law.inc"
#include "kernels/law/row_law.h"
//
#include "kernels/cpu/simd/load.inc"

HWY_BEFORE_NAMESPACE();
namespace sortition::kernels::cpu::HWY_NAMESPACE {
namespace {

static_assert(sizeof(LogitEdit) == 16 && offsetof(LogitEdit, flags) == 4 && offsetof(LogitEdit, bias) == 8 &&
              offsetof(LogitEdit, penalty) == 12);

// Constants that all edits of a row share.
struct Constants {
  HWY_INLINE explicit Constants(const RowParameters& parameters)
      : repetition(hn::Set(D32(), parameters.repetition)),
        inverse_repetition(hn::Set(D32(), parameters.inverse_repetition)),
        repeated_flag(hn::Set(D32(), parameters.repetition == 0 ? 0u : uint32_t{LogitEdit::kRepeated})) {}

  V32 repetition, inverse_repetition, repeated_flag;
};

// Holds the row's data that up to kMost edits need. Loads of single elements fill it: gather instructions take longer
// on AMD's processors.
struct Gathered {
  static constexpr uint32_t kMost = 128;
  static_assert(kMost % kLanes == 0);

  HWY_INLINE Gathered() {}

  alignas(64) uint32_t sent[kMost];     // f32 bits, not canonical
  alignas(64) uint32_t maxima[kMost];   // the groups' largest keys
  alignas(64) uint32_t allowed[kMost];  // bit 0: no mask hides the token
};

// Gathers the row's data for the edits, and clears the bits of their tokens in `sent_words`. A set bit there is a token
// that no mask hides. The tokens' groups have been looked at.
template <DType kType>
HWY_INLINE void Gather(const RowView& row, std::span<const LogitEdit> edits, uint64_t* sent_words, Gathered* gathered) {
  const std::byte* const elements = row.elements;
  const uint32_t* const maxima = row.maxima;
  for (size_t i = 0; i < edits.size(); ++i) {
    const uint32_t token = edits[i].token;
    const uint32_t group = token / law::kGroupSize;
    const uint64_t word = sent_words[group];
    sent_words[group] = word & ~(uint64_t{1} << (token % 64));
    gathered->allowed[i] = uint32_t(word >> (token % 64));
    gathered->maxima[i] = maxima[group];
    uint32_t element = 0;
    std::memcpy(&element, elements + size_t{token} * ElementBytes(kType), ElementBytes(kType));
    gathered->sent[i] = law::Widen(kType, element);
  }
}

// Applies `count` <= kLanes edits whose logits start at index `first` of `gathered`. Reads kLanes entries. False if an
// edit makes its token too large.
HWY_INLINE bool EditSome(const Constants& constants, const LogitEdit* edits, uint32_t count, const Gathered& gathered,
                         uint32_t first, Edited* edited) {
  const D32 d;
  const V32 zero = hn::Zero(d);
  V32 token, flags, bias, penalty;
  hn::LoadInterleaved4(d, reinterpret_cast<const uint32_t*>(edits), token, flags, bias, penalty);
  const M32 allowed = hn::TestBit(hn::Load(d, gathered.allowed + first), hn::Set(d, 1u));
  const M32 banned = hn::Or(hn::Not(allowed), hn::TestBit(flags, hn::Set(d, uint32_t{LogitEdit::kBanned})));

  const V32 sent = KeyOf(hn::Load(d, gathered.sent + first));
  const V32 bits = hn::IfThenElse(hn::Eq(sent, zero), hn::Set(d, law::kMaskedBits), KeyBits(sent));
  const M32 repeated = hn::Ne(hn::And(flags, constants.repeated_flag), zero);
  M32 large = hn::Ne(zero, zero);
  const V32 changed =
      Changed(bits, bias, constants.repetition, constants.inverse_repetition, repeated, penalty, &large);
  const M32 valid = hn::FirstN(d, count);
  const V32 key = hn::IfThenZeroElse(banned, KeyOf(changed));

  auto* const live = reinterpret_cast<uint32_t*>(edited->live + edited->live_count);
  const M32 is_live = hn::And(valid, hn::Ne(key, zero));
  alignas(64) uint32_t tokens[2 * kLanes];
  alignas(64) uint32_t live_keys[2 * kLanes];
  StoreWhere(is_live, token, tokens);
  edited->live_count += StoreWhere(is_live, key, live_keys);
  hn::StoreInterleaved2(hn::Not(hn::Load(d, tokens)), hn::Load(d, live_keys), d, live);

  const V32 maxima = hn::Load(d, gathered.maxima + first);
  const M32 gone = hn::And(hn::Eq(sent, maxima), hn::Ne(sent, zero));
  const M32 moved = hn::And(valid, hn::Or(gone, hn::Gt(key, maxima)));
  StoreWhere(moved, key, edited->moved_keys + edited->moved_count);
  edited->moved_count += StoreWhere(moved, hn::ShiftRight<6>(token), edited->moved_groups + edited->moved_count);
  return hn::AllFalse(d, hn::And(hn::AndNot(banned, large), valid));
}

}  // namespace

EditsSeen LookAtEdits(std::span<const LogitEdit> edits) {
  const D32 d;
  const DI32 di;
  constexpr size_t kEdits = kLanes / 4;  // edits in a vector
  const auto* const fields = reinterpret_cast<const uint32_t*>(edits.data());
  M32 descend = hn::Ne(hn::Zero(d), hn::Zero(d));  // lanes whose token id is not above the one before
  auto most = hn::Zero(di);                        // largest biases and penalties, in their lanes
  size_t i = 1;
  for (; i + kEdits <= edits.size(); i += kEdits) {
    const V32 some = hn::LoadU(d, fields + 4 * i);
    descend = hn::Or(descend, hn::Not(hn::Lt(hn::LoadU(d, fields + 4 * (i - 1)), some)));
    most = hn::Max(most, hn::BitCast(di, some));
  }
  alignas(64) int32_t largest[kLanes];
  hn::Store(most, di, largest);
  const V32 field = hn::And(hn::Iota(d, 0), hn::Set(d, 3));
  bool ascend = hn::AllFalse(d, hn::And(descend, hn::Eq(field, hn::Zero(d))));
  bool may_raise = !edits.empty() && MayRaise(edits[0]);
  for (size_t lane = 0; lane < kLanes; lane += 4) may_raise |= largest[lane + 2] > 0 || largest[lane + 3] > 0;
  for (; i < edits.size(); ++i) {
    ascend &= edits[i - 1].token < edits[i].token;
    may_raise |= MayRaise(edits[i]);
  }
  return {ascend, may_raise};
}

bool EditTokens(const RowView& row, const RowParameters& parameters, std::span<const LogitEdit> edits,
                uint64_t* sent_words, Edited* edited) {
  return WithDType(row.dtype, [&]<DType kType>() HWY_ATTR {
    const Constants constants(parameters);
    edited->live_count = 0;
    edited->moved_count = 0;
    if (row.lazy != nullptr) {
      for (const LogitEdit& edit : edits) ElementsOfGroup(row, edit.token / law::kGroupSize);
    }
    bool fine = true;
    Gathered gathered;
    while (!edits.empty()) {
      const auto some = edits.first(std::min<size_t>(edits.size(), Gathered::kMost));
      Gather<kType>(row, some, sent_words, &gathered);
      const auto count = uint32_t(some.size());
      const uint32_t whole = count / kLanes * kLanes;
      for (uint32_t i = 0; i < whole; i += kLanes) {
        fine &= EditSome(constants, &some[i], kLanes, gathered, i, edited);
      }
      if (whole < count) {
        alignas(64) LogitEdit last[kLanes] = {};
        std::ranges::copy(some.subspan(whole), last);
        fine &= EditSome(constants, last, count - whole, gathered, whole, edited);
      }
      edits = edits.subspan(some.size());
    }
    return fine;
  });
}

uint32_t CopyBetween(const Candidate* candidates, uint32_t count, uint32_t floor, uint32_t ceiling,
                     Candidate* between) {
  const D64 d;
  const uint32_t lanes = kLanes / 2;
  const V64 least = hn::Set(d, uint64_t{floor} << 32);
  const V64 end = hn::Set(d, uint64_t{ceiling} << 32);
  const auto* const from = reinterpret_cast<const uint64_t*>(candidates);
  auto* const first = reinterpret_cast<uint64_t*>(between);
  uint64_t* to = first;
  const auto copy = [&](uint32_t at, hn::Mask<D64> valid) HWY_ATTR {
    const V64 ranks = hn::LoadU(d, from + at);
    to += StoreWhere(hn::And(valid, hn::AndNot(hn::Lt(ranks, least), hn::Lt(ranks, end))), ranks, to);
  };
  const uint32_t whole = count / lanes * lanes;
  for (uint32_t i = 0; i < whole; i += lanes) copy(i, hn::Eq(least, least));
  if (whole < count) copy(whole, hn::FirstN(d, count - whole));
  return uint32_t(to - first);
}

}  // namespace sortition::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
