// Rows of a device are stated together where they lie at equal distances and want the same parts.
#include "client/cpp/state_rows.h"

#include <optional>
#include <utility>
#include <vector>

#include "client/cpp/compact_rows.h"

namespace sortition::client {
namespace {

// True if what the statement decides follows from the sequence's options alone, so far as no edit is met.
bool IsForeseeable(const PendingBatch& batch, const PendingRow& row) {
  const v1::SamplingParameters& options = row.record->in_force().parameters;
  return !batch.is_shard && row.row.scored.empty() && row.row.allowed_bits == nullptr &&
         options.allowed_token_ids().empty() && options.phases().empty() && !KeepsSamplerState(options);
}

// Returns the parts of the row's compact form; nothing if it travels whole. Counts the row in its sequence's habit.
std::optional<CompactPosition::Parts> PartsOf(const PendingBatch& batch, uint32_t count, const PendingRow& row) {
  SequenceRecord& record = *row.record;
  if (!record.row_parameters || record.options.vocabulary_size != batch.vocabulary_size) return std::nullopt;
  const kernels::RowParameters& parameters = *record.row_parameters;
  const bool needs_sums = parameters.raw_logprob || parameters.tempered_logprob || parameters.kept_log_mass;
  if (batch.is_shard && needs_sums) return std::nullopt;
  const bool foresee = IsForeseeable(batch, row);
  absl::MutexLock lock(&record.mutex);
  if (record.habit.whole_rows > 0) {
    --record.habit.whole_rows;
    return std::nullopt;
  }
  const bool takes_first =
      record.takes_first && !record.habit.lists_all && row.row.allowed_bits == nullptr && row.row.banned_tokens.empty();
  return CompactPosition::Parts{takes_first ? 1 : count, record.habit.states_sums, record.states_own_sum, foresee};
}

// Acts on what the service would require of the row's compact form: a row that would have to follow whole loses it.
// True if the sums are missing; the row then has to be stated once more, with them.
bool TakeForeseen(PendingRow* row) {
  bool is_required = false;
  bool lacks_sums = false;
  for (const CompactPosition& position : row->compact) {
    const auto reason = position.foreseen();
    // Tokens that the service would name depend on edits that are not known here.
    if (!reason || *reason == kernels::RowRequiredReason::kTokens) continue;
    is_required = true;
    lacks_sums |= *reason == kernels::RowRequiredReason::kSums && !position.has_sums();
  }
  if (!is_required) return false;
  row->compact.clear();
  absl::MutexLock lock(&row->record->mutex);
  return row->record->habit.Refuse(lacks_sums);
}

// A position of a row on a device.
struct PositionOnDevice {
  PendingRow* row;
  const DeviceRows* device;
  WholeLogits logits;
  CompactPosition::Parts parts;
  bool sums = false;  // any
};

// The run of positions, beginning at `first`, that can be stated together.
std::span<const PositionOnDevice> RunAt(std::span<const PositionOnDevice> positions, uint64_t row_bytes,
                                        uint64_t* stride) {
  const PositionOnDevice& first = positions.front();
  *stride = row_bytes;
  size_t count = 1;
  for (; count < positions.size(); ++count) {
    const PositionOnDevice& next = positions[count];
    if (next.device != first.device || next.sums != first.sums ||
        next.logits.live_vocabulary != first.logits.live_vocabulary || next.logits.data <= first.logits.data) {
      break;
    }
    const auto distance = static_cast<uint64_t>(next.logits.data - positions[count - 1].logits.data);
    if (count == 1 && distance >= row_bytes) *stride = distance;
    if (distance != *stride) break;
  }
  return positions.first(count);
}

// Appends the forms of a run to their rows, or clears the forms of rows that have none.
void StateRun(std::span<const PositionOnDevice> run, uint64_t stride, uint32_t count) {
  const PositionOnDevice& first = run.front();
  RowsToState rows;
  rows.offset = static_cast<uint64_t>(first.logits.data - first.device->data);
  rows.row_bytes = stride;
  rows.dtype = KernelType(first.logits.dtype);
  rows.vocabulary = first.logits.live_vocabulary;
  rows.count = count;
  rows.sums = first.sums;
  for (const PositionOnDevice& position : run) rows.parameters.push_back(*position.row->record->row_parameters);
  const auto stated = first.device->state(rows);
  for (size_t i = 0; i < run.size(); ++i) {
    const PositionOnDevice& position = run[i];
    std::optional<CompactPosition> form;
    if (stated.ok() && (*stated)[i]) {
      form = CompactPosition::OfStated(position.logits, *position.row->record->row_parameters, position.parts,
                                       *(*stated)[i]);
    }
    if (form) position.row->compact.push_back(*std::move(form));
  }
}

}  // namespace

void StateRow(const PendingBatch& batch, uint32_t count, PendingRow* row) {
  const std::optional<CompactPosition::Parts> parts = PartsOf(batch, count, *row);
  if (!parts) return;
  std::vector<CompactPosition> compact;
  for (size_t i = 0; i < row->row.positions(); ++i) {
    auto position = CompactPosition::Of(LogitsAt(batch, *row, i), *row->record->row_parameters, *parts);
    if (!position) return;
    compact.push_back(*std::move(position));
  }
  row->compact = std::move(compact);
  if (TakeForeseen(row)) StateRow(batch, count, row);
}

void StateRowsOnDevices(const PendingBatch& batch, uint32_t count, std::span<const RowOnDevice> rows) {
  std::vector<PositionOnDevice> positions;
  for (const auto& [row, device] : rows) {
    const std::optional<CompactPosition::Parts> parts = PartsOf(batch, count, *row);
    if (!parts) continue;
    for (size_t i = 0; i < row->row.positions(); ++i) {
      const WholeLogits logits = LogitsAt(batch, *row, i);
      const bool sums = CompactPosition::HasSums(logits, *row->record->row_parameters, *parts);
      positions.push_back({row, device.get(), logits, *parts, sums});
    }
  }
  for (std::span<const PositionOnDevice> left = positions; !left.empty();) {
    uint64_t stride = 0;
    const auto run = RunAt(left, batch.row_bytes, &stride);
    StateRun(run, stride, count);
    left = left.subspan(run.size());
  }
  std::vector<RowOnDevice> again;
  for (const RowOnDevice& row : rows) {
    if (row.row->compact.size() != row.row->row.positions()) row.row->compact.clear();
    if (TakeForeseen(row.row)) again.push_back(row);
  }
  if (!again.empty()) StateRowsOnDevices(batch, count, again);
}

}  // namespace sortition::client
