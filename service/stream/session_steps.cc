// Steps: from the message to the batcher, and from their rows' outcomes to answers.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "service/request/checks.h"
#include "service/request/region_payloads.h"
#include "service/result/encode.h"
#include "service/result/split_results.h"
#include "service/stream/session_impl.h"

namespace sortition::service {
Refusal Session::Impl::Draining() {
  return {Reason::kDraining, "step", "", "this stream is draining; open another one", absl::Milliseconds(10)};
}

Refusal Session::Impl::DuplicateRow(uint32_t index) {
  return {Reason::kDuplicateRow, absl::StrCat("step.rows[", index, "].request_id"), "1 row",
          "the step has several rows for this sequence; none of them is served"};
}

void Session::Impl::OnStep(Frame frame) {
  const absl::Time now = engine_.clock().Now();
  const uint64_t batch_id = frame.message.step().batch_id();
  const uint32_t rows = static_cast<uint32_t>(frame.message.step().rows_size());
  const std::optional<Refusal> unnamed = AddRegionPayloads(frame.message.step(), memory_.get(), &frame.payloads);
  // What was copied is held as if it had come with the message.
  for (const Payload& payload : frame.payloads) {
    if (payload.range && !payload.may_change) frame.bytes += payload.size;
  }
  const uint64_t bytes = frame.bytes;
  {
    absl::MutexLock lock(&mutex_);
    unanswered_rows_ += rows;
    unanswered_bytes_ += bytes;
  }
  if (unnamed) return RefuseStep(batch_id, *unnamed, rows, bytes);
  uint64_t payload_bytes = 0;
  uint64_t shared_bytes = 0;
  for (const Payload& payload : frame.payloads) {
    payload_bytes += payload.size;
    if (payload.range) shared_bytes += payload.size;
  }
  if (auto refusal = client_->Charge(rows, frame_bytes_ + shared_bytes, "step")) {
    return RefuseStep(batch_id, *refusal, rows, bytes);
  }
  if (shared_bytes > 0) engine_.observer().SharedPayload(shared_bytes);
  engine_.observer().StepReceived(rows, payload_bytes);

  auto parsed = ParseStepShape(frame.message.step(), frame.payloads, engine_.limits());
  if (auto* refusal = std::get_if<Refusal>(&parsed)) return RefuseStep(batch_id, *refusal, rows, bytes);
  const StepShape& shape = std::get<StepShape>(parsed);
  auto found = FindReadyWord(frame.message.step().logits(), memory_.get());
  if (auto* refusal = std::get_if<Refusal>(&found)) return RefuseStep(batch_id, *refusal, rows, bytes);
  std::optional<ReadyWord>& ready = std::get<std::optional<ReadyWord>>(found);
  if (shape.shard && shape.shard->index != 0) {
    if (IsDraining()) return RefuseStep(batch_id, Draining(), rows, bytes);
    return OnSlices(shape, std::move(frame), now);
  }

  auto step = std::make_shared<StepInFlight>(batch_id, rows, std::move(frame), &engine_.batcher(), shared_from_this());
  step->arrived = now;
  step->deadline = now + shape.timeout;
  step->priority = shape.priority;
  step->owner = {client_number_, stream_id_};
  step->traced = shape.traced;
  if (auto refusal = RegisterStep(step)) return RefuseStep(batch_id, *refusal, rows, bytes);

  const v1::Step& message = step->frame().message.step();
  const PayloadView logits(step->frame().payloads[shape.logits_payload]);
  std::optional<PayloadView> masks;
  if (shape.mask_payload) masks.emplace(step->frame().payloads[*shape.mask_payload]);
  std::optional<PayloadView> drafts;
  if (shape.draft_payload) drafts.emplace(step->frame().payloads[*shape.draft_payload]);
  RewriteAllowance rewrites;
  absl::flat_hash_map<absl::string_view, int> uses;
  for (const v1::StepRow& row : message.rows()) ++uses[row.request_id()];
  for (int i = 0; i < message.rows_size(); ++i) {
    const v1::StepRow& row = message.rows(i);
    if (uses[row.request_id()] > 1) {
      step->RefuseNow(i, row.step_id(), DuplicateRow(i));
      continue;
    }
    AddStepRow(row, i, shape, {logits, masks, drafts}, &rewrites, step.get());
  }
  if (shape.shard) {
    step->SendWhatIsSettled();
    const absl::Time deadline = now + std::min(shape.timeout, engine_.limits().shard_wait);
    return AddSlices(std::make_shared<SliceMessage>(shape, step, shared_from_this()), step->WaitingRows(), deadline);
  }
  std::vector<QueuedRow> queued = step->TakeRows();
  if (!queued.empty()) {
    auto refusal = ready ? engine_.unready_steps().Add(*std::move(ready), step, std::move(queued))
                         : engine_.batcher().Submit(step, std::move(queued));
    if (refusal) {
      step->AbortRows();
      {
        absl::MutexLock lock(&mutex_);
        steps_.erase(batch_id);
      }
      return RefuseStep(batch_id, *refusal, rows, bytes);
    }
  }
  step->SendImmediate();
}

std::optional<Refusal> Session::Impl::RegisterStep(const std::shared_ptr<StepInFlight>& step) {
  absl::MutexLock lock(&mutex_);
  if (draining_) return Draining();
  if (!steps_.try_emplace(step->batch_id(), step).second) {
    return Refusal{Reason::kContradiction, "step.batch_id", "", "a batch of this id has not been answered yet"};
  }
  return std::nullopt;
}

void Session::Impl::AddStepRow(const v1::StepRow& row, int index, const StepShape& shape,
                               const StepInFlight::Tensors& tensors, RewriteAllowance* rewrites, StepInFlight* step) {
  if (shape.shard && shape.shard->epoch != 0) {
    std::vector<v1::RowResult> kept = engine_.shards().Find(worker(), row, shape.shard->index);
    if (!kept.empty()) return step->RepeatNow(index, std::move(kept));
  }
  const auto it = sequences_.find(row.request_id());
  if (it == sequences_.end()) {
    return step->RefuseNow(index, row.step_id(),
                           Refusal{Reason::kUnknownSequence, absl::StrCat("step.rows[", index, "].request_id"), "",
                                   "this stream has not opened the sequence"});
  }
  const RowSequence& sequence = it->second;
  const SequenceSpec& spec = *sequence.spec;
  auto parsed = ParseStepRow(row, index, shape, spec, engine_.limits());
  if (auto* refusal = std::get_if<Refusal>(&parsed)) return step->RefuseNow(index, row.step_id(), *refusal);
  RowPlan& plan = std::get<RowPlan>(parsed);
  std::vector<RowMaskBits> masks;
  if (auto refusal = FindMasks(shape, tensors, &plan, &masks)) return step->RefuseNow(index, row.step_id(), *refusal);
  if (auto refusal = OpenCheckpoint(row, spec, &plan)) return step->RefuseNow(index, row.step_id(), *refusal);
  auto granted = GrantRow(sequence, plan, rewrites);
  if (auto* refusal = std::get_if<Refusal>(&granted)) {
    // A replica that takes over many sequences says to each worker when its turn is.
    if (refusal->reason == Reason::kHistoryRequired) {
      refusal->retry_after = engine_.replays().Advice(replays_of(), plan.intent.position);
    }
    return step->RefuseNow(index, row.step_id(), *refusal);
  }
  if (auto* result = std::get_if<RowResult>(&granted)) return step->AnswerNow(plan, spec, *result);
  step->AddRow(row.request_id(),
               RowRun(sequence, std::move(plan), std::move(masks), std::move(std::get<StepGrant>(granted))), shape,
               tensors);
}

// The packed masks of the row's positions; each becomes part of what a retry is compared by.
std::optional<Refusal> Session::Impl::FindMasks(const StepShape& shape, const StepInFlight::Tensors& tensors,
                                                RowPlan* plan, std::vector<RowMaskBits>* masks) const {
  for (size_t i = 0; i < plan->masks.size(); ++i) {
    const PositionMask& mask = plan->masks[i];
    RowMaskBits& bits = masks->emplace_back();
    if (mask.mask_row) {
      std::vector<uint32_t> words(shape.mask_stride / sizeof(uint32_t));
      tensors.masks->Copy(*mask.mask_row * shape.mask_stride, shape.mask_stride, words.data());
      bits = RowMaskBits(std::move(words));
    } else if (mask.uploaded_mask_id) {
      auto found =
          masks_.Find(*mask.uploaded_mask_id, shape.vocabulary, absl::StrCat(MaskField(*plan, i), ".uploaded_mask_id"));
      if (auto* refusal = std::get_if<Refusal>(&found)) return std::move(*refusal);
      bits = RowMaskBits(std::get<std::shared_ptr<const UploadedMask>>(std::move(found)));
    }
    if (mask.is_packed()) {
      plan->intent.options_digest = absl::HashOf(plan->intent.options_digest, bits.digest());
    }
  }
  return std::nullopt;
}

std::optional<Refusal> Session::Impl::OpenCheckpoint(const v1::StepRow& row, const SequenceSpec& spec,
                                                     RowPlan* plan) const {
  if (row.checkpoint().empty()) return std::nullopt;
  const std::string field = absl::StrCat("step.rows[", plan->row, "].checkpoint");
  auto opened = engine_.checkpoint_key().Open(OwnerOf(row.request_id(), spec), row.checkpoint(), field);
  if (auto* refusal = std::get_if<Refusal>(&opened)) return std::move(*refusal);
  const Checkpoint& checkpoint = std::get<Checkpoint>(opened);
  StepIntent& intent = plan->intent;
  intent.checkpoint = TextPlace{checkpoint.position, checkpoint.history_hash};
  plan->sampler_state = checkpoint.sampler_state;
  intent.options_digest = absl::HashOf(intent.options_digest, checkpoint.sampler_state);
  return std::nullopt;
}

CheckpointOwner Session::Impl::OwnerOf(const std::string& request_id, const SequenceSpec& spec) const {
  return {tenant_, worker_session_, request_id, HistoryDigest(spec.Identity())};
}

std::string Session::Impl::SealCheckpoint(const std::string& request_id, const SequenceSpec& spec,
                                          const Checkpoint& checkpoint) const {
  return engine_.checkpoint_key().Seal(OwnerOf(request_id, spec), checkpoint);
}

void Session::Impl::OnCancel(const v1::CancelStep& cancel) {
  std::shared_ptr<StepInFlight> step;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = steps_.find(cancel.batch_id());
    if (it != steps_.end()) step = it->second.lock();
  }
  if (step == nullptr) return;  // answered already: the answer and the cancel crossed
  step->Cancel();
  engine_.batcher().Sweep();
}

void Session::Impl::Answer(v1::StepResults results, const StepInFlight& step, bool last) {
  const uint32_t tokens = TokensDrawn(results);
  for (const v1::RowResult& row : results.rows()) {
    if (row.has_error()) engine_.observer().Refused(static_cast<Reason>(row.error().reason()), 1);
  }
  if (tokens > 0) engine_.observer().TokensDrawn(tokens);
  if (last) {
    const absl::Duration latency = engine_.clock().Now() - step.arrived;
    engine_.observer().StepAnswered(latency);
    if (step.traced) {
      const v1::TraceContext& trace = step.frame().message.step().trace();
      engine_.event_log().StepTraced({worker_session_, trace.traceparent(), trace.tracestate(), step.batch_id(),
                                      step.rows(), step.refused_rows(), latency});
    }
    absl::MutexLock lock(&mutex_);
    steps_.erase(step.batch_id());
  }
  const SentRelease release{AnsweredRows(results), last ? step.frame_bytes() : 0};
  if (!Wanted()) return OnSent(release);  // nobody is told that nobody waits any more
  v1::StreamResponse response;
  *response.mutable_results() = std::move(results);
  Send(std::move(response), release);
}

void Session::Impl::RefuseStep(uint64_t batch_id, const Refusal& refusal, uint32_t rows, uint64_t bytes) {
  engine_.observer().Refused(refusal.reason, std::max(rows, 1u));
  v1::StreamResponse response;
  response.mutable_results()->set_batch_id(batch_id);
  EncodeError(refusal, response.mutable_results()->mutable_error());
  Send(std::move(response), SentRelease{rows, bytes});
}

}  // namespace sortition::service
