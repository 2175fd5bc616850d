// Steps from their message to the batcher.
#include "service/stream/step_runner.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "kernels/law/row_law.h"
#include "service/policy/policy.h"
#include "service/receipt/receipt_book.h"
#include "service/stream/device_needs.h"
#include "service/stream/opening.h"
#include "service/text/cost.h"
#include "service/text/judge_row.h"
#include "service/text/mask_digest.h"
#include "service/wire/read_compact_rows.h"
#include "service/wire/region_payloads.h"
#include "service/wire/step_request.h"

namespace sortition::service {
namespace {

// Returns the price of what masks take: to copy and hash packed ones, and to cut lists to those of the sequence.
uint64_t MaskCost(const RowPlan& plan, const SequenceSpec& spec) {
  uint64_t cost = 0;
  for (const PositionMask& mask : plan.masks) {
    if (mask.is_packed() || spec.receipts) cost += price::kMaskWord * (spec.vocabulary / 32 + 1);
    if (!mask.has_allowed_tokens) continue;
    size_t most = 0;
    spec.AnyOptions([&](const PhaseOptions& options) {
      most = std::max(most, options.allowed_tokens.size());
      return false;
    });
    if (most > 0) cost += price::kComparedToken * (most + mask.allowed_tokens.size());
  }
  return cost;
}

// Edits that a row makes for its bans.
struct BanEdits {
  uint64_t bans = 0;    // one for each banned token at each position
  uint64_t copies = 0;  // of the sequence's, if it keeps no state, which would take them

  uint64_t Cost() const { return price::kFoundEdit * bans + price::kCopiedEdit * copies; }
  uint64_t Bytes() const { return (bans + copies) * sizeof(kernels::LogitEdit); }
};

// Says how the row's positions use their edits.
BanEdits SetEditsUse(const SequenceSpec& spec, RowPlan* plan) {
  const uint64_t positions = plan->masks.size() == 1 ? plan->positions() : 1;  // of each mask
  BanEdits edits;
  for (const PositionMask& mask : plan->masks) edits.bans += positions * mask.banned_tokens.size();
  const bool in_turn = !plan->compact.empty();
  plan->intent.edits_use = in_turn ? EditsUse::kInTurn : edits.bans > 0 ? EditsUse::kChanged : EditsUse::kTogether;
  if (edits.bans > 0 && !spec.stateful()) edits.copies = spec.listed_edits.size() * (in_turn ? 1 : plan->masks.size());
  return edits;
}

// Returns the most memory of the kept sets and probabilities in the row's result.
uint64_t MostListBytes(const RowPlan& plan, const SequenceSpec& spec) {
  const uint64_t probabilities = plan.return_probabilities ? spec.live_vocabulary * sizeof(float) : 0;
  if (!spec.parameters.kept_tokens && probabilities == 0) return 0;
  // A phase may keep more than the text outside of it.
  const uint64_t kept =
      spec.history.phases.empty() ? law::MostKept(spec.parameters, spec.live_vocabulary) : spec.live_vocabulary;
  return plan.positions() * (kept * sizeof(kernels::TokenBits) + probabilities);
}

}  // namespace

void StepRunner::OnStep(Frame frame, const MemoryConnection* memory, Submitter thread) {
  const absl::Time now = engine_.clock().Now();
  auto found = FindRegionPayloads(frame.message.step(), memory);
  const bool is_long = stream_->PauseAfterReading(frame);
  RegionPayloads region;
  if (auto* payloads = std::get_if<RegionPayloads>(&found)) region = std::move(*payloads);
  const auto message = std::make_shared<StepMessage>(&engine_, stream_, std::move(frame), std::move(region), now);
  stream_->window->Charge(message->rows(), message->bytes());
  if (const auto* refusal = std::get_if<Refusal>(&found)) return message->Refuse(*refusal);
  pieces_.emplace(message, memory, thread);
  if (!is_long) TakePiece();
}

StepRunner::StepInPieces::StepInPieces(std::shared_ptr<StepMessage> step, const MemoryConnection* regions,
                                       Submitter from)
    : message(std::move(step)), memory(regions), thread(from) {}

bool StepRunner::Begin(StepInPieces* step) {
  const std::shared_ptr<StepMessage>& message = step->message;
  auto refusal = Judge(step);
  if (!refusal) refusal = stream_->Register(message);
  if (refusal) {
    message->Refuse(*refusal);
    return false;
  }
  const std::optional<ShardShape>& shard = message->shape().shard;
  if (shard && shard->index != 0) {
    shards_.AddOther(message);
    return false;
  }
  step->bill = Bill(message->sent_bytes());
  step->twice = FindNamedTwice(message->step());
  if (!shard) {
    step->whole = std::make_shared<StepInFlight>(message, message, &engine_.batcher(), &engine_.checkpoint_key(),
                                                 message->step().answer_early());
    message->Attach(step->whole);
  }
  return true;
}

void StepRunner::TakePiece() {
  if (stream_->closed()) return AbortPieces();
  StepInPieces& step = *pieces_;
  if (!std::exchange(step.judged, true) && !Begin(&step)) return pieces_.reset();
  step.bill.BeginPiece();
  bool done = BeginRows(&step);
  AnswerRepeated(&step);
  if (done) {
    Submit(&step);
    done = RunCompactRows(&step);
  }
  const uint64_t work = step.bill.piece_work();
  engine_.Spend(&account_, work);
  if (done) return pieces_.reset();
  stream_->pause = engine_.ledger().PauseAfter(work);
  step.thread = Submitter::kBusy;
}

std::optional<Refusal> StepRunner::Judge(StepInPieces* step) {
  StepMessage* const message = step->message.get();
  uint64_t payload_bytes = 0;
  for (const Payload& payload : message->payloads()) payload_bytes += payload.size;
  if (auto refusal = account_.Charge(message->rows(), message->sent_bytes(), "step")) return refusal;
  const uint64_t shared_bytes = message->shared_bytes();
  if (shared_bytes > 0) engine_.observer().Count(Counter::kSharedPayloadBytes, shared_bytes);
  engine_.observer().StepReceived(message->rows(), payload_bytes);
  auto shape = ParseStepShape(message->step(), message->payloads(), engine_.limits());
  if (auto* refusal = std::get_if<Refusal>(&shape)) return std::move(*refusal);
  const std::shared_ptr<const TenantPolicy> policy = FindPolicy(engine_, stream_->tenant);
  if (auto refusal = CheckPriority(policy.get(), std::get<StepShape>(shape).priority)) return refusal;
  message->SetShape(std::get<StepShape>(std::move(shape)));
  auto word = FindReadyWord(message->step().logits(), step->memory);
  if (auto* refusal = std::get_if<Refusal>(&word)) return std::move(*refusal);
  step->ready = std::get<std::optional<SharedReadyWord>>(std::move(word));
  return std::nullopt;
}

bool StepRunner::BeginRows(StepInPieces* step) {
  const StepMessage& message = *step->message;
  for (; step->begun < message.rows(); ++step->begun) {
    if (step->bill.piece_is_full()) return false;
    const uint32_t index = step->begun;
    const v1::StepRow& row = message.row(index);
    if (!step->twice.empty() && step->twice.contains(row.request_id())) {
      step->now.Refuse({index, row.step_id()}, DuplicateRow(index));
      continue;
    }
    const bool is_shard = step->whole == nullptr;
    if (is_shard) {
      if (const SharedAnswer kept = shards_.FindKept(message, index)) {
        step->bill.Add(price::kShardAnswer + price::kAnswerByte * kept->bytes);
        step->message->ChargeLists(kept->bytes);
        step->repeated.Add(kept->answer, index);
        continue;
      }
    }
    GrantedRow granted;
    if (!BeginRow(step, index, &granted)) continue;
    if (is_shard) {
      step->runs.resize(message.rows());
      step->runs[index] = std::make_unique<SequenceRow>(std::move(granted));
    } else if (!granted.plan.compact.empty()) {
      step->runs.push_back(std::make_unique<SequenceRow>(std::move(granted)));
    } else {
      AddWhole(step, std::move(granted));
    }
  }
  return true;
}

void StepRunner::AddWhole(StepInPieces* step, GrantedRow row) {
  const StepMessage& message = *step->message;
  const PayloadView& logits = message.logits();
  const uint64_t first_row = row.plan.tensor_row;
  const uint64_t bytes = uint64_t{row.sequence.spec->live_vocabulary} * kernels::ElementBytes(message.shape().dtype);
  step->whole->AddRow(std::move(row), [&](uint32_t position, devices::DeviceRow* row) {
    row->segments = logits.Slice((first_row + position) * message.shape().row_stride, bytes);
    row->may_change = logits.may_change();
    row->imported = logits.imported();
    if (row->imported != nullptr) row->memory = row->imported->memory();
  });
}

void StepRunner::AnswerRepeated(StepInPieces* step) {
  if (step->repeated.empty()) return;
  step->has_answered = true;
  step->message->Answer(std::exchange(step->repeated, {}));
}

void StepRunner::Submit(StepInPieces* step) {
  if (std::exchange(step->submitted, true)) return;
  if (step->whole == nullptr) {
    step->runs.resize(step->message->rows());
    shards_.AddFirst(step->message, std::move(step->runs), std::move(step->now));
    step->runs.clear();
    return;
  }
  std::vector<QueuedRow> queued = step->whole->TakeRows();
  if (queued.empty()) return;
  auto refusal = step->ready ? engine_.unready_steps().Add(*std::move(step->ready), step->whole, std::move(queued))
                             : engine_.batcher().Submit(step->whole, std::move(queued), step->thread);
  if (!refusal) return;
  for (const auto& run : step->runs) {
    run->Abort();
    if (step->has_answered) step->now.Refuse({run->plan().row, run->plan().intent.step_id}, *refusal);
  }
  step->runs.clear();
  if (step->has_answered) return step->now.Add(step->whole->RefuseRows(*refusal));
  step->whole->AbortRows();
  step->now = {};
  stream_->Unregister(step->message->batch_id());
  step->message->Refuse(*refusal);
}

// Devices run the whole rows meanwhile.
bool StepRunner::RunCompactRows(StepInPieces* step) {
  for (; step->run < step->runs.size(); ++step->run) {
    if (step->bill.piece_is_full()) return false;
    step->bill.BeginRow();
    AnswerCompactRow(*step->message, engine_.checkpoint_key(), step->runs[step->run].get(), &step->bill, &step->now);
  }
  if (!step->runs.empty()) engine_.observer().CompactRows(CountCompact(step->now, step->runs.size()));
  if (!step->now.empty()) step->message->Answer(std::move(step->now));
  return true;
}

void StepRunner::AbortPieces() {
  if (!pieces_) return;
  if (!pieces_->submitted && pieces_->whole != nullptr) pieces_->whole->AbortRows();
  for (size_t run = pieces_->run; run < pieces_->runs.size(); ++run) {
    if (pieces_->runs[run] != nullptr) pieces_->runs[run]->Abort();
  }
  pieces_.reset();
}

bool StepRunner::BeginRow(StepInPieces* step, uint32_t index, GrantedRow* granted) {
  StepMessage& message = *step->message;
  const v1::StepRow& row = message.row(index);
  const auto refuse = [&](const Refusal& refusal) {
    step->now.Refuse({index, row.step_id()}, refusal);
    return false;
  };
  if (const Refusal* const refusal = message.FindSetTwice(index)) return refuse(*refusal);
  const RowSequence* const sequence = sequences_.Find(row.request_id());
  if (sequence == nullptr) {
    return refuse({Reason::kUnknownSequence, absl::StrCat("step.rows[", index, "].request_id"), "",
                   "this stream has not opened the sequence"});
  }
  if (const auto refusal = message.FindUnknownInRow(index)) return refuse(*refusal);
  const SequenceSpec& spec = *sequence->spec;
  message.NoteOptions(spec);
  RowPlan& plan = granted->plan;
  std::vector<RowMaskBits>& masks = granted->masks;
  Bill& bill = step->bill;
  bill.BeginRow();
  const auto too_much = [&] { return refuse(bill.TooMuch(absl::StrCat("step.rows[", index, "]"))); };
  const RowAsk ask = ToAsk(row, index);
  if (!bill.Take(JudgeCost(ask))) return too_much();
  const StepTensors tensors = message.shape().TensorsOf(index);
  if (auto refusal = JudgeRow(ask, tensors, spec, engine_.limits(), &plan)) return refuse(*refusal);
  if (spec.stateful()) plan.intent.options_digest = DigestOptions(plan);
  if (row.compact().empty()) {
    if (auto refusal = WhyNoDevice(engine_.batcher().keeper(), plan, spec)) return refuse(*refusal);
  }
  if (!plan.masks.empty() && !bill.Take(MaskCost(plan, spec))) return too_much();
  if (auto refusal = FindMasks(step, plan, &masks)) return refuse(*refusal);
  const uint64_t draft_bytes = plan.draft_row ? message.CopiedDrafts(plan.drafts()) : 0;
  if (!bill.Take(price::kCopiedWord * (draft_bytes / 4))) return too_much();
  if (spec.stateful() && !masks.empty()) {
    const uint64_t digest = DigestMasks(plan, masks, spec.live_vocabulary);
    if (digest != 0) plan.intent.options_digest = absl::HashOf(plan.intent.options_digest, digest);
  }
  if (auto refusal = OpenCheckpoint(row, spec, &plan)) return refuse(*refusal);
  if (!row.compact().empty()) {
    if (!bill.Take(price::kCompactToken * CompactTokensOf(row))) return too_much();
    auto read = ReadCompactRows(row, index, plan.positions(), message.shape(), message.pairs(), spec, engine_.limits());
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
  const BanEdits banned = SetEditsUse(spec, &plan);
  if (!bill.Take(banned.Cost())) return too_much();
  auto answer = GrantRow(*sequence, plan, &bill);
  if (auto* refusal = std::get_if<Refusal>(&answer)) {
    // A replica that takes over many sequences tells each worker when its turn is.
    if (refusal->reason == Reason::kHistoryRequired) {
      refusal->retry_after =
          engine_.ledger().Advice({stream_->owner.tenant, stream_->owner.stream}, plan.intent.position);
    }
    return refuse(*refusal);
  }
  if (const auto* repeated = std::get_if<RepeatedResult>(&answer)) {
    message.ChargeLists(repeated->bytes);
    StepAnswers one;
    one.Add(
        {*repeated->result, plan, spec, sequence->receipts.get(), engine_.checkpoint_key(), message.OwnerOf(index)});
    if (step->whole != nullptr) {
      step->repeated.Add(std::move(one));
    } else {
      shards_.AnswerRepeated(step->message, std::move(one), &step->now);
    }
    return false;
  }
  const StepGrant& grant = std::get<StepGrant>(answer);
  uint64_t lists = MostListBytes(plan, spec);
  if (!grant.views.empty()) lists += BytesAhead(grant.views, plan.intent.edits_use);
  message.ChargeLists(lists + banned.Bytes() + draft_bytes);
  granted->sequence = *sequence;
  granted->grant = std::move(std::get<StepGrant>(answer));
  return true;
}

std::optional<Refusal> StepRunner::FindMasks(StepInPieces* step, const RowPlan& plan,
                                             std::vector<RowMaskBits>* masks) const {
  const StepMessage& message = *step->message;
  const StepShape& shape = message.shape();
  for (size_t i = 0; i < plan.masks.size(); ++i) {
    const PositionMask& mask = plan.masks[i];
    RowMaskBits& bits = masks->emplace_back();
    if (mask.mask_row) {
      const auto [copy, is_new] = step->masks.try_emplace(*mask.mask_row);
      if (is_new) {
        const auto packed = std::make_shared<PackedMask>();
        step->message->ChargeLists(shape.mask_stride);
        packed->words.resize(shape.mask_stride / sizeof(uint32_t));
        message.masks()->Copy(*mask.mask_row * shape.mask_stride, shape.mask_stride, packed->words.data());
        copy->second = RowMaskBits(packed);
      }
      bits = copy->second;
    } else if (mask.uploaded_mask_id) {
      auto found =
          masks_.Find(*mask.uploaded_mask_id, shape.vocabulary, absl::StrCat(MaskField(plan, i), ".uploaded_mask_id"));
      if (auto* refusal = std::get_if<Refusal>(&found)) return std::move(*refusal);
      bits = RowMaskBits(std::get<std::shared_ptr<const PackedMask>>(std::move(found)));
    }
  }
  return std::nullopt;
}

std::optional<Refusal> StepRunner::OpenCheckpoint(const v1::StepRow& row, const SequenceSpec& spec,
                                                  RowPlan* plan) const {
  if (row.checkpoint().empty()) return std::nullopt;
  const std::string field = absl::StrCat("step.rows[", plan->row, "].checkpoint");
  CheckpointOwner owner = stream_->OwnerOf(row.request_id());
  owner.identity = spec.digest();
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
