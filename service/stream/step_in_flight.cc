// Rows to the batcher, outcomes to messages.
#include "service/stream/step_in_flight.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/check.h"
#include "service/request/payload_view.h"
#include "service/result/encode.h"
#include "service/result/encode_outcome.h"
#include "service/result/split_results.h"
#include "service/sequence/row_of.h"

namespace sortition::service {
namespace {

// What a step's rows are sampled with where it asks for more than its sequence.
std::optional<kernels::RowParameters> MoreParameters(const PositionPlan& plan, const SequenceSpec& spec) {
  if (!plan.return_probabilities) return std::nullopt;
  kernels::RowParameters parameters = spec.parameters;
  parameters.processed_logprob = parameters.kept_tokens = true;
  return parameters;
}

// The drafter's probabilities of draft `index`; `memory` holds dense ones that arrived in pieces.
void SetDraftDistribution(const PositionPlan& plan, uint32_t index, const StepShape& shape,
                          const std::optional<PayloadView>& drafts, kernels::DraftDistribution* draft,
                          std::vector<std::byte>* memory) {
  if (!plan.sparse.empty()) {
    draft->form = kernels::DraftDistribution::Form::kSparse;
    draft->sparse_tokens = plan.sparse[index].tokens;
    draft->sparse_bits = plan.sparse[index].bits;
  } else if (plan.draft_row) {
    draft->form = kernels::DraftDistribution::Form::kDense;
    draft->dtype = shape.draft_dtype;
    const uint64_t begin = (*plan.draft_row + index) * shape.draft_stride;
    const auto segments = drafts->Slice(begin, shape.draft_stride);
    SORTITION_CHECK(!drafts->may_change());
    if (segments.size() == 1) {
      draft->dense = segments[0].data;
    } else {
      memory->resize(shape.draft_stride);
      drafts->Copy(begin, shape.draft_stride, memory->data());
      draft->dense = memory->data();
    }
  }
}

// Where a row's logits begin in the tensor of a slice.
uint64_t FirstTensorRow(const StepShard& shard, uint32_t index) {
  const v1::StepRow& row = shard.frame->message.step().rows(static_cast<int>(index));
  return row.has_tensor_row() ? row.tensor_row() : shard.shape.first_rows[index];
}

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

std::string MaskField(const v1::StepRow& row, int index, size_t number) {
  const std::string path = absl::StrCat("step.rows[", index, "].");
  if (row.has_mask()) return path + "mask";
  return absl::StrCat(path, row.has_verify_tree() ? "verify_tree" : "verify_chain", ".masks[", number, "]");
}

StepInFlight::StepInFlight(uint64_t batch_id, uint32_t rows, Frame frame, SequenceTable* sequences, Batcher* batcher,
                           std::shared_ptr<StepAnswers> answers)
    : batch_id_(batch_id),
      rows_(rows),
      frame_(std::move(frame)),
      sequences_(*sequences),
      batcher_(*batcher),
      answers_(std::move(answers)),
      unanswered_(rows) {
  immediate_.set_batch_id(batch_id);
}

void StepInFlight::AddRow(uint32_t index, std::string request_id, const StreamSequence& sequence,
                          StepRowRequest request, std::optional<StepGrant> grant, std::vector<RowMaskBits> masks,
                          const StepShape& shape, const Tensors& tensors) {
  auto row = std::make_unique<Row>();
  row->index = index;
  row->sequence = sequence;
  row->request = std::move(request);
  row->grant = std::move(grant);
  row->masks = std::move(masks);
  row->parameters = MoreParameters(row->request.plan, *row->sequence.spec);
  const uint32_t positions = row->request.plan.positions();
  row->missing = positions;
  row->runs_in_order = positions > 1 && kernels::KeepsSamplerState(sequence.spec->parameters.chain);
  row->results.resize(positions);
  row->positions.resize(positions);
  for (uint32_t i = 0; i < positions; ++i) AddPosition(i, request_id, shape, tensors, row.get());
  running_.push_back(std::move(row));
}

void StepInFlight::AddPosition(uint32_t index, const std::string& request_id, const StepShape& shape,
                               const Tensors& tensors, Row* row) {
  const SequenceSpec& spec = *row->sequence.spec;
  const PositionPlan& plan = row->request.plan;
  Position& position = row->positions[index];
  position.queued.index = static_cast<uint32_t>(queued_.size());
  position.queued.sequence = request_id;
  if (!shape.shard) {
    position.queued.row.segments =
        tensors.logits.Slice((row->request.tensor_row + index) * shape.row_stride,
                             uint64_t{spec.live_vocabulary} * kernels::ElementBytes(shape.dtype));
    position.queued.row.may_change = tensors.logits.may_change();
  }
  const PositionView* const view = row->grant ? &row->grant->views[index] : nullptr;
  kernels::RowRequest& kernel = position.queued.row.request;
  kernel = RowOf(spec, view, row->request.intent.position + plan.DepthOf(index), row->request.draw_salt);
  kernel.dtype = shape.dtype;
  kernel.parameters = &row->sampled_with();
  kernel.sampler_state = row->request.sampler_state;
  if (!plan.masks.empty()) {
    const size_t at = plan.masks.size() == 1 ? 0 : index;
    const PositionMask& mask = plan.masks[at];
    if (mask.has_allowed_tokens && spec.has_allowed_tokens) {
      std::ranges::set_intersection(spec.allowed_tokens, mask.allowed_tokens, std::back_inserter(position.allowed));
      kernel.allowed_tokens = position.allowed;
    } else if (mask.has_allowed_tokens) {
      kernel.has_allowed_tokens = true;
      kernel.allowed_tokens = mask.allowed_tokens;
    }
    const std::span<const uint32_t> words = row->masks[at].words();
    kernel.allowed_bits = words.empty() ? nullptr : words.data();
  }
  if (plan.kind != PositionPlan::Kind::kScore) ForceToken(view, &kernel);
  if (plan.kind == PositionPlan::Kind::kScore) {
    kernel.task = kernels::RowTask::kScore;
    kernel.given = plan.scored[index];
  } else if (const std::optional<uint32_t> draft = plan.FirstDraftAfter(index)) {
    kernel.given = plan.ahead.tokens[*draft];
    if (plan.kind == PositionPlan::Kind::kReject) {
      kernel.task = kernels::RowTask::kVerify;
      SetDraftDistribution(plan, *draft, shape, tensors.drafts, &kernel.draft, &position.draft);
    } else {
      kernel.likely = kernel.given;
    }
  }
  queued_.emplace_back(row, index);
}

void StepInFlight::AnswerNow(uint32_t index, const StepRowRequest& request, const StreamSequence& sequence,
                             const StepAnswer& answer) {
  EncodeAnswer(index, request, *sequence.spec, answer.outcome, answer.history_hash, &immediate_);
}

void StepInFlight::RefuseNow(uint32_t index, uint64_t step_id, const Refusal& refusal) {
  v1::RowResult* result = immediate_.add_rows();
  result->set_row(index);
  result->set_step_id(step_id);
  EncodeError(refusal, result->mutable_error());
}

std::optional<Refusal> StepInFlight::SetShards(const std::vector<StepShard>& shards) {
  for (const StepShard& shard : shards) {
    for (const auto& row : running_) {
      if (FirstTensorRow(shard, row->index) + row->positions.size() <= shard.shape.tensor_rows) continue;
      return Refusal{Reason::kOutOfRange, absl::StrCat("step.rows[", row->index, "].tensor_row"),
                     absl::StrCat("< ", shard.shape.tensor_rows),
                     absl::StrCat("the tensor of slice ", shard.shape.shard->index, " has no such row")};
    }
  }
  for (const StepShard& shard : shards) {
    const PayloadView logits(shard.frame->payloads[shard.shape.logits_payload]);
    for (auto& row : running_) {
      const uint32_t live = row->sequence.spec->live_vocabulary;
      if (live <= shard.first_token()) continue;  // padding, all of it
      const uint64_t bytes =
          uint64_t{std::min(shard.shape.width, live - shard.first_token())} * kernels::ElementBytes(shard.shape.dtype);
      for (size_t i = 0; i < row->positions.size(); ++i) {
        const auto slice = logits.Slice((FirstTensorRow(shard, row->index) + i) * shard.shape.row_stride, bytes);
        devices::DeviceRow& queued = row->positions[i].queued.row;
        queued.segments.insert(queued.segments.end(), slice.begin(), slice.end());
        queued.may_change |= logits.may_change();
      }
    }
    if (shard.step == nullptr) followers_.push_back(shard);
  }
  return std::nullopt;
}

std::vector<QueuedRow> StepInFlight::TakeRows() {
  std::vector<QueuedRow> rows;
  rows.reserve(queued_.size());
  for (const auto& [row, position] : queued_) {
    if (position == 0 || !row->runs_in_order) rows.push_back(std::move(row->positions[position].queued));
  }
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
  std::vector<QueuedRow> following;
  for (RowOutcome& outcome : outcomes) {
    const auto [row, position] = queued_[outcome.index];
    const bool is_complete = row->runs_in_order
                                 ? CollectInOrder(row, position, std::move(outcome.result), wanted, &following)
                                 : Collect(row, position, std::move(outcome.result));
    if (!is_complete) continue;
    if (wanted) {
      Encode(row, &results);
    } else {
      // Counted as answered all the same, so that the books close: the stream's, and those of streams of other slices.
      v1::RowResult* const result = results.add_rows();
      result->set_row(row->index);
      result->set_step_id(row->request.intent.step_id);
      EncodeError(Refusal{Reason::kStepCancelled, "", "", "the stream of the step has ended"}, result->mutable_error());
      if (row->grant) row->sequence.state->Abort(row->grant->ticket);
    }
    if (row->grant) sequences_.Touch(*row->sequence.key, row->sequence.state.get());
    // Before the answer leaves: who has it may count on the room of a mask that was released.
    row->masks.clear();
  }
  // Devices go on while the answers are written.
  if (!following.empty()) batcher_.Continue(shared_from_this(), std::move(following));
  if (results.rows_size() > 0) Send(std::move(results));
}

bool StepInFlight::CollectInOrder(Row* row, uint32_t position, PositionResult result, bool wanted,
                                  std::vector<QueuedRow>* following) const {
  // One position at a time is with the batcher, so nobody else looks at the row.
  row->results[position] = std::move(result);
  if (!wanted) return true;
  const PositionResult& taken = *row->results[position];
  const std::optional<uint32_t> next =
      PositionAfter(row->request.plan, row->sequence.spec->stop_tokens, position, taken);
  if (!next) return true;
  QueuedRow& queued = row->positions[*next].queued;
  // The token that the text goes on with is the answer's, whether it was drawn, accepted or given.
  queued.row.request.sampler_state = std::get<kernels::RowAnswer>(taken).sampler_state;
  following->push_back(std::move(queued));
  return false;
}

bool StepInFlight::Collect(Row* row, uint32_t position, PositionResult result) {
  if (row->positions.size() == 1) {
    row->results[0] = std::move(result);
    return true;
  }
  absl::MutexLock lock(&mutex_);
  row->results[position] = std::move(result);
  return --row->missing == 0;
}

void StepInFlight::Encode(Row* row, v1::StepResults* out) {
  const StepIntent& intent = row->request.intent;
  const PositionPlan& plan = row->request.plan;
  const auto refuse = [&](const Refusal& refusal) {
    v1::RowResult* result = out->add_rows();
    result->set_row(row->index);
    result->set_step_id(intent.step_id);
    EncodeError(refusal, result->mutable_error());
  };
  auto walked = Walk(plan, row->sequence.spec->stop_tokens, absl::MakeSpan(row->results));
  if (auto* failed = std::get_if<FailedPosition>(&walked)) {
    if (row->grant) row->sequence.state->Abort(row->grant->ticket);
    auto* refusal = std::get_if<Refusal>(&failed->why);
    if (refusal != nullptr) return refuse(*refusal);
    return refuse(WhyUnusable(*row, *failed));
  }
  StepOutcome& outcome = std::get<StepOutcome>(walked);
  const SequenceSpec& spec = *row->sequence.spec;
  if (!row->grant || plan.kind == PositionPlan::Kind::kScore) {
    if (row->grant) row->sequence.state->Abort(row->grant->ticket);
    return EncodeAnswer(row->index, row->request, spec, outcome, std::nullopt, out);
  }
  auto committed = row->sequence.state->Commit(row->grant->ticket, std::move(outcome));
  if (auto* refusal = std::get_if<Refusal>(&committed)) return refuse(*refusal);
  const StepAnswer& kept = std::get<StepAnswer>(committed);
  EncodeAnswer(row->index, row->request, spec, kept.outcome, kept.history_hash, out);
}

Refusal StepInFlight::WhyUnusable(const Row& row, const FailedPosition& failed) const {
  Refusal refusal = RefusalOf(std::get<kernels::RowAnswer>(failed.why), row.index);
  const size_t mask = row.masks.size() == 1 ? 0 : failed.index;
  if (refusal.reason == Reason::kNoLiveToken && mask < row.masks.size() &&
      row.masks[mask].AllowsNone(row.sequence.spec->live_vocabulary)) {
    const int index = static_cast<int>(row.index);
    refusal.field = MaskField(frame_.message.step().rows(index), index, mask);
    refusal.message = "the mask allows no token";
  }
  if (row.positions.size() > 1) absl::StrAppend(&refusal.message, ", on the row's tensor row ", failed.index);
  return refusal;
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
  for (v1::StepResults& message : SplitResults(std::move(results))) {
    const uint32_t rows = AnsweredRows(message);
    bool last;
    {
      absl::MutexLock lock(&mutex_);
      SORTITION_CHECK(unanswered_ >= rows);
      unanswered_ -= rows;
      last = unanswered_ == 0;
    }
    for (const StepShard& follower : followers_) {
      follower.owner->AnswerShard(message, follower.frame->bytes, last);
    }
    answers_->Answer(std::move(message), *this, last);
  }
}

}  // namespace sortition::service
