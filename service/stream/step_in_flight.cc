// A step's rows: to the batcher position by position, and back as results.
#include "service/stream/step_in_flight.h"

#include <utility>

#include "kernels/check.h"
#include "service/arena_message.h"
#include "service/receipt/receipt_book.h"
#include "service/result/encode_result.h"
#include "service/result/receipts_of.h"
#include "service/result/split_results.h"

namespace sortition::service {
namespace {

// Memory for the answers of rows that are plain draws. Others take more blocks of the same size.
constexpr size_t kArenaBytes = 512;
constexpr size_t kArenaRowBytes = 256;

// Returns row `row` of a step's draft probabilities. `memory` holds the bytes of one that came in pieces.
const std::byte* DraftProbabilities(const PayloadView& drafts, uint32_t row, uint64_t stride,
                                    std::vector<std::byte>* memory) {
  SORTITION_CHECK(!drafts.may_change());
  const auto segments = drafts.Slice(row * stride, stride);
  if (segments.size() == 1) return segments[0].data;
  memory->resize(stride);
  drafts.Copy(row * stride, stride, memory->data());
  return memory->data();
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

void EncodeRowResult(const StepMessage& message, const CheckpointKey& key, const RowPlan& plan,
                     const SequenceSpec& spec, ReceiptChain* receipts, const RowResult& result, v1::StepResults* out) {
  const int first = out->rows_size();
  EncodeResult(result, plan, spec, {plan.row, plan.intent.step_id}, out->mutable_rows());
  if (receipts != nullptr && plan.kind != RowPlan::Kind::kScore) {
    std::string records = receipts->Add(ReceiptsOf(result, plan, spec));
    if (!records.empty()) out->mutable_rows(out->rows_size() - 1)->set_receipts(std::move(records));
  }
  if (!kernels::KeepsSamplerState(spec.parameters.chain)) return;
  // The state after the last of the result's tokens.
  const Checkpoint checkpoint = {result.outputs.back().sampler_state,
                                 plan.intent.position + static_cast<uint32_t>(result.outputs.size()),
                                 result.history_hash.value_or(0)};
  const CheckpointOwner owner = message.stream().OwnerOf(message.row(plan.row).request_id(), spec);
  SetCheckpoint(key.Seal(owner, checkpoint), out->mutable_rows(first));
}

namespace {

// Ends a row that is complete, and appends its answer.
void Commit(const StepMessage& message, const CheckpointKey& key, RowRun* run, v1::StepResults* out) {
  const RowPlan& plan = run->plan();
  const auto committed = run->Commit();
  if (const auto* refusal = std::get_if<Refusal>(&committed)) {
    return AddRefusal(plan.row, plan.intent.step_id, *refusal, out);
  }
  EncodeRowResult(message, key, plan, run->spec(), run->receipts().get(), std::get<RowResult>(committed), out);
}

}  // namespace

CompactRowCounts CountCompact(const v1::StepResults& now, size_t rows) {
  CompactRowCounts counts;
  uint32_t undecided = 0;
  for (const v1::RowResult& row : now.rows()) {
    if (row.error().reason() != v1::ROW_REQUIRED) continue;
    ++counts.required[static_cast<size_t>(row.error().required(0).cause() - v1::RequiredLogits::CAUSE_TOKENS)];
    ++undecided;
  }
  counts.decided = static_cast<uint32_t>(rows) - undecided;
  return counts;
}

void AnswerCompactRow(const StepMessage& message, const CheckpointKey& key, RowRun* run, CompactAllowance* allowance,
                      v1::StepResults* out) {
  const StepShape& shape = message.shape();
  std::vector<std::byte> memory;
  const auto dense_at = [&](uint32_t index) -> const void* {
    const std::optional<uint32_t> row = run->DraftRowAt(index);
    return row ? DraftProbabilities(*message.drafts(), *row, shape.draft_stride, &memory) : nullptr;
  };
  run->RunCompact(dense_at, shape.draft_dtype, allowance);
  Commit(message, key, run, out);
}

class StepInFlight::Answers {
 public:
  explicit Answers(size_t rows) : arena_(Options(rows)) { results_.mutable_rows()->Reserve(static_cast<int>(rows)); }
  v1::StepResults& results() { return results_; }

 private:
  static google::protobuf::ArenaOptions Options(size_t rows) {
    google::protobuf::ArenaOptions options;
    options.start_block_size = kArenaBytes + kArenaRowBytes * rows;
    options.max_block_size = options.start_block_size;
    return options;
  }

  google::protobuf::Arena arena_;
  v1::StepResults& results_ = *NewInArena<v1::StepResults>(&arena_);
};

StepInFlight::~StepInFlight() = default;

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

void StepInFlight::AddPositions(Row& row, SetLogits set_logits) {
  SORTITION_CHECK(rows_.size() <= message_->rows());
  const StepShape& shape = message_->shape();
  const RowRun& run = row.run;
  for (uint32_t index = 0; index < run.plan().positions(); ++index) {
    QueuedRow& queued = (index < run.first_positions() ? first_ : row.following).emplace_back();
    queued.index = static_cast<uint32_t>(queued_.size());
    queued.sequence = message_->row(run.plan().row).request_id();
    set_logits(index, &queued.row);
    const std::byte* dense = nullptr;
    if (const std::optional<uint32_t> draft_row = run.DraftRowAt(index)) {
      std::vector<std::byte>& memory = row.drafts.emplace_back();
      dense = DraftProbabilities(*message_->drafts(), *draft_row, shape.draft_stride, &memory);
    }
    queued.row.request = run.RequestAt(index, shape.dtype, dense, shape.draft_dtype);
    queued_.emplace_back(&row, index);
  }
}

std::vector<QueuedRow> StepInFlight::TakeRows() {
  absl::MutexLock lock(&mutex_);
  not_gathered_ = rows_.size();
  return std::move(first_);
}

void StepInFlight::AbortRows() {
  for (Row& row : rows_) row.run.Abort();
}

void StepInFlight::Deliver(std::span<const QueuedOutput> outputs) {
  auto answers = std::make_unique<Answers>(outputs.size());
  const bool wanted = !message_->stream().closed();
  std::vector<QueuedRow> following;
  for (const QueuedOutput& output : outputs) {
    const auto [row, position] = queued_[output.index];
    const RowRun::Progress progress = Take(&row->run, position, output);
    if (progress.next && wanted) {
      QueuedRow& next = row->following[progress.next->index - row->run.first_positions()];
      progress.next->Set(&next.row.request);
      following.push_back(std::move(next));
    } else if (progress.next || progress.is_complete) {
      End(&row->run, wanted, &answers->results());
    }
  }
  // Devices continue while the answers are written.
  const bool more_follow = !following.empty();
  if (more_follow) batcher_.Continue(shared_from_this(), std::move(following));
  answers = Gather(std::move(answers), more_follow);
  if (answers != nullptr && answers->results().rows_size() > 0) sink_->Answer(&answers->results());
}

RowRun::Progress StepInFlight::Take(RowRun* run, uint32_t position, const QueuedOutput& output) {
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
void StepInFlight::End(RowRun* run, bool wanted, v1::StepResults* out) {
  const RowPlan& plan = run->plan();
  if (!wanted) {
    run->Abort();
    const Refusal ended{Reason::kStepCancelled, "", "", "the stream of the step has ended"};
    return AddRefusal(plan.row, plan.intent.step_id, ended, out);
  }
  Commit(*message_, key_, run, out);
}

// An answer waits for the rows that a device has, but not for rows that are still queued: those may take any time, and
// may pass their deadline.
std::unique_ptr<StepInFlight::Answers> StepInFlight::Gather(std::unique_ptr<Answers> answers, bool more_follow) {
  if (early_) return answers;
  v1::StepResults& results = answers->results();
  const uint32_t rows = AnsweredRows(results);
  absl::MutexLock lock(&mutex_);
  SORTITION_CHECK(rows <= not_gathered_);
  not_gathered_ -= rows;
  if (held_ == nullptr && not_gathered_ == 0) return answers;
  held_bytes_ += results.ByteSizeLong();
  if (held_ == nullptr) {
    held_ = std::move(answers);
  } else {
    held_->results().mutable_rows()->MergeFrom(results.rows());
  }
  if (not_gathered_ > 0 && !more_follow && waiting_rows() == 0 && held_bytes_ < kMaxAnswerBytes) return nullptr;
  held_bytes_ = 0;
  return std::move(held_);
}

}  // namespace sortition::service
