// Handles events of streams and the passing of time: sends rows and opens, and ends those that are lost or too late.
#include "client/cpp/stream_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/message.h"
#include "kernels/law/version.h"

namespace sortition::client {
namespace {

// Period at which the client reads a ready word that no server reads.
constexpr absl::Duration kReadyPause = absl::Microseconds(50);

// Under `auto` a row travels compact if that makes it at least this number of times shorter: stating it costs a pass
// over its logits.
constexpr uint64_t kLeastCompaction = 8;

RowError RowsMissing(const PendingBatch& batch) {
  return {absl::StatusCode::kDeadlineExceeded, v1::DEADLINE_PASSED, "ready", "",
          absl::StrCat("the word that says when the logits are written is not ", batch.ready->value, " yet")};
}

// Takes back the phrase that the history ends in.
void TakeBack(const v1::Rewind& rewind, History* history) {
  const bool is_at_end = uint64_t{rewind.position()} + rewind.tokens().size() == history->position();
  if (is_at_end && !rewind.tokens().empty()) history->Rewind(rewind.position(), rewind.tokens(0));
}

}  // namespace

StreamState::StreamState(const ClientOptions& options, std::string worker_session, Environment environment)
    : options_(options),
      released_(std::move(environment.released)),
      first_epoch_(environment.first_epoch),
      links_(options, std::move(worker_session), std::move(environment.connector), environment.events,
             environment.jitter_seed),
      next_epoch_(environment.first_epoch) {}

void StreamState::Start(absl::Time now) { Advance(now); }

void StreamState::Open(std::unique_ptr<PendingOpen> open, absl::Time now) {
  open->asked = now;
  if (follows()) {
    TakeUp(open->record.get());
    finished_.opens.push_back(std::move(open));
  } else {
    opens_.push_back(std::move(open));
  }
  Advance(now);
}

void StreamState::Submit(std::shared_ptr<PendingBatch> batch, absl::Time now) {
  batch->asked = now;
  batch->unfinished = static_cast<uint32_t>(batch->rows.size());
  batch->results.resize(batch->rows.size());
  for (PendingRow& row : batch->rows) {
    bool taken;
    {
      absl::MutexLock lock(&row.record->mutex);
      taken = std::exchange(row.record->in_flight, true);
      if (!taken) {
        row.step_id = NextStepId(row.record.get());
        const Rewinds& rewinds = row.record->history.rewinds();
        row.row.draw_salt = rewinds.Salt(row.row);
        row.bans = BansWith(row.row, rewinds.At(row.record->history.position()));
        if (!row.bans.empty()) row.row.banned_tokens = row.bans;
      }
    }
    if (taken) {
      row.state = PendingRow::State::kDone;
      batch->ResultOf(row) =
          RowError{absl::StatusCode::kFailedPrecondition, v1::STEP_IN_FLIGHT, "rows.sequence", "1 step at a time",
                   absl::StrCat("a step of ", row.record->options.request_id, " is not over")};
      --batch->unfinished;
    }
  }
  batches_.push_back(std::move(batch));
  Advance(now);
}

void StreamState::OnStated(const std::shared_ptr<PendingBatch>& batch, std::span<PendingRow* const> rows, bool is_last,
                           absl::Time now) {
  for (PendingRow* const row : rows) {
    if (row->state == PendingRow::State::kStating) row->state = PendingRow::State::kWaiting;
  }
  if (is_last && batch->EndUse()) finished_.batches.push_back(batch);
  Advance(now);
}

uint32_t StreamState::CompactCount(uint64_t row_bytes, uint32_t element_bytes) const {
  const Link* const link = links_.current();
  if (options_.rows.form == RowFormOptions::Form::kFull || link == nullptr || links_.in_process()) return 0;
  const uint32_t count = std::min(options_.rows.count, link->max_compact_tokens);
  if (options_.rows.form == RowFormOptions::Form::kCompact) return count;
  const bool is_shorter = uint64_t{count} * (sizeof(uint32_t) + element_bytes) * kLeastCompaction <= row_bytes;
  return is_shorter && link->transport->memory() == nullptr ? count : 0;
}

void StreamState::Bind(SequenceRecord* record, bool bound) {
  if (std::exchange(record->standing.bound, bound) == bound) return;
  bound ? ++bound_sequences_ : --bound_sequences_;
}

void StreamState::Close(SequenceRecord* record) {
  Bind(record, false);
  record->standing.closed = true;
  if (options_.shard) return CloseShard(record);
  Link* link = links_.usable();
  if (link != nullptr && link->transport->sampler() != nullptr) return link->transport->sampler()->Close(record);
  if (link != nullptr && record->standing.stream == link->number && !record->standing.unanswered)
    SendClose(link, *record);
}

void StreamState::SendClose(Link* link, const SequenceRecord& record) {
  if (link->transport->sampler() != nullptr) return link->transport->sampler()->Close(&record);
  v1::StreamRequest request;
  request.mutable_close()->set_request_id(record.options.request_id);
  request.mutable_close()->set_epoch(record.standing.epoch);
  if (options_.shard) request.mutable_close()->set_shard_index(options_.shard->index);
  if (record.options.receipts != nullptr) closing_receipts_[record.standing.epoch] = record.options.receipts;
  links_.Send(link, EncodeMessage(request, {}, nullptr));
}

void StreamState::OnResponse(uint64_t stream, const v1::StreamResponse& response, absl::Time now) {
  if (!links_.IsLive(stream)) return;
  links_.OnHeard(stream, now);
  switch (response.kind_case()) {
    case v1::StreamResponse::kWelcome: {
      const auto& versions = response.welcome().law_versions();
      if (std::find(versions.begin(), versions.end(), law::kLawVersion) != versions.end()) {
        links_.OnWelcome(stream, response.welcome(), now);
      } else {
        links_.Break(
            stream,
            absl::FailedPreconditionError(absl::StrCat("the server does not speak law version ", law::kLawVersion)),
            now);
      }
      break;
    }
    case v1::StreamResponse::kOpened:
      links_.OnAnswer(stream);
      OnOpened(response.opened(), now);
      break;
    case v1::StreamResponse::kClosed:
      if (auto log = closing_receipts_.extract(response.closed().epoch())) {
        log.mapped()->OnClosed(response.closed().receipts());
      }
      break;
    case v1::StreamResponse::kForked:
      links_.OnAnswer(stream);
      OnForked(response.forked(), now);
      break;
    case v1::StreamResponse::kResults:
      links_.OnAnswer(stream);
      OnResults(stream, response.results(), now);
      break;
    case v1::StreamResponse::kRejected:
      OnRejected(stream, response.rejected(), now);
      break;
    case v1::StreamResponse::kDraining:
      links_.Retire(stream, now);
      break;
    case v1::StreamResponse::kIgnoredFields:
      links_.OnIgnored(response.ignored_fields());
      break;
    // The stream's own flow control keeps the window: the server stops reading.
    case v1::StreamResponse::kFlowWindow:
      break;
    default:
      links_.Break(stream, absl::InternalError("the server sent an answer that was not asked for"), now);
  }
  Advance(now);
}

void StreamState::OnLocalOpened(uint64_t stream, uint64_t epoch, const LocalOpenResult& result, absl::Time now) {
  if (!links_.IsLive(stream)) return;
  OnOpenAnswered(epoch, result, now);
  Advance(now);
}

void StreamState::OnEnded(uint64_t stream, const absl::Status& status, absl::Time now) {
  links_.OnEnded(stream, status, now);
  Advance(now);
}

void StreamState::Stop() {
  stopped_ = true;
  links_.Stop();
  ForgetSent();
  EndAll();
}

void StreamState::EndAll() {
  const RowError stopped{absl::StatusCode::kCancelled, v1::STEP_CANCELLED, "", "", "the client was shut down"};
  for (const std::shared_ptr<PendingBatch>& batch : batches_) {
    for (PendingRow& row : batch->rows) {
      if (row.state != PendingRow::State::kDone) FinishRow(batch.get(), &row, stopped);
    }
  }
  FinishOpens(nullptr, ToStatus(stopped));
  CollectDone();
}

void StreamState::Advance(absl::Time now) {
  if (stopped_) return EndAll();
  Expire(now);
  if (links_.Advance(now, /*idle=*/sent_steps_.empty() && sent_opens_.empty(), /*bound=*/bound_sequences_ > 0))
    ForgetSent();
  if (Link* link = links_.usable()) {
    SendOwedCloses(link);
    BringAnswers(link);
    for (std::unique_ptr<PendingOpen>& open : opens_) {
      // The sequence may be open already, if the answer to an earlier open came after its deadline.
      if (open != nullptr && EnsureOpen(link, open->record, now)) finished_.opens.push_back(std::move(open));
    }
    for (const std::shared_ptr<PendingBatch>& batch : batches_) SendRows(link, batch, now);
  }
  CollectDone();
}

// Marks everything sent on a lost stream as not sent: it will not be answered.
void StreamState::ForgetSent() {
  for (auto& [id, sent] : sent_steps_) {
    for (uint32_t index : sent.rows) {
      if (index == SentStep::kAnswered) continue;
      PendingRow& row = sent.batch->rows[index];
      row.state = PendingRow::State::kWaiting;
      row.partial.Clear();
    }
  }
  sent_steps_.clear();
  sent_opens_.clear();
  closing_receipts_.clear();
  unanswered_history_tokens_ = 0;
}

void StreamState::Expire(absl::Time now) {
  const bool owes_answers = !sent_steps_.empty() || !sent_opens_.empty();
  bool memory_held = false;
  for (const std::shared_ptr<PendingBatch>& batch : batches_) {
    if (batch->deadline > now) continue;
    if (owes_answers) links_.OnTimeout(batch->asked, now);
    for (PendingRow& row : batch->rows) {
      if (row.state == PendingRow::State::kDone) continue;
      // The service may still work on it; another open with a higher epoch makes it release the sequence.
      if (row.state == PendingRow::State::kSent) row.record->standing.stream = 0;
      FinishRow(batch.get(), &row,
                row.missing        ? *row.missing
                : batch->IsReady() ? DeadlinePassed()
                                   : RowsMissing(*batch));
    }
    for (auto it = sent_steps_.begin(); it != sent_steps_.end();) {
      if (it->second.batch != batch) {
        ++it;
        continue;
      }
      const std::shared_ptr<Transport> transport = links_.current_transport();
      if (transport != nullptr && transport->sampler() != nullptr) {
        // Rows that are being sampled keep their memory until they are done, and the caller gets its results then.
        transport->sampler()->Drop(it->first);
      } else {
        memory_held |= !it->second.hold.expired() || LeavesSharedBytes(it->second);
      }
      sent_steps_.erase(it++);
    }
  }
  // The caller gets its memory back now, and only the end of the stream makes the transport release it.
  if (memory_held) {
    links_.Break(links_.current_number(), absl::DeadlineExceededError("the stream did not take a step's bytes in time"),
                 now);
  }
  for (std::unique_ptr<PendingOpen>& open : opens_) {
    if (open == nullptr || open->deadline > now) continue;
    if (owes_answers) links_.OnTimeout(open->asked, now);
    open->status = ToStatus(DeadlinePassed());
    finished_.opens.push_back(std::move(open));
  }
}

RowError StreamState::DeadlinePassed() const {
  RowError error{absl::StatusCode::kDeadlineExceeded, v1::DEADLINE_PASSED, "timeout", "",
                 "no answer within the deadline"};
  if (!links_.last_failure().empty()) {
    absl::StrAppend(&error.message, "; the last stream to end was ", links_.last_failure());
  }
  return error;
}

absl::Time StreamState::next_event(absl::Time now) const {
  absl::Time next = links_.next_event();
  const auto consider = [&](absl::Time time) {
    if (time > now) next = std::min(next, time);
  };
  for (const std::unique_ptr<PendingOpen>& open : opens_) {
    next = std::min(next, open->deadline);
    consider(open->record->standing.not_before);
  }
  for (const std::shared_ptr<PendingBatch>& batch : batches_) {
    next = std::min(next, batch->deadline);
    const bool is_ready = batch->IsReady();
    for (const PendingRow& row : batch->rows) {
      if (row.state != PendingRow::State::kWaiting) continue;
      if (!is_ready) consider(now + kReadyPause);
      consider(row.not_before);
      consider(row.record->standing.not_before);
    }
  }
  return next;
}

void StreamState::FinishRow(PendingBatch* batch, PendingRow* row, RowResult&& result) {
  {
    absl::MutexLock lock(&row->record->mutex);
    row->record->in_flight = false;
    if (options_.shard) RememberAnswer(*row, result);
    History& history = row->record->history;
    if (const auto* draw = std::get_if<v1::DrawResult>(&result)) {
      history.Drawn(draw->token());
      if (draw->has_rewind()) TakeBack(draw->rewind(), &history);
      row->record->checkpoint = draw->checkpoint();
    } else if (const auto* verify = std::get_if<v1::VerifyResult>(&result)) {
      std::vector<uint32_t> tokens;
      for (const v1::Position& position : verify->positions()) tokens.push_back(position.token());
      history.Drawn(tokens);
      if (verify->has_rewind()) TakeBack(verify->rewind(), &history);
      row->record->checkpoint = verify->checkpoint();
    } else if (std::holds_alternative<v1::ScoreResult>(result)) {
      history.Scored();
    }
  }
  batch->ResultOf(*row) = std::move(result);
  row->state = PendingRow::State::kDone;
  --batch->unfinished;
}

void StreamState::FinishOpens(const SequenceRecord* record, const absl::Status& status, absl::Time until) {
  for (std::unique_ptr<PendingOpen>& open : opens_) {
    if (open == nullptr || (record != nullptr && open->record.get() != record) || open->deadline > until) continue;
    open->status = status;
    finished_.opens.push_back(std::move(open));
  }
}

void StreamState::FailSequence(const SequenceRecord* record, const RowError& error, absl::Time until) {
  FinishOpens(record, ToStatus(error), until);
  for (const std::shared_ptr<PendingBatch>& batch : batches_) {
    if (batch->deadline > until) continue;
    for (PendingRow& row : batch->rows) {
      const bool waits = row.state == PendingRow::State::kWaiting || row.state == PendingRow::State::kStating;
      if (row.record.get() == record && waits) FinishRow(batch.get(), &row, error);
    }
  }
}

void StreamState::CollectDone() {
  std::erase(opens_, nullptr);
  for (std::shared_ptr<PendingBatch>& batch : batches_) {
    if (batch->unfinished > 0) continue;
    // Otherwise the batch ends when a transport releases its last message.
    if (batch->EndUse()) finished_.batches.push_back(batch);
    batch.reset();
  }
  std::erase(batches_, nullptr);
}

}  // namespace sortition::client
