// Rows to the batcher, outcomes to messages.
#include "service/stream/step_in_flight.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/types/span.h"
#include "kernels/check.h"
#include "service/request/payload_view.h"
#include "service/result/encode.h"

namespace sortition::service {

StepInFlight::StepInFlight(uint64_t batch_id, uint32_t rows, Frame frame, SequenceTable* sequences,
                           std::shared_ptr<StepAnswers> answers)
    : batch_id_(batch_id),
      rows_(rows),
      frame_(std::move(frame)),
      sequences_(*sequences),
      answers_(std::move(answers)),
      running_of_index_(rows, -1),
      unanswered_(rows) {
  immediate_.set_batch_id(batch_id);
}

void StepInFlight::AddRow(uint32_t index, std::string request_id, const StreamSequence& sequence,
                          StepRowRequest request, std::optional<StepGrant> grant, std::vector<uint32_t> mask_words,
                          const StepShape& shape, const PayloadView& logits) {
  auto row = std::make_unique<Row>();
  row->index = index;
  row->sequence = sequence;
  row->request = std::move(request);
  row->grant = std::move(grant);
  row->mask_words = std::move(mask_words);

  const SequenceSpec& spec = *row->sequence.spec;
  row->queued.index = index;
  row->queued.sequence = std::move(request_id);
  if (!shape.shard) {
    row->queued.row.segments = logits.Slice(row->request.tensor_row * shape.row_stride,
                                            uint64_t{spec.live_vocabulary} * kernels::ElementBytes(shape.dtype));
    row->queued.row.may_change = logits.may_change();
  }
  kernels::RowRequest& kernel = row->queued.row.request;
  kernel.dtype = shape.dtype;
  kernel.live_vocabulary = spec.live_vocabulary;
  kernel.parameters = &spec.parameters;
  kernel.noise = {spec.seed, row->request.intent.position, spec.choice_index | row->request.draw_salt << 16};
  kernel.patches = row->grant ? std::span<const kernels::TokenPatch>(*row->grant->patches) : spec.listed_patches;
  kernel.has_allowed_tokens = spec.has_allowed_tokens || row->request.has_allowed_tokens;
  if (spec.has_allowed_tokens && row->request.has_allowed_tokens) {
    std::ranges::set_intersection(spec.allowed_tokens, row->request.allowed_tokens, std::back_inserter(row->allowed));
    kernel.allowed_tokens = row->allowed;
  } else {
    kernel.allowed_tokens = spec.has_allowed_tokens ? spec.allowed_tokens : row->request.allowed_tokens;
  }
  kernel.allowed_bits = row->mask_words.empty() ? nullptr : row->mask_words.data();

  running_of_index_[index] = static_cast<int32_t>(running_.size());
  running_.push_back(std::move(row));
}

void StepInFlight::AnswerNow(uint32_t index, uint64_t step_id, const StreamSequence& sequence,
                             const StepAnswer& answer) {
  v1::RowResult* result = immediate_.add_rows();
  result->set_row(index);
  result->set_step_id(step_id);
  EncodeDraw(answer.row, sequence.spec->parameters, answer.history_hash, result->mutable_draw());
}

void StepInFlight::RefuseNow(uint32_t index, uint64_t step_id, const Refusal& refusal) {
  v1::RowResult* result = immediate_.add_rows();
  result->set_row(index);
  result->set_step_id(step_id);
  EncodeError(refusal, result->mutable_error());
}

void StepInFlight::SetShards(const std::vector<StepShard>& shards) {
  for (const StepShard& shard : shards) {
    const v1::Step& message = shard.frame->message.step();
    const PayloadView logits(shard.frame->payloads[shard.shape.logits_payload]);
    for (auto& row : running_) {
      const uint32_t live = row->sequence.spec->live_vocabulary;
      if (live <= shard.first_token()) continue;  // padding, all of it
      const v1::StepRow& theirs = message.rows(static_cast<int>(row->index));
      const uint64_t tensor_row = theirs.has_tensor_row() ? theirs.tensor_row() : row->index;
      const uint64_t elements = std::min(shard.shape.width, live - shard.first_token());
      const auto segments =
          logits.Slice(tensor_row * shard.shape.row_stride, elements * kernels::ElementBytes(shard.shape.dtype));
      devices::DeviceRow& queued = row->queued.row;
      queued.segments.insert(queued.segments.end(), segments.begin(), segments.end());
      queued.may_change |= logits.may_change();
    }
    if (shard.step == nullptr) followers_.push_back(shard);
  }
}

std::vector<QueuedRow> StepInFlight::TakeRows() {
  std::vector<QueuedRow> rows;
  rows.reserve(running_.size());
  for (auto& row : running_) rows.push_back(std::move(row->queued));
  return rows;
}

void StepInFlight::SendImmediate() {
  if (immediate_.rows_size() > 0) Send(std::move(immediate_));
}

void StepInFlight::AbortRows() {
  for (auto& row : running_) {
    if (row->grant) row->sequence.state->Abort(row->grant->ticket);
  }
}

void StepInFlight::Deliver(std::vector<RowOutcome> outcomes) {
  v1::StepResults results;
  results.set_batch_id(batch_id_);
  results.mutable_rows()->Reserve(static_cast<int>(outcomes.size()));
  const bool wanted = answers_->Wanted();
  for (RowOutcome& outcome : outcomes) {
    const int32_t at = running_of_index_[outcome.index];
    SORTITION_CHECK(at >= 0);
    Row& row = *running_[at];
    if (wanted) {
      Encode(row, std::move(outcome.result), results.add_rows());
    } else if (row.grant) {
      row.sequence.state->Abort(row.grant->ticket);
    }
    if (row.grant) sequences_.Touch(*row.sequence.key, row.sequence.state.get());
  }
  if (!wanted) {
    // Counted as answered all the same, so that the books close: the stream's, and those of streams with other slices.
    const Refusal ended{Reason::kStepCancelled, "", "", "the stream of slice 0 has ended"};
    for (const RowOutcome& outcome : outcomes) {
      v1::RowResult* const row = results.add_rows();
      row->set_row(outcome.index);
      row->set_step_id(running_[running_of_index_[outcome.index]]->request.intent.step_id);
      EncodeError(ended, row->mutable_error());
    }
  }
  Send(std::move(results));
}

void StepInFlight::Encode(const Row& row, std::variant<kernels::RowAnswer, Refusal> result, v1::RowResult* out) {
  const StepIntent& intent = row.request.intent;
  out->set_row(row.index);
  out->set_step_id(intent.step_id);
  if (auto* answer = std::get_if<kernels::RowAnswer>(&result);
      answer != nullptr && answer->error != kernels::RowError::kNone) {
    result = RefusalOf(*answer, row.index);
  }
  if (auto* refusal = std::get_if<Refusal>(&result)) {
    if (row.grant) row.sequence.state->Abort(row.grant->ticket);
    EncodeError(*refusal, out->mutable_error());
    return;
  }
  kernels::RowAnswer& answer = std::get<kernels::RowAnswer>(result);
  const kernels::RowParameters& parameters = row.sequence.spec->parameters;
  if (!row.grant) {
    EncodeDraw(answer, parameters, std::nullopt, out->mutable_draw());
    return;
  }
  auto committed = row.sequence.state->Commit(row.grant->ticket, std::move(answer));
  if (auto* refusal = std::get_if<Refusal>(&committed)) {
    EncodeError(*refusal, out->mutable_error());
    return;
  }
  const StepAnswer& kept = std::get<StepAnswer>(committed);
  EncodeDraw(kept.row, parameters, kept.history_hash, out->mutable_draw());
}

void StepInFlight::Send(v1::StepResults results) {
  if (traced) {
    const auto is_error = [](const v1::RowResult& row) { return row.has_error(); };
    refused_.fetch_add(static_cast<uint32_t>(std::ranges::count_if(results.rows(), is_error)),
                       std::memory_order_relaxed);
  }
  bool last;
  {
    absl::MutexLock lock(&mutex_);
    SORTITION_CHECK(unanswered_ >= static_cast<uint32_t>(results.rows_size()));
    unanswered_ -= static_cast<uint32_t>(results.rows_size());
    last = unanswered_ == 0;
  }
  for (const StepShard& follower : followers_) {
    follower.owner->AnswerShard(results, follower.frame->bytes, last);
  }
  answers_->Answer(std::move(results), *this, last);
}

}  // namespace sortition::service
