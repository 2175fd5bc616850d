// A step's rows: to the batcher position by position, and back as results.
#include "service/stream/step_in_flight.h"

#include <utility>

#include "kernels/check.h"

namespace sortition::service {
namespace {

// Ends a row that is complete, and adds its answer.
void Commit(const StepMessage& message, const CheckpointKey& key, SequenceRow* run, StepAnswers* out) {
  const RowPlan& plan = run->plan();
  const auto committed = run->Commit();
  if (const auto* refusal = std::get_if<Refusal>(&committed)) {
    return out->Refuse({plan.row, plan.intent.step_id}, *refusal);
  }
  out->Add({std::get<RowResult>(committed), plan, run->spec(), run->receipts().get(), key, message.OwnerOf(plan.row)});
}

}  // namespace

CompactRowCounts CountCompact(const StepAnswers& now, size_t rows) {
  CompactRowCounts counts;
  uint32_t undecided = 0;
  for (const AnswerNote& note : now.notes()) {
    if (!note.required) continue;
    ++counts.required[static_cast<size_t>(*note.required)];
    ++undecided;
  }
  counts.decided = static_cast<uint32_t>(rows) - undecided;
  return counts;
}

void AnswerCompactRow(const StepMessage& message, const CheckpointKey& key, SequenceRow* run, Bill* bill,
                      StepAnswers* out) {
  const auto dense_at = [&](uint32_t index) -> const void* {
    const std::optional<uint32_t> row = run->DraftRowAt(index);
    return row ? message.DraftRow(*row) : nullptr;
  };
  run->RunCompact(dense_at, message.shape().draft_dtype, bill);
  Commit(message, key, run, out);
}

StepInFlight::StepInFlight(std::shared_ptr<StepMessage> message, std::shared_ptr<ResultSink> sink, Batcher* batcher,
                           const CheckpointKey* key, bool early)
    : message_(std::move(message)), sink_(std::move(sink)), batcher_(*batcher), key_(*key), early_(early) {
  const StepShape& shape = message_->shape();
  arrived = message_->arrived();
  deadline = arrived + shape.timeout;
  priority = shape.priority;
  owner = message_->stream().owner;
  rows_.reserve(message_->rows());
  first_.reserve(message_->rows());
  queued_.reserve(message_->rows());
}

void StepInFlight::AddPositions(SequenceRow* run, SetLogits set_logits) {
  SORTITION_CHECK(rows_.size() <= message_->rows());
  const StepShape& shape = message_->shape();
  for (uint32_t index = 0; index < run->plan().positions(); ++index) {
    const auto number = static_cast<uint32_t>(queued_.size());
    QueuedRow& queued = index < run->first_positions() ? first_.emplace_back() : following_[number];
    queued.index = number;
    queued.sequence = message_->row(run->plan().row).request_id();
    set_logits(index, &queued.row);
    const std::optional<uint32_t> draft_row = run->DraftRowAt(index);
    const std::byte* const dense = draft_row ? message_->DraftRow(*draft_row) : nullptr;
    queued.row.request = run->RequestAt(index, shape.dtype, dense, shape.draft_dtype);
    queued_.emplace_back(run, index);
  }
}

std::vector<QueuedRow> StepInFlight::TakeRows() {
  absl::MutexLock lock(&mutex_);
  not_gathered_ = rows_.size();
  return std::move(first_);
}

void StepInFlight::AbortRows() {
  for (SequenceRow& row : rows_) row.Abort();
}

StepAnswers StepInFlight::RefuseRows(const Refusal& refusal) {
  AbortRows();
  StepAnswers refused;
  for (const SequenceRow& row : rows_) refused.Refuse({row.plan().row, row.plan().intent.step_id}, refusal);
  return refused;
}

void StepInFlight::Deliver(std::span<const QueuedOutput> outputs) {
  StepAnswers answers(outputs.size());
  const bool wanted = !message_->stream().closed();
  std::vector<QueuedRow> following;
  for (const QueuedOutput& output : outputs) {
    const auto [run, position] = queued_[output.index];
    const SequenceRow::Progress progress = Take(run, position, output);
    if (progress.next && wanted) {
      QueuedRow& next = following_.find(output.index - position + progress.next->index)->second;
      progress.next->Set(&next.row.request);
      following.push_back(std::move(next));
    } else if (progress.next || progress.is_complete) {
      End(run, wanted, &answers);
    }
  }
  // Devices continue while the answers are written.
  const bool more_follow = !following.empty();
  if (more_follow) batcher_.Continue(shared_from_this(), std::move(following));
  answers = Gather(std::move(answers), more_follow);
  if (!answers.empty()) sink_->Answer(std::move(answers));
}

SequenceRow::Progress StepInFlight::Take(SequenceRow* run, uint32_t position, const QueuedOutput& output) {
  const auto take = [&] {
    return output.output != nullptr ? run->Take(position, std::move(*output.output))
                                    : run->Take(position, *output.refusal);
  };
  // The batcher has one position at a time of a row that has one or that runs in order.
  if (run->first_positions() == 1) return take();
  absl::MutexLock lock(&mutex_);
  return take();
}

// A row of a stream that has ended is answered, too: the answer closes the stream's window.
void StepInFlight::End(SequenceRow* run, bool wanted, StepAnswers* out) {
  const RowPlan& plan = run->plan();
  if (!wanted) {
    run->Abort();
    const Refusal ended{Reason::kStepCancelled, "", "", "the stream of the step has ended"};
    return out->Refuse({plan.row, plan.intent.step_id}, ended);
  }
  Commit(*message_, key_, run, out);
}

// An answer waits for the rows that a device has, but not for rows that are still queued: those may take any time, and
// may pass their deadline.
StepAnswers StepInFlight::Gather(StepAnswers answers, bool more_follow) {
  if (early_) return answers;
  const size_t rows = answers.notes().size();
  absl::MutexLock lock(&mutex_);
  SORTITION_CHECK(rows <= not_gathered_);
  not_gathered_ -= rows;
  if (held_.empty() && not_gathered_ == 0) return answers;
  held_bytes_ += answers.results().ByteSizeLong();
  if (held_.empty()) {
    held_ = std::move(answers);
  } else {
    held_.Add(std::move(answers));
  }
  if (not_gathered_ > 0 && !more_follow && waiting_rows() == 0 && held_bytes_ < kMaxAnswerBytes) return {};
  held_bytes_ = 0;
  return std::exchange(held_, {});
}

}  // namespace sortition::service
