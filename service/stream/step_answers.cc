// From the outcomes of a step's rows to its answers.
#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "service/result/encode.h"
#include "service/result/encode_outcome.h"
#include "service/result/split_results.h"
#include "service/stream/step_in_flight.h"

namespace sortition::service {
namespace {

void SetCheckpoint(std::string checkpoint, v1::RowResult* result) {
  if (result->has_draw()) {
    result->mutable_draw()->set_checkpoint(std::move(checkpoint));
  } else if (result->has_verify()) {
    result->mutable_verify()->set_checkpoint(std::move(checkpoint));
  } else {
    result->mutable_score()->set_checkpoint(std::move(checkpoint));
  }
}

}  // namespace

void StepInFlight::Deliver(std::vector<PositionOutput> outputs) {
  v1::StepResults results;
  results.set_batch_id(batch_id_);
  results.mutable_rows()->Reserve(static_cast<int>(outputs.size()));
  const bool wanted = answers_->Wanted();
  std::vector<QueuedRow> following;
  for (PositionOutput& output : outputs) {
    const auto [row, position] = queued_[output.index];
    const bool is_complete = row->run.runs_in_order()
                                 ? CollectInOrder(row, position, std::move(output.output), wanted, &following)
                                 : Collect(row, position, std::move(output.output));
    if (!is_complete) continue;
    if (wanted) {
      Encode(row, &results);
    } else {
      // Counted as answered all the same, so that the books close: the stream's, and those of streams of other slices.
      v1::RowResult* const result = results.add_rows();
      result->set_row(row->index);
      result->set_step_id(row->run.request().intent.step_id);
      EncodeError(Refusal{Reason::kStepCancelled, "", "", "the stream of the step has ended"}, result->mutable_error());
      if (row->grant) row->sequence.state->Abort(row->grant->ticket);
    }
    if (row->grant) sequences_.Touch(*row->sequence.key, row->sequence.state.get());
    // Before the answer leaves: who has it may count on the room of a mask that was released.
    row->run.ReleaseMasks();
  }
  // Devices go on while the answers are written.
  const bool more_follow = !following.empty();
  if (more_follow) batcher_.Continue(shared_from_this(), std::move(following));
  results = Gather(std::move(results), more_follow);
  if (results.rows_size() > 0) Send(std::move(results));
}

// An answer waits for rows that a device is at, and for no others: those may take any time, and pass their deadline.
v1::StepResults StepInFlight::Gather(v1::StepResults results, bool more_follow) {
  const v1::Step& step = frame_.message.step();
  if (step.answer_early() || step.logits().has_shard()) return results;
  const uint32_t rows = AnsweredRows(results);
  absl::MutexLock lock(&mutex_);
  SORTITION_CHECK(rows <= not_gathered_);
  not_gathered_ -= rows;
  const bool is_all = held_.rows_size() == 0 && not_gathered_ == 0;
  if (is_all) return results;
  held_bytes_ += results.ByteSizeLong();
  for (v1::RowResult& row : *results.mutable_rows()) *held_.add_rows() = std::move(row);
  if (not_gathered_ > 0 && !more_follow && waiting_rows() == 0 && held_bytes_ < kAnswerBytes) return {};
  held_bytes_ = 0;
  return std::exchange(held_, {});
}

bool StepInFlight::CollectInOrder(Row* row, uint32_t position, PositionResult result, bool wanted,
                                  std::vector<QueuedRow>* following) const {
  // One position at a time is with the batcher, so nobody else looks at the row.
  row->run.Take(position, std::move(result));
  if (!wanted) return true;
  const std::optional<RowRun::Next> next = row->run.After(position);
  if (!next) return true;
  QueuedRow& queued = row->positions[next->index].queued;
  queued.row.request.sampler_state = next->sampler_state;
  following->push_back(std::move(queued));
  return false;
}

bool StepInFlight::Collect(Row* row, uint32_t position, PositionResult result) {
  if (row->positions.size() == 1) return row->run.Take(position, std::move(result));
  absl::MutexLock lock(&mutex_);
  return row->run.Take(position, std::move(result));
}

void StepInFlight::Encode(Row* row, v1::StepResults* out) {
  const StepRowRequest& request = row->run.request();
  const auto refuse = [&](const Refusal& refusal) {
    v1::RowResult* result = out->add_rows();
    result->set_row(row->index);
    result->set_step_id(request.intent.step_id);
    EncodeError(refusal, result->mutable_error());
  };
  auto finished = row->run.Finish(row->index);
  if (const auto* refusal = std::get_if<Refusal>(&finished)) {
    if (row->grant) row->sequence.state->Abort(row->grant->ticket);
    return refuse(*refusal);
  }
  StepOutcome& outcome = std::get<StepOutcome>(finished);
  const SequenceSpec& spec = *row->sequence.spec;
  if (!row->grant || request.plan.kind == PositionPlan::Kind::kScore) {
    if (row->grant) row->sequence.state->Abort(row->grant->ticket);
    return EncodeAnswer(row->index, request, spec, outcome, std::nullopt, out);
  }
  auto committed = row->sequence.state->Commit(row->grant->ticket, std::move(outcome));
  if (auto* refusal = std::get_if<Refusal>(&committed)) return refuse(*refusal);
  const StepAnswer& kept = std::get<StepAnswer>(committed);
  EncodeAnswer(row->index, request, spec, kept.outcome, kept.history_hash, out);
}

void StepInFlight::EncodeAnswer(uint32_t index, const StepRowRequest& request, const SequenceSpec& spec,
                                const StepOutcome& outcome, std::optional<uint64_t> history_hash,
                                v1::StepResults* out) const {
  const int first = out->rows_size();
  EncodeOutcome(outcome, request.plan, spec, history_hash, {index, request.intent.step_id}, out->mutable_rows());
  if (!kernels::KeepsSamplerState(spec.parameters.chain)) return;
  // After the last of the answer's tokens.
  const Checkpoint checkpoint = {outcome.rows.back().sampler_state,
                                 request.intent.position + static_cast<uint32_t>(outcome.rows.size()),
                                 history_hash.value_or(0)};
  const std::string& request_id = frame_.message.step().rows(static_cast<int>(index)).request_id();
  SetCheckpoint(answers_->SealCheckpoint(request_id, spec, checkpoint), out->mutable_rows(first));
}

void StepInFlight::Send(v1::StepResults results) {
  if (traced) {
    const auto is_error = [](const v1::RowResult& row) { return row.has_error(); };
    refused_.fetch_add(static_cast<uint32_t>(std::ranges::count_if(results.rows(), is_error)),
                       std::memory_order_relaxed);
  }
  if (!slices_.empty()) SendToOtherSlices(results);
  SendToItsStream(std::move(results));
}

void StepInFlight::SendToItsStream(v1::StepResults results) {
  results.set_batch_id(batch_id_);
  unanswered_.Answer(std::move(results),
                     [this](v1::StepResults message, bool last) { answers_->Answer(std::move(message), *this, last); });
}

}  // namespace sortition::service
