// Reads rows, and treats rows with a NaN or a logit that is too large.
#include "kernels/cpu/read.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/check.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are read as they lie in memory");

// Sets `row->last_group`.
void LayLastGroup(uint32_t vocabulary, Scratch* scratch, RowView* row) {
  const size_t bytes = ElementBytes(row->dtype);
  const size_t begin = size_t{row->groups - 1} * law::kGroupSize;
  row->last_group = row->elements + begin * bytes;
  if (vocabulary % law::kGroupSize == 0) return;
  std::byte* const copy = scratch->last_group.Reserve(law::kGroupSize * bytes);
  std::memcpy(copy, row->last_group, (vocabulary - begin) * bytes);
  const uint32_t masked = MinusInfinity(row->dtype);
  for (size_t i = vocabulary - begin; i < law::kGroupSize; ++i) std::memcpy(copy + i * bytes, &masked, bytes);
  row->last_group = copy;
}

// Finds the lowest id whose logit fails the row.
void FindError(const RowRequest& request, RowOutput* answer) {
  for (uint32_t id = 0; id < request.live_vocabulary; ++id) {
    const uint32_t bits = SentBits(request, id);
    const bool nan = law::IsNan(bits);
    if (nan ? request.parameters->mask_nan : !law::IsTooLarge(bits)) continue;
    answer->error = nan ? RowFault::kNaN : RowFault::kLogitTooLarge;
    answer->error_token = id;
    return;
  }
}

// The tensor with -Inf for every NaN.
const std::byte* WithoutNans(const RowRequest& request, Array<std::byte>* numbers) {
  const size_t bytes = ElementBytes(request.dtype);
  std::byte* const copy = numbers->Reserve(request.live_vocabulary * bytes);
  std::memcpy(copy, request.logits, request.live_vocabulary * bytes);
  const uint32_t masked = MinusInfinity(request.dtype);
  for (uint32_t id = 0; id < request.live_vocabulary; ++id) {
    if (law::IsNan(SentBits(request, id))) std::memcpy(copy + id * bytes, &masked, bytes);
  }
  return copy;
}

}  // namespace

uint32_t SentBits(const RowRequest& request, size_t index) {
  const size_t bytes = ElementBytes(request.dtype);
  uint32_t element = 0;
  std::memcpy(&element, static_cast<const std::byte*>(request.logits) + index * bytes, bytes);
  return law::Widen(request.dtype, element);
}

RowView LayRow(const RowRequest& request, const RowCopy& copy, Scratch* scratch) {
  RowView row = {};
  if (!copy.segments.empty()) {
    SORTITION_CHECK(copy.to == request.logits);
    const size_t bytes = ElementBytes(request.dtype);
    size_t there = 0;
    for (const ByteSegment& segment : copy.segments) there += segment.size;
    SORTITION_CHECK(there >= request.live_vocabulary * bytes);
    const uint32_t loose = request.live_vocabulary % law::kGroupSize;
    RowCopier(copy).Copy((request.live_vocabulary - loose) * bytes, loose * bytes);
    row.copy = copy;
  }
  row.elements = static_cast<const std::byte*>(request.logits);
  row.dtype = request.dtype;
  row.groups = GroupsOf(request.live_vocabulary);
  LayLastGroup(request.live_vocabulary, scratch, &row);
  row.read_next[0] = std::as_bytes(request.edits);
  if (request.allowed_bits != nullptr) {
    row.read_next[1] = std::as_bytes(std::span(request.allowed_bits, (request.live_vocabulary + 31) / 32));
  }
  return row;
}

LazyCopy CopyLazily(Scratch* scratch, const RowView& row) {
  SORTITION_CHECK(!row.copy.segments.empty() && row.groups >= LazyCopy::kLeastGroups);
  uint64_t* const copied = scratch->copied.Reserve(row.groups / 64 + 1);
  std::fill_n(copied, row.groups / 64 + 1, 0);
  LazyCopy lazy(row.copy, copied);
  if (GroupsInPlace(row) != row.groups) lazy.Mark(row.groups - 1);
  return lazy;
}

bool ReadRow(const Kernels& kernels, const RowRequest& request, Scratch* scratch, RowView* row, RowOutput* answer) {
  uint32_t* const maxima = scratch->raw_maxima.Reserve(row->groups);
  Reading reading = kernels.ReadMaxima(*row, maxima);
  row->copy = {};
  if (row->lazy != nullptr) {
    row->lazy->maxima = maxima;
    row->lazy->has_failed = reading.suspect;
    if (reading.suspect) return false;
  } else if (reading.suspect) {
    FindError(request, answer);
    if (answer->error != RowFault::kNone) return false;
    row->elements = WithoutNans(request, &scratch->numbers);
    LayLastGroup(request.live_vocabulary, scratch, row);
    reading = kernels.ReadMaxima(*row, maxima);
    SORTITION_CHECK(!reading.suspect);
  }
  row->maxima = maxima;
  row->reached = maxima;
  row->max_key = reading.max_key;
  row->spread = reading.spread;
  return true;
}

}  // namespace sortition::kernels::cpu
