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

void StepInFlight::Deliver(std::vector<QueuedOutput> outputs) {
  v1::StepResults results;
  results.set_batch_id(batch_id_);
  results.mutable_rows()->Reserve(static_cast<int>(outputs.size()));
  const bool wanted = answers_->Wanted();
  std::vector<QueuedRow> following;
  for (QueuedOutput& output : outputs) {
    const auto [row, position] = queued_[output.index];
    const RowRun::Progress progress = Collect(row, position, std::move(output.output));
    if (progress.next && wanted) {
      QueuedRow& next = row->positions[progress.next->index].queued;
      next.row.request.sampler_state = progress.next->sampler_state;
      following.push_back(std::move(next));
    } else if (progress.next || progress.is_complete) {
      Encode(row, wanted, &results);
    }
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

RowRun::Progress StepInFlight::Collect(Row* row, uint32_t position, PositionOutput output) {
  // Of one that runs in order, the batcher has one position at a time.
  if (row->run.first_positions() == 1) return row->run.Take(position, std::move(output));
  absl::MutexLock lock(&mutex_);
  return row->run.Take(position, std::move(output));
}

// A row that is not wanted any more is counted as answered all the same: its stream's window, and the streams of other
// slices, wait for its answer.
void StepInFlight::Encode(Row* row, bool wanted, v1::StepResults* out) {
  std::variant<RowResult, Refusal> ended = Refusal{Reason::kStepCancelled, "", "", "the stream of the step has ended"};
  if (wanted) {
    ended = row->run.Commit();
  } else {
    row->run.Abort();
  }
  if (const auto* result = std::get_if<RowResult>(&ended)) {
    return EncodeAnswer(row->run.plan(), row->run.spec(), *result, out);
  }
  v1::RowResult* const refused = out->add_rows();
  refused->set_row(row->index);
  refused->set_step_id(row->run.plan().intent.step_id);
  EncodeError(std::get<Refusal>(ended), refused->mutable_error());
}

void StepInFlight::EncodeAnswer(const RowPlan& plan, const SequenceSpec& spec, const RowResult& result,
                                v1::StepResults* out) const {
  const int first = out->rows_size();
  EncodeOutcome(result, plan, spec, {plan.row, plan.intent.step_id}, out->mutable_rows());
  if (!kernels::KeepsSamplerState(spec.parameters.chain)) return;
  // After the last of the result's tokens.
  const Checkpoint checkpoint = {result.outputs.back().sampler_state,
                                 plan.intent.position + static_cast<uint32_t>(result.outputs.size()),
                                 result.history_hash.value_or(0)};
  const std::string& request_id = frame_.message.step().rows(static_cast<int>(plan.row)).request_id();
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
