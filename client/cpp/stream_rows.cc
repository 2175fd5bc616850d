// Steps rows on a stream: how rows are sent, and how their results and refusals are handled.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/message.h"
#include "client/cpp/row_message.h"
#include "client/cpp/stream_state.h"
#include "client/cpp/transport/shared_memory.h"
#include "service/limits.h"

namespace sortition::client {
namespace {

// Upper bound on the replays in a row of one step on one stream. More mean that the service loses a history as fast as
// it gets it. A stream that ends early and a back-off start the count again: a sequence that is idle during a back-off
// may be evicted in favour of others.
constexpr uint32_t kMaxReplays = 8;

// Refusals of one row in compact form before it goes whole.
constexpr uint32_t kMaxCompactRefusals = 2;

const std::byte* BytesOf(const PendingRow& row) { return static_cast<const std::byte*>(row.row.logits); }

// The size that rows add to a message.
struct MessageSize {
  uint64_t rows = 0;  // of the tensor, or compact
  uint64_t bytes = 0;
  uint64_t compact_bytes = 0;
};

// `carried`: whole rows travel within the message.
MessageSize SizeOf(const PendingRow& row, size_t row_bytes, bool carried) {
  MessageSize size;
  size.rows = row.row.positions();
  for (const CompactPosition& position : row.compact) size.compact_bytes += position.bytes();
  size.bytes = row.compact.empty() && carried ? size.rows * row_bytes : size.compact_bytes;
  return size;
}

// True if the server takes the row's compact form.
bool TakesCompact(const Link& link, const PendingRow& row) {
  uint64_t bytes = 0;
  for (const CompactPosition& position : row.compact) {
    if (position.tokens() > link.max_compact_tokens) return false;
    bytes += position.bytes();
  }
  return bytes <= link.max_compact_bytes;
}

RowError TooLarge(uint64_t bytes, uint64_t most) {
  return RowError{absl::StatusCode::kInvalidArgument, v1::TOO_MANY, "rows.logits", absl::StrCat("<= ", most, " bytes"),
                  absl::StrCat("a message with this row alone has ", bytes, " bytes")};
}

}  // namespace

// Reads a row to the host if it lies on a device that the stream does not share. False if that fails; the row is then
// done.
bool StreamState::BringWithinReach(const SharedMemory* memory, PendingBatch* batch, PendingRow* row) {
  const std::shared_ptr<const DeviceRows> device = device_rows_.Find(row->row.logits);
  if (device == nullptr) return true;
  const std::byte* const data = BytesOf(*row);
  const size_t bytes = row->row.positions() * batch->row_bytes;
  if (memory != nullptr && memory->Find({data, bytes}, ElementBytes(batch->dtype))) return true;
  const auto offset = static_cast<uint64_t>(data - device->data);
  absl::Status read;
  if (bytes > device->bytes - offset) {
    read = absl::OutOfRangeError(absl::StrCat("the row ends ", bytes - (device->bytes - offset), " bytes behind"));
  } else {
    row->copy = std::shared_ptr<std::byte[]>(new std::byte[bytes]);
    read = device->read(offset, {row->copy.get(), bytes});
  }
  if (!read.ok()) {
    FinishRow(batch, row,
              RowError{read.code(), v1::DEVICE_FAILED, "rows.logits", "memory that can be read",
                       std::string(read.message())});
    return false;
  }
  row->row.logits = row->copy.get();
  return true;
}

// True if a step can be sent before its logits are written: the server sees the logits and the ready word.
bool StreamState::MayWaitForRows(const Link& link, const PendingBatch& batch) const {
  return link.ready_words && !options_.shard && FindWord(batch, link.transport->memory().get()).has_value();
}

void StreamState::SendRows(Link* link, const std::shared_ptr<PendingBatch>& batch, absl::Time now) {
  // Rows that are only named need not be split into messages that overlap with sampling.
  const std::shared_ptr<SharedMemory> memory = link->transport->memory();
  const bool named = IsShared(*batch, memory.get());
  const bool is_ready = batch->IsReady();
  if (!is_ready && !(named && MayWaitForRows(*link, *batch))) return;  // next_event schedules the next check
  const bool carried = !named && !links_.in_process();
  std::vector<uint32_t> ready;
  MessageSize size;
  std::shared_ptr<const DeviceRows> device;  // device of the last row in `ready`, if it is named
  const std::byte* next = nullptr;           // its end, if rows of a message are named and adjacent
  for (uint32_t i = 0; i < batch->rows.size(); ++i) {
    PendingRow& row = batch->rows[i];
    if (row.state != PendingRow::State::kWaiting || row.not_before > now || !EnsureOpen(link, row.record, now)) {
      continue;
    }
    // The row was stated for another server, or this server needs more of it.
    if (!TakesCompact(*link, row)) row.compact.clear();
    if (row.compact.empty() && !BringWithinReach(memory.get(), batch.get(), &row)) continue;
    const MessageSize more = SizeOf(row, batch->row_bytes, carried);
    auto its_device = row.compact.empty() ? device_rows_.Find(row.row.logits) : nullptr;
    // Another allocation of a device may begin where one ends.
    const std::byte* const data = its_device == nullptr && is_ready ? nullptr : BytesOf(row);
    const bool fits = size.rows + more.rows <= options_.limits.message_rows &&
                      size.bytes + more.bytes <= options_.limits.message_bytes &&
                      size.compact_bytes + more.compact_bytes <= link->max_compact_bytes;
    if (!ready.empty() && (!fits || its_device != device || data != next)) {
      SendStep(link, batch, std::exchange(ready, {}), now);
      size = {};
    }
    ready.push_back(i);
    size.rows += more.rows;
    size.bytes += more.bytes;
    size.compact_bytes += more.compact_bytes;
    device = std::move(its_device);
    next = data == nullptr ? nullptr : data + more.rows * batch->row_bytes;
  }
  if (!ready.empty()) SendStep(link, batch, std::move(ready), now);
}

// Counts a use of the rows' memory, until the last reference goes.
std::shared_ptr<void> StreamState::HoldRows(const std::shared_ptr<PendingBatch>& batch) {
  batch->uses.fetch_add(1, std::memory_order_relaxed);
  return std::shared_ptr<void>(nullptr, [batch, released = released_](void*) {
    if (batch->EndUse()) released(batch);
  });
}

void StreamState::MarkSent(PendingBatch* batch, const std::vector<uint32_t>& rows) {
  for (uint32_t index : rows) {
    batch->rows[index].state = PendingRow::State::kSent;
    SequenceRecord* const record = batch->rows[index].record.get();
    Bind(record, links_.in_process() && KeepsSamplerState(record->in_force().parameters));
  }
}

// Gives rows to the sampler in this process.
void StreamState::StepLocally(Link* link, const std::shared_ptr<PendingBatch>& batch, std::vector<uint32_t> rows) {
  LocalStep step;
  step.batch_id = next_batch_id_++;
  step.dtype = batch->dtype;
  step.draft_dtype = batch->draft_dtype;
  step.vocabulary_size = batch->vocabulary_size;
  step.priority = batch->priority;
  step.traceparent = batch->traceparent;
  step.hold = HoldRows(batch);
  step.rows.reserve(rows.size());
  for (uint32_t index : rows) {
    const PendingRow& pending = batch->rows[index];
    LocalRow& row = step.rows.emplace_back();
    row.record = pending.record;
    row.row = pending.row;
    SequenceRecord* const record = pending.record.get();
    absl::MutexLock lock(&record->mutex);
    row.position = record->history.position();
    if (!record->history.keeps_tokens()) continue;
    row.shared = record->history.shared();
    row.appended.assign(record->history.tokens().begin() + row.shared, record->history.tokens().end());
    row.history_hash = record->history.hash();
  }
  MarkSent(batch.get(), rows);
  SentStep& sent = sent_steps_[step.batch_id];
  sent.batch = batch;
  sent.unanswered = static_cast<uint32_t>(rows.size());
  sent.rows = std::move(rows);
  link->transport->sampler()->Step(std::move(step));
}

void StreamState::OnLocalResults(uint64_t stream, uint64_t batch_id, std::vector<LocalResult> results, absl::Time now) {
  if (!links_.IsLive(stream)) return;
  const auto it = sent_steps_.find(batch_id);
  if (it != sent_steps_.end()) {
    SentStep& sent = it->second;
    for (LocalResult& result : results) {
      PendingRow& row = sent.batch->rows[std::exchange(sent.rows[result.row], SentStep::kAnswered)];
      --sent.unanswered;
      if (const auto* error = std::get_if<RowError>(&result.result)) {
        OnRowRefused(sent.batch.get(), &row, *error, now);
      } else {
        FinishRow(sent.batch.get(), &row, std::move(result.result));
      }
    }
    if (sent.unanswered == 0) sent_steps_.erase(it);
  }
  Advance(now);
}

// Sends rows, in several messages if the stream's limit demands it.
void StreamState::SendStep(Link* link, const std::shared_ptr<PendingBatch>& batch, std::vector<uint32_t> rows,
                           absl::Time now) {
  if (link->transport->sampler() != nullptr) return StepLocally(link, batch, std::move(rows));
  std::shared_ptr<void> hold = HoldRows(batch);
  const uint64_t batch_id = next_batch_id_++;
  const uint32_t count = static_cast<uint32_t>(rows.size());
  std::weak_ptr<void> watch = hold;
  const std::shared_ptr<SharedMemory> memory = link->transport->memory();
  std::vector<std::shared_ptr<void>> leases;
  std::optional<OutgoingShard> shard;
  absl::Duration timeout = batch->deadline - now;
  if (options_.shard) {
    shard = OutgoingShard{*options_.shard, first_epoch_ + link->number};
  }
  // A shorter time leaves the service time to say which shards are missing, or that the rows are.
  const bool waits = !batch->IsReady() && MayWaitForRows(*link, *batch);
  if (shard || waits) timeout = timeout * 7 / 8;
  OutgoingMessage message = EncodeStep(batch_id, *batch, rows, timeout, std::move(hold),
                                       {shard ? &*shard : nullptr, waits}, memory.get(), &leases);
  const uint64_t bytes = message.bytes();
  const bool is_too_large = bytes > link->max_message_bytes;
  // A row that is too long alone is sent all the same: the service refuses it by name.
  if (is_too_large || (count > 1 && message.own_bytes() > service::kMaxFieldBytes)) {
    message = {};
    leases.clear();
    if (count == 1) {
      if (bytes <= link->server_message_bytes && link->transport->Outgrow()) return;
      return FinishRow(batch.get(), &batch->rows[rows[0]], TooLarge(bytes, link->max_message_bytes));
    }
    const auto middle = rows.begin() + count / 2;
    SendStep(link, batch, {rows.begin(), middle}, now);
    return SendStep(link, batch, {middle, rows.end()}, now);
  }
  MarkSent(batch.get(), rows);
  links_.Send(link, std::move(message));
  sent_steps_[batch_id] =
      SentStep{batch, std::move(rows), count, link->messages, std::move(watch), std::move(leases), memory != nullptr};
}

void StreamState::OnResults(uint64_t stream, const v1::StepResults& results, absl::Time now) {
  if (results.has_error()) return OnStepRefused(results.batch_id(), FromWire(results.error()), now);
  const auto it = sent_steps_.find(results.batch_id());
  if (it == sent_steps_.end()) return;  // the step was given up, or the answer is repeated
  for (const v1::RowResult& result : results.rows()) {
    if (absl::Status status = OnRowResult(&it->second, result, now); !status.ok()) {
      return links_.Break(stream, status, now);
    }
  }
  if (it->second.unanswered == 0) sent_steps_.erase(it);
}

absl::Status StreamState::OnRowResult(SentStep* sent, const v1::RowResult& result, absl::Time now) {
  if (result.row() >= sent->rows.size()) return absl::InternalError("a result for a row that the step does not have");
  uint32_t& index = sent->rows[result.row()];
  if (index == SentStep::kAnswered) return absl::OkStatus();  // a repeated result
  PendingRow& row = sent->batch->rows[index];
  if (row.step_id != result.step_id()) return absl::InternalError("a result for another step of its sequence");
  if (result.has_error()) {
    index = SentStep::kAnswered;
    --sent->unanswered;
    // A rank with a whole shard sends it again if another rank's is compact.
    if (result.error().reason() == v1::ROW_REQUIRED && (!row.compact.empty() || options_.shard)) {
      OnRowRequired(sent->batch.get(), &row, result.error());
    } else {
      OnRowRefused(sent->batch.get(), &row, FromWire(result.error()), now);
    }
    return absl::OkStatus();
  }
  const auto asked = row.row.drafts != nullptr ? v1::RowResult::kVerify
                     : row.row.scored.empty()  ? v1::RowResult::kDraw
                                               : v1::RowResult::kScore;
  if (result.kind_case() != asked) return absl::InternalError("the result of a row is of another kind than its task");
  const bool continues = result.draw().continues() || result.score().continues() || result.verify().continues();
  const bool is_whole = !continues && row.partial.kind_case() == v1::RowResult::KIND_NOT_SET;
  if (!is_whole) AppendPart(result, &row.partial);
  if (continues) return absl::OkStatus();
  if (ReceiptLog* const log = row.record->options.receipts.get()) {
    log->OnRecords(is_whole ? result.receipts() : row.partial.receipts());
  }
  index = SentStep::kAnswered;
  --sent->unanswered;
  if (!row.compact.empty()) {
    absl::MutexLock lock(&row.record->mutex);
    row.record->habit.refusals = 0;
  }
  FinishRow(sent->batch.get(), &row, is_whole ? ToRowResult(result) : ToRowResult(std::move(row.partial)));
  return absl::OkStatus();
}

// The same step follows at once: with the tokens that are required, or whole.
void StreamState::OnRowRequired(PendingBatch* batch, PendingRow* row, const v1::Error& error) {
  row->state = PendingRow::State::kWaiting;
  bool is_named = ++row->compact_refusals <= kMaxCompactRefusals;
  bool lacks_sums = false;
  for (const v1::RequiredLogits& required : error.required()) {
    const bool is_known = required.position() < row->compact.size();
    lacks_sums |=
        required.cause() == v1::RequiredLogits::CAUSE_SUMS && is_known && !row->compact[required.position()].has_sums();
    is_named &=
        is_known && !required.tokens().empty() && !lacks_sums &&
        std::ranges::all_of(required.tokens(), [&](uint32_t token) { return token < row->record->live_vocabulary(); });
  }
  if (is_named) {
    if (!BringWithinReach(nullptr, batch, row)) return;
    for (const v1::RequiredLogits& required : error.required()) {
      row->compact[required.position()].Add({required.tokens().data(), static_cast<size_t>(required.tokens_size())},
                                            LogitsAt(*batch, *row, required.position()));
    }
    return;
  }
  row->compact.clear();
  absl::MutexLock lock(&row->record->mutex);
  SequenceRecord::RowHabit& habit = row->record->habit;
  const bool adds_sums = lacks_sums && !habit.states_sums;
  if (!adds_sums && row->record->takes_first && !std::exchange(habit.lists_all, true)) return;
  habit.Refuse(lacks_sums);
}

void StreamState::OnStepRefused(uint64_t batch_id, const RowError& error, absl::Time now) {
  auto node = sent_steps_.extract(batch_id);
  if (node.empty()) return;
  SentStep& sent = node.mapped();
  for (uint32_t index : sent.rows) {
    if (index != SentStep::kAnswered) OnRowRefused(sent.batch.get(), &sent.batch->rows[index], error, now);
  }
}

void StreamState::OnRowRefused(PendingBatch* batch, PendingRow* row, const RowError& error, absl::Time now) {
  SequenceRecord::Standing& standing = row->record->standing;
  absl::Time not_before = now;
  if (error.reason == v1::DEADLINE_PASSED) row->missing = error;
  switch (RemedyOf(error)) {
    case Remedy::kSurface:
      return FinishRow(batch, row, error);
    case Remedy::kReplay:
      if (std::exchange(row->replays_on, standing.stream) != standing.stream) row->replays = 0;
      if (row->replays++ == kMaxReplays) return FinishRow(batch, row, error);
      standing.needs_history = true;
      standing.not_before = now + error.retry_after;
      break;
    case Remedy::kReopen:
      standing.stream = 0;
      not_before += links_.Wait(++row->attempts);
      break;
    case Remedy::kGoElsewhere:
      // A stream without shared memory carries the row itself.
      if (error.reason != v1::UNKNOWN_REGION || links_.shares_memory()) links_.Retire(links_.current_number(), now);
      // Another stream may lead to the same failed device, or lose its memory as well.
      if (error.reason != v1::DRAINING) not_before += std::max(error.retry_after, links_.Wait(++row->attempts));
      break;
    case Remedy::kRetryLater:
      row->replays = 0;
      not_before += std::max(error.retry_after, links_.Wait(++row->attempts));
      break;
  }
  // A back-off beyond the deadline is useless: the caller learns the reason at once. A refusal without a back-off that
  // arrives at the deadline does not end the row: Expire does.
  if (not_before > now && not_before >= batch->deadline) return FinishRow(batch, row, error);
  row->not_before = not_before;
  row->state = PendingRow::State::kWaiting;
  row->partial.Clear();
}

void StreamState::OnRejected(uint64_t stream, const v1::Rejected& rejected, absl::Time now) {
  const RowError error = FromWire(rejected.error());
  const uint64_t message = rejected.message_index();
  if (!links_.IsWelcomed(stream)) return links_.Break(stream, ToStatus(error), now);  // it was the hello
  if (links_.OnAttachRejected(stream, message, ToStatus(error), now)) return;
  if (stream != links_.current_number()) return;
  for (const auto& [batch_id, sent] : sent_steps_) {
    if (sent.message == message) return OnStepRefused(batch_id, error, now);
  }
  for (auto it = sent_opens_.begin(); it != sent_opens_.end(); ++it) {
    if (it->second.first_message > message || message > it->second.last_message) continue;
    const SentOpen sent = std::move(it->second);
    sent_opens_.erase(it);
    unanswered_history_tokens_ -= sent.history_tokens;
    sent.record->standing.unanswered = false;
    return OnOpenRefused(sent, error, now);
  }
  // The other messages are closes and BringAnswers: no caller waits for them.
}

}  // namespace sortition::client
