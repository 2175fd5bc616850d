// Statements of rows, packed with elements of the row's type.
#include "client/cpp/compact_rows.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "client/cpp/pending.h"
#include "kernels/cpu/compact/decide_row.h"
#include "kernels/cpu/compact/state_row.h"
#include "kernels/law/row_law.h"
#include "sortition/batch.h"

namespace sortition::client {
namespace {

// Appends the elements of these tokens as the row has them.
void AppendElements(std::span<const uint32_t> ids, const WholeLogits& logits, std::string* elements) {
  const size_t element = ElementBytes(logits.dtype);
  elements->reserve(elements->size() + ids.size() * element);
  for (const uint32_t id : ids) {
    elements->append(reinterpret_cast<const char*>(logits.data + (id - logits.first_token) * element), element);
  }
}

// Writes elements of the same canonical bits, one behind the other.
template <kernels::DType kType>
void WriteElements(std::span<const kernels::TokenBits> tokens, char* to) {
  for (const kernels::TokenBits& token : tokens) {
    const uint32_t narrow = law::Narrow(kType, token.bits);
    std::memcpy(to, &narrow,
                kernels::ElementBytes(kType));  // the low bytes: the machine and the wire are little-endian
    to += kernels::ElementBytes(kType);
  }
}
std::string ElementsOf(std::span<const kernels::TokenBits> tokens, v1::DType dtype) {
  std::string elements(tokens.size() * ElementBytes(dtype), '\0');
  switch (KernelType(dtype)) {
    case kernels::DType::kF32:
      WriteElements<kernels::DType::kF32>(tokens, elements.data());
      break;
    case kernels::DType::kF16:
      WriteElements<kernels::DType::kF16>(tokens, elements.data());
      break;
    case kernels::DType::kBF16:
      WriteElements<kernels::DType::kBF16>(tokens, elements.data());
      break;
  }
  return elements;
}

// The sums over logits that the compact form states.
struct Sums {
  bool unit = false;
  bool own = false;
};
Sums SumsOf(const WholeLogits& logits, const kernels::RowParameters& parameters, const CompactPosition::Parts& parts) {
  if (logits.is_shard) return {};
  return {.unit = parts.sums || parameters.raw_logprob,
          .own = parts.own_sum && (parts.sums || parameters.tempered_logprob || parameters.kept_log_mass)};
}

std::optional<kernels::RowRequiredReason> Foresee(const WholeLogits& logits, const kernels::RowParameters& parameters,
                                                  kernels::CompactRow row, const Sums& sums) {
  thread_local kernels::cpu::Scratch scratch;
  if (!sums.unit) row.unit_sum.reset();
  if (!sums.own) row.sum.reset();
  kernels::RowRequest draw;
  draw.live_vocabulary = logits.live_vocabulary;
  draw.parameters = &parameters;
  const auto decision = kernels::cpu::DecideRow(draw, row, /*may_raise=*/false, &scratch);
  const auto* const required = std::get_if<kernels::RowRequired>(&decision);
  return required == nullptr ? std::nullopt : std::optional(required->reason);
}

}  // namespace

kernels::DType KernelType(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F16:
      return kernels::DType::kF16;
    case v1::DTYPE_BF16:
      return kernels::DType::kBF16;
    default:
      return kernels::DType::kF32;
  }
}

std::optional<CompactPosition> CompactPosition::Of(const WholeLogits& logits, const kernels::RowParameters& parameters,
                                                   const Parts& parts) {
  thread_local kernels::cpu::Scratch scratch;
  thread_local kernels::StatedRow stated;
  if (logits.live_vocabulary == 0) {
    stated = {};
    stated.is_whole = true;
    return OfStated(logits, parameters, parts, stated);
  }
  kernels::RowRequest request;
  request.logits = logits.data;
  request.dtype = KernelType(logits.dtype);
  request.live_vocabulary = logits.live_vocabulary;
  request.parameters = &parameters;
  const Sums sums = SumsOf(logits, parameters, parts);
  const kernels::cpu::StatedParts wanted = {.count = parts.count, .unit_sum = sums.unit, .sum = sums.own};
  if (!kernels::cpu::StateRow(request, wanted, &scratch, &stated)) return std::nullopt;
  return OfStated(logits, parameters, parts, stated);
}

std::optional<CompactPosition> CompactPosition::OfStated(const WholeLogits& logits,
                                                         const kernels::RowParameters& parameters, const Parts& parts,
                                                         const kernels::StatedRow& stated) {
  if (stated.first.empty() && !logits.is_shard) return std::nullopt;
  CompactPosition position;
  position.first_ = static_cast<uint32_t>(stated.first.size());
  position.is_whole_ = stated.is_whole;
  position.has_sums_ = parts.sums;
  const Sums sums = SumsOf(logits, parameters, parts);
  if (sums.unit) position.unit_sum_ = stated.unit_sum;
  if (sums.own) position.sum_ = stated.sum;
  if (parts.foresee) position.foreseen_ = Foresee(logits, parameters, stated.row(), sums);
  position.ids_.resize(stated.first.size());
  std::ranges::transform(stated.first, position.ids_.begin(),
                         [&](const kernels::TokenBits& token) { return logits.first_token + token.token; });
  position.elements_ = ElementsOf(stated.first, logits.dtype);
  return position;
}

bool CompactPosition::HasSums(const WholeLogits& logits, const kernels::RowParameters& parameters, const Parts& parts) {
  const Sums sums = SumsOf(logits, parameters, parts);
  return sums.unit || sums.own;
}

void CompactPosition::Add(std::span<const uint32_t> tokens, const WholeLogits& logits) {
  std::vector<uint32_t> first(ids_.begin(), ids_.begin() + first_);
  std::ranges::sort(first);
  for (const uint32_t token : tokens) {
    const bool is_here = token >= logits.first_token && token - logits.first_token < logits.live_vocabulary;
    if (is_here && !std::ranges::binary_search(first, token)) ids_.push_back(token);
  }
  std::sort(ids_.begin() + first_, ids_.end());
  ids_.erase(std::unique(ids_.begin() + first_, ids_.end()), ids_.end());
  elements_.resize(size_t{first_} * ElementBytes(logits.dtype));
  AppendElements(std::span(ids_).subspan(first_), logits, &elements_);
}

void CompactPosition::AppendTo(std::string* pairs, v1::CompactRow* message) const {
  message->set_offset(pairs->size());
  message->set_first(first_);
  message->set_others(static_cast<uint32_t>(ids_.size() - first_));
  message->set_is_whole(is_whole_);
  if (unit_sum_) message->set_unit_sum(*unit_sum_);
  if (sum_) message->set_sum(*sum_);
  pairs->append(reinterpret_cast<const char*>(ids_.data()), ids_.size() * sizeof(uint32_t));
  pairs->append(elements_);
}

WholeLogits LogitsAt(const PendingBatch& batch, const PendingRow& row, size_t position) {
  const auto* const data = static_cast<const std::byte*>(row.row.logits) + position * batch.row_bytes;
  const uint32_t live = row.record->live_vocabulary();
  if (!batch.is_shard) return {data, batch.dtype, live};
  const auto width = static_cast<uint32_t>(batch.row_bytes / ElementBytes(batch.dtype));
  return {data, batch.dtype, std::min(width, live - std::min(live, batch.first_token)), batch.first_token, true};
}

}  // namespace sortition::client
