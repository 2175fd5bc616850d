// The CPU's statement of a row, packed with the row's own elements.
#include "client/cpp/compact_rows.h"

#include <algorithm>
#include <utility>

#include "client/cpp/pending.h"
#include "kernels/cpu/state_row.h"
#include "sortition/batch.h"

namespace sortition::client {
namespace {

void AppendElements(std::span<const uint32_t> ids, const WholeLogits& logits, std::string* elements) {
  const size_t element = ElementBytes(logits.dtype);
  elements->reserve(elements->size() + ids.size() * element);
  for (const uint32_t id : ids) {
    elements->append(reinterpret_cast<const char*>(logits.data + (id - logits.first_token) * element), element);
  }
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
  CompactPosition position;
  if (logits.live_vocabulary == 0) {
    position.is_whole_ = true;
    return position;
  }
  thread_local kernels::cpu::Scratch scratch;
  thread_local kernels::StatedRow stated;
  kernels::RowRequest request;
  request.logits = logits.data;
  request.dtype = KernelType(logits.dtype);
  request.live_vocabulary = logits.live_vocabulary;
  request.parameters = &parameters;
  kernels::cpu::StatedParts wanted;
  wanted.count = parts.count;
  if (!logits.is_shard) {
    wanted.unit_sum = parts.sums || parameters.raw_logprob;
    wanted.sum = parts.own_sum && (parts.sums || parameters.tempered_logprob || parameters.kept_log_mass);
  }
  if (!kernels::cpu::StateRow(request, wanted, &scratch, &stated)) return std::nullopt;
  if (stated.first.empty() && !logits.is_shard) return std::nullopt;
  position.first_ = static_cast<uint32_t>(stated.first.size());
  position.is_whole_ = stated.is_whole;
  position.has_sums_ = parts.sums;
  position.unit_sum_ = stated.unit_sum;
  position.sum_ = stated.sum;
  position.ids_.reserve(stated.first.size());
  for (const kernels::TokenBits& token : stated.first) position.ids_.push_back(logits.first_token + token.token);
  AppendElements(position.ids_, logits, &position.elements_);
  return position;
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

void StateRow(const PendingBatch& batch, uint32_t count, PendingRow* row) {
  SequenceRecord& record = *row->record;
  if (!record.row_parameters || record.options.vocabulary_size != batch.vocabulary_size) return;
  const kernels::RowParameters& parameters = *record.row_parameters;
  const bool needs_sums = parameters.raw_logprob || parameters.tempered_logprob || parameters.kept_log_mass;
  if (batch.is_shard && needs_sums) return;
  CompactPosition::Parts parts{count, false, record.states_own_sum};
  {
    absl::MutexLock lock(&record.mutex);
    if (record.habit.whole_rows > 0) {
      --record.habit.whole_rows;
      return;
    }
    parts.sums = record.habit.states_sums;
  }
  std::vector<CompactPosition> compact;
  for (size_t i = 0; i < row->row.positions(); ++i) {
    auto position = CompactPosition::Of(LogitsAt(batch, *row, i), parameters, parts);
    if (!position) return;
    compact.push_back(*std::move(position));
  }
  row->compact = std::move(compact);
}

}  // namespace sortition::client
