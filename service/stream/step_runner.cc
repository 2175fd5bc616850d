// Steps from their message to the batcher.
#include "service/stream/step_runner.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "service/policy/policy.h"
#include "service/receipt/receipt_book.h"
#include "service/stream/device_needs.h"
#include "service/stream/opening.h"
#include "service/stream/step_in_flight.h"
#include "service/text/judge_row.h"
#include "service/text/mask_digest.h"
#include "service/wire/read_compact_rows.h"
#include "service/wire/region_payloads.h"
#include "service/wire/step_request.h"

namespace sortition::service {
namespace {

// Returns the tokens that a mask allows and does not ban, as words. `packed`: its words if it is packed.
std::vector<uint32_t> ToMaskWords(const PositionMask& mask, std::span<const uint32_t> packed,
                                  uint32_t live_vocabulary) {
  std::vector<uint32_t> words((live_vocabulary + 31) / 32, mask.has_allowed_tokens ? 0 : ~uint32_t{0});
  if (mask.is_packed()) words.assign(packed.begin(), packed.end());
  for (const uint32_t token : mask.allowed_tokens) words[token / 32] |= 1u << token % 32;
  for (const uint32_t token : mask.banned_tokens) words[token / 32] &= ~(1u << token % 32);
  return words;
}

// Sets the hashes of the plan's masks, as the step has sent them.
void HashMasks(const std::vector<RowMaskBits>& masks, uint32_t live_vocabulary, RowPlan* plan) {
  for (size_t i = 0; i < masks.size(); ++i) {
    const PositionMask& mask = plan->masks[i];
    if (!mask.limits()) {
      plan->mask_hashes.emplace_back();
    } else if (mask.banned_tokens.empty()) {
      plan->mask_hashes.emplace_back(mask.is_packed() ? MaskHashOf(masks[i].words(), live_vocabulary)
                                                      : MaskHashOfTokens(mask.allowed_tokens, live_vocabulary));
    } else {
      plan->mask_hashes.emplace_back(MaskHashOf(ToMaskWords(mask, masks[i].words(), live_vocabulary), live_vocabulary));
    }
  }
}

// Says how the row's positions use their edits. Takes those that it copies for bans if the sequence keeps no state,
// which would take them.
std::optional<Refusal> TakeEdits(const SequenceSpec& spec, RowPlan* plan, EditAllowance* allowance) {
  const bool bans =
      std::ranges::any_of(plan->masks, [](const PositionMask& mask) { return !mask.banned_tokens.empty(); });
  const bool in_turn = !plan->compact.empty();
  plan->intent.edits_use = in_turn ? EditsUse::kInTurn : bans ? EditsUse::kChanged : EditsUse::kTogether;
  if (!bans || spec.stateful()) return std::nullopt;
  const bool is_first = allowance->is_whole();
  if (allowance->Take(spec.listed_edits.size() * (in_turn ? 1 : plan->masks.size()))) return std::nullopt;
  Refusal refusal = TooManyEdits(is_first);
  refusal.field = absl::StrCat("step.rows[", plan->row, "].", refusal.field);
  return refusal;
}

// Calls `begin` for each row of a step, but refuses rows of a sequence that several rows name.
template <typename Begin>
void ForEachRow(const StepMessage& message, StepAnswers* now, Begin begin) {
  absl::flat_hash_set<absl::string_view> named;
  absl::flat_hash_set<absl::string_view> twice;  // mostly empty
  named.reserve(message.rows());
  for (const v1::StepRow& row : message.step().rows()) {
    if (!named.insert(row.request_id()).second) twice.insert(row.request_id());
  }
  for (uint32_t index = 0; index < message.rows(); ++index) {
    const v1::StepRow& row = message.row(index);
    if (!twice.empty() && twice.contains(row.request_id())) {
      now->Refuse({index, row.step_id()}, DuplicateRow(index));
    } else {
      begin(index);
    }
  }
}

}  // namespace

void StepRunner::OnStep(Frame frame, const MemoryConnection* memory, Submitter thread) {
  const absl::Time now = engine_.clock().Now();
  auto found = FindRegionPayloads(frame.message.step(), memory);
  const uint64_t received_bytes = frame.bytes;
  RegionPayloads region;
  if (auto* payloads = std::get_if<RegionPayloads>(&found)) region = std::move(*payloads);
  const auto message = std::make_shared<StepMessage>(&engine_, stream_, std::move(frame), std::move(region), now);
  stream_->window->Charge(message->rows(), message->bytes());
  if (const auto* refusal = std::get_if<Refusal>(&found)) return message->Refuse(*refusal);
  std::optional<SharedReadyWord> ready;
  if (auto refusal = Judge(received_bytes, memory, message.get(), &ready)) return message->Refuse(*refusal);
  if (auto refusal = stream_->Register(message)) return message->Refuse(*refusal);
  const std::optional<ShardShape>& shard = message->shape().shard;
  if (shard && shard->index != 0) return shards_.AddOther(message);
  if (shard) return RunShards(message);
  RunWhole(message, std::move(ready), thread);
}

std::optional<Refusal> StepRunner::Judge(uint64_t received_bytes, const MemoryConnection* memory, StepMessage* message,
                                         std::optional<SharedReadyWord>* ready) {
  uint64_t payload_bytes = 0;
  uint64_t shared_bytes = 0;
  for (const Payload& payload : message->payloads()) {
    payload_bytes += payload.size;
    if (payload.range) shared_bytes += payload.size;
  }
  if (auto refusal = account_.Charge(message->rows(), received_bytes + shared_bytes, "step")) return refusal;
  if (shared_bytes > 0) engine_.observer().Count(Counter::kSharedPayloadBytes, shared_bytes);
  engine_.observer().StepReceived(message->rows(), payload_bytes);
  auto shape = ParseStepShape(message->step(), message->payloads(), engine_.limits());
  if (auto* refusal = std::get_if<Refusal>(&shape)) return std::move(*refusal);
  const std::shared_ptr<const TenantPolicy> policy = FindPolicy(engine_, stream_->tenant);
  if (auto refusal = CheckPriority(policy.get(), std::get<StepShape>(shape).priority)) return refusal;
  message->SetShape(std::get<StepShape>(std::move(shape)));
  auto word = FindReadyWord(message->step().logits(), memory);
  if (auto* refusal = std::get_if<Refusal>(&word)) return std::move(*refusal);
  *ready = std::get<std::optional<SharedReadyWord>>(std::move(word));
  return std::nullopt;
}

void StepRunner::RunWhole(const std::shared_ptr<StepMessage>& message, std::optional<SharedReadyWord> ready,
                          Submitter thread) {
  const StepShape& shape = message->shape();
  const auto step = std::make_shared<StepInFlight>(message, message, &engine_.batcher(), &engine_.checkpoint_key(),
                                                   message->step().answer_early());
  message->Attach(step);
  RewriteAllowance rewrites;
  StepAnswers now;
  std::vector<std::unique_ptr<SequenceRow>> compact;
  ForEachRow(*message, &now, [&](uint32_t index) {
    GrantedRow row;
    if (!BeginRow(message.get(), index, &rewrites, &row, &now)) return;
    if (!row.plan.compact.empty()) return compact.push_back(std::make_unique<SequenceRow>(std::move(row)));
    const PayloadView& logits = message->logits();
    const uint64_t first_row = row.plan.tensor_row;
    const uint64_t bytes = uint64_t{row.sequence.spec->live_vocabulary} * kernels::ElementBytes(shape.dtype);
    step->AddRow(std::move(row), [&](uint32_t position, devices::DeviceRow* row) {
      row->segments = logits.Slice((first_row + position) * shape.row_stride, bytes);
      row->may_change = logits.may_change();
      row->imported = logits.imported();
      if (row->imported != nullptr) row->memory = row->imported->memory();
    });
  });
  std::vector<QueuedRow> queued = step->TakeRows();
  if (!queued.empty()) {
    auto refusal = ready ? engine_.unready_steps().Add(*std::move(ready), step, std::move(queued))
                         : engine_.batcher().Submit(step, std::move(queued), thread);
    if (refusal) {
      step->AbortRows();
      for (const auto& run : compact) run->Abort();
      stream_->Unregister(message->batch_id());
      return message->Refuse(*refusal);
    }
  }
  // Devices run the whole rows meanwhile.
  CompactAllowance allowance;
  for (const auto& run : compact) {
    AnswerCompactRow(*message, engine_.checkpoint_key(), run.get(), &allowance, &now);
  }
  if (!compact.empty()) engine_.observer().CompactRows(CountCompact(now, compact.size()));
  if (!now.empty()) message->Answer(std::move(now));
}

void StepRunner::RunShards(const std::shared_ptr<StepMessage>& message) {
  RewriteAllowance rewrites;
  StepAnswers now;
  StepAnswers repeated;
  std::vector<std::unique_ptr<SequenceRow>> runs(message->rows());
  ForEachRow(*message, &now, [&](uint32_t index) {
    if (auto kept = shards_.FindKept(*message, index)) return repeated.Add(*std::move(kept), index);
    GrantedRow row;
    if (BeginRow(message.get(), index, &rewrites, &row, &now))
      runs[index] = std::make_unique<SequenceRow>(std::move(row));
  });
  if (!repeated.empty()) message->Answer(std::move(repeated));
  shards_.AddFirst(message, std::move(runs), std::move(now));
}

bool StepRunner::BeginRow(StepMessage* message, uint32_t index, RewriteAllowance* rewrites, GrantedRow* granted,
                          StepAnswers* now) {
  const v1::StepRow& row = message->row(index);
  const auto refuse = [&](const Refusal& refusal) {
    now->Refuse({index, row.step_id()}, refusal);
    return false;
  };
  if (const Refusal* const refusal = message->FindSetTwice(index)) return refuse(*refusal);
  const RowSequence* const sequence = sequences_.Find(row.request_id());
  if (sequence == nullptr) {
    return refuse({Reason::kUnknownSequence, absl::StrCat("step.rows[", index, "].request_id"), "",
                   "this stream has not opened the sequence"});
  }
  if (const auto refusal = message->FindUnknownInRow(index)) return refuse(*refusal);
  const SequenceSpec& spec = *sequence->spec;
  message->NoteOptions(spec);
  RowPlan& plan = granted->plan;
  std::vector<RowMaskBits>& masks = granted->masks;
  const StepTensors tensors = message->shape().TensorsOf(index);
  if (auto refusal = JudgeRow(ToAsk(row, index), tensors, spec, engine_.limits(), &plan)) return refuse(*refusal);
  if (row.compact().empty()) {
    if (auto refusal = WhyNoDevice(engine_.batcher().keeper(), plan, spec)) return refuse(*refusal);
  }
  if (auto refusal = FindMasks(*message, &plan, &masks)) return refuse(*refusal);
  if (spec.stateful() && !masks.empty()) {
    const uint64_t digest = DigestMasks(plan, masks, spec.live_vocabulary);
    if (digest != 0) plan.intent.options_digest = absl::HashOf(plan.intent.options_digest, digest);
  }
  if (auto refusal = OpenCheckpoint(row, spec, &plan)) return refuse(*refusal);
  if (!row.compact().empty()) {
    auto read =
        ReadCompactRows(row, index, plan.positions(), message->shape(), message->pairs(), spec, engine_.limits());
    if (auto* refusal = std::get_if<Refusal>(&read)) return refuse(*refusal);
    plan.compact = std::get<std::vector<kernels::StatedRow>>(std::move(read));
  }
  if (sequence->receipts != nullptr && plan.kind != RowPlan::Kind::kScore) {
    if (auto refusal = engine_.receipts()->WhyUnable()) {
      refusal->field = absl::StrCat("step.rows[", index, "]");
      return refuse(*refusal);
    }
    HashMasks(masks, spec.live_vocabulary, &plan);
  }
  if (auto refusal = TakeEdits(spec, &plan, &rewrites->edits)) return refuse(*refusal);
  auto answer = GrantRow(*sequence, plan, rewrites);
  if (auto* refusal = std::get_if<Refusal>(&answer)) {
    // A replica that takes over many sequences tells each worker when its turn is.
    if (refusal->reason == Reason::kHistoryRequired) {
      refusal->retry_after =
          engine_.replays().Advice({stream_->owner.tenant, stream_->owner.stream}, plan.intent.position);
    }
    return refuse(*refusal);
  }
  if (auto* result = std::get_if<RowResult>(&answer)) {
    now->Add({*result, plan, spec, sequence->receipts.get(), engine_.checkpoint_key(), message->OwnerOf(index)});
    return false;
  }
  granted->sequence = *sequence;
  granted->grant = std::move(std::get<StepGrant>(answer));
  return true;
}

std::optional<Refusal> StepRunner::FindMasks(const StepMessage& message, RowPlan* plan,
                                             std::vector<RowMaskBits>* masks) const {
  const StepShape& shape = message.shape();
  for (size_t i = 0; i < plan->masks.size(); ++i) {
    const PositionMask& mask = plan->masks[i];
    RowMaskBits& bits = masks->emplace_back();
    if (mask.mask_row) {
      std::vector<uint32_t> words(shape.mask_stride / sizeof(uint32_t));
      message.masks()->Copy(*mask.mask_row * shape.mask_stride, shape.mask_stride, words.data());
      bits = RowMaskBits(std::move(words));
    } else if (mask.uploaded_mask_id) {
      auto found =
          masks_.Find(*mask.uploaded_mask_id, shape.vocabulary, absl::StrCat(MaskField(*plan, i), ".uploaded_mask_id"));
      if (auto* refusal = std::get_if<Refusal>(&found)) return std::move(*refusal);
      bits = RowMaskBits(std::get<std::shared_ptr<const UploadedMask>>(std::move(found)));
    }
  }
  return std::nullopt;
}

std::optional<Refusal> StepRunner::OpenCheckpoint(const v1::StepRow& row, const SequenceSpec& spec,
                                                  RowPlan* plan) const {
  if (row.checkpoint().empty()) return std::nullopt;
  const std::string field = absl::StrCat("step.rows[", plan->row, "].checkpoint");
  CheckpointOwner owner = stream_->OwnerOf(row.request_id());
  owner.identity = HistoryDigest(spec.Identity());
  auto opened = engine_.checkpoint_key().Open(owner, row.checkpoint(), field);
  if (auto* refusal = std::get_if<Refusal>(&opened)) return std::move(*refusal);
  const Checkpoint& checkpoint = std::get<Checkpoint>(opened);
  StepIntent& intent = plan->intent;
  intent.checkpoint = TextPlace{checkpoint.position, checkpoint.history_hash};
  plan->sampler_state = checkpoint.sampler_state;
  intent.options_digest = absl::HashOf(intent.options_digest, checkpoint.sampler_state);
  return std::nullopt;
}

}  // namespace sortition::service
