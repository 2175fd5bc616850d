// Tensor-parallel ranks, which step shards of rows. Each has a stream, and they do not talk to each other: the id of a
// step follows from the text, the service repeats a lost result, and a result that was lost with its server is brought
// by a rank that has it.
#include <utility>

#include "client/cpp/message.h"
#include "client/cpp/stream_state.h"
#include "service/limits.h"

namespace sortition::client {

uint64_t StreamState::NextStepId(SequenceRecord* record) const {
  return options_.shard ? record->history.step_id() : record->next_step_id++;
}

// Starts a sequence on a rank that does not open it: rank 0 does, and the others need only the position.
void StreamState::TakeUp(SequenceRecord* record) {
  record->origin.reset();
  absl::MutexLock lock(&record->mutex);
  record->seed = record->options.seed.value_or(0);
  record->history.KeepNothing();
}

// Sends the last results of this rank's sequences, once on every stream. Another rank may still wait for one, and this
// rank gets no row until that rank has continued: ranks of a model wait for each other between steps.
void StreamState::BringAnswers(Link* link) {
  if (std::exchange(brought_on_, link->number) == link->number) return;
  for (const auto& [request_id, record] : answered_) {
    v1::StreamRequest request;
    {
      absl::MutexLock lock(&record->mutex);
      if (record->last_answer->result().ByteSizeLong() > service::kMaxAnswerBytes) continue;
      *request.mutable_bring_answer() = *record->last_answer;
    }
    links_.Send(link, EncodeMessage(request, {}, nullptr));
  }
}

// Keeps a result for BringAnswers. Called before the sequence advances.
void StreamState::RememberAnswer(const PendingRow& row, const RowResult& result) {
  if (std::holds_alternative<RowError>(result)) return;
  auto answer = std::make_unique<v1::BringAnswer>();
  DescribeAsked(row, row.record->history.position(), answer->mutable_asked());
  v1::RowResult& message = *answer->mutable_result();
  message.set_step_id(row.step_id);
  if (const auto* draw = std::get_if<v1::DrawResult>(&result)) {
    *message.mutable_draw() = *draw;
  } else if (const auto* verify = std::get_if<v1::VerifyResult>(&result)) {
    *message.mutable_verify() = *verify;
  } else {
    *message.mutable_score() = std::get<v1::ScoreResult>(result);
  }
  row.record->last_answer = std::move(answer);
  if (!row.record->standing.closed) answered_.try_emplace(row.record->options.request_id, row.record);
}

// Closes a shard. The service keeps the last result until every rank has closed the sequence.
void StreamState::CloseShard(SequenceRecord* record) {
  answered_.erase(record->options.request_id);
  const SequenceRecord::Standing& standing = record->standing;
  Link* link = links_.usable();
  const bool opens = link != nullptr && standing.stream == link->number && standing.unanswered;
  if (opens) return;  // closed once that is answered
  if (link != nullptr) return SendClose(link, *record);
  absl::MutexLock lock(&record->mutex);
  if (record->last_answer == nullptr) return;
  v1::CloseSequence& close = owed_closes_.emplace_back();
  close.set_request_id(record->options.request_id);
  close.set_epoch(standing.epoch);
  close.set_shard_index(options_.shard->index);
}

void StreamState::SendOwedCloses(Link* link) {
  for (v1::CloseSequence& close : std::exchange(owed_closes_, {})) {
    v1::StreamRequest request;
    *request.mutable_close() = std::move(close);
    links_.Send(link, EncodeMessage(request, {}, nullptr));
  }
}

// True if the service may still read the step's shared bytes. For a rank that opens no sequences, only the end of its
// stream makes the service release its shard.
bool StreamState::LeavesSharedBytes(const SentStep& sent) const { return follows() && sent.shares_memory; }

Remedy StreamState::RemedyOf(const RowError& error) const {
  if (options_.shard && error.reason == v1::DEADLINE_PASSED) return Remedy::kRetryLater;  // the shards may still arrive
  // Rank 0 has lost its stream, or opened the sequence again, and will send its shard again.
  const bool is_rank_0s = error.reason == v1::STEP_CANCELLED || error.reason == v1::SUPERSEDED;
  return follows() && is_rank_0s ? Remedy::kRetryLater : RemedyFor(error.reason);
}

}  // namespace sortition::client
