// Sequences' options and states to a sampler's rows, late outputs to sequences.
#include "client/local/cuda_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/compact_rows.h"
#include "client/cpp/message.h"
#include "kernels/check.h"

namespace sortition::client {
namespace {

using devices::cuda::CurrentContext;

// Bytes of a row's token and logprob.
constexpr uint64_t kResultBytes = sizeof(int32_t) + sizeof(float);

absl::Status NotOnStream(const char* field) {
  RowError error;
  error.code = absl::StatusCode::kUnimplemented;
  error.reason = v1::NOT_IMPLEMENTED;
  error.field = field;
  error.message = "a sequence on a stream does not have it; LocalSequence::Step waits for tokens, and does";
  return ToStatus(error);
}

absl::Status CheckOptions(const service::SequenceSpec& spec) {
  const service::HistoryOptions& history = spec.history;
  const kernels::RowParameters& parameters = spec.parameters;
  const struct {
    bool is_asked;
    const char* field;
  } checks[] = {{history.dry.on(), "parameters.dry"},
                {history.no_repeat_ngram != 0, "parameters.no_repeat_ngram_size"},
                {history.min_tokens != 0, "parameters.min_tokens"},
                {!history.bad_words.empty(), "parameters.bad_words"},
                {!history.phases.empty(), "parameters.phases"},
                {history.watermark_width != 0, "parameters.watermark"},
                {!history.banned_phrases.empty(), "parameters.banned_phrases"},
                {history.scope != service::PenaltyScope(), "parameters.penalty_scope"},
                {spec.has_allowed_tokens, "parameters.allowed_token_ids"},
                {!spec.logprob_token_ids.empty(), "parameters.logprob_token_ids"},
                {parameters.tempered_logprob, "parameters.tempered_logprobs"},
                {parameters.kept_tokens, "parameters.kept_set"},
                {parameters.kept_log_mass, "parameters.kept_log_mass"}};
  for (const auto& [is_asked, field] : checks) {
    if (is_asked) return NotOnStream(field);
  }
  return absl::OkStatus();
}

absl::Status NoSuchRow(uint32_t row, uint32_t rows) {
  return absl::InvalidArgumentError(absl::StrCat("row: ", row, ", not below ", rows));
}

RowError NoRoom(uint32_t row, uint32_t token) {
  RowError error;
  error.code = absl::StatusCode::kResourceExhausted;
  error.message = absl::StrCat("rows[", row, "]: no room in limits.edits to count token id ", token,
                               ", the last one that was drawn");
  return error;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Create(int device, const CudaLimits& limits) {
  auto context = devices::cuda::Context::OfDevice(device);
  if (!context.ok()) return context.status();
  return CreateOn(*std::move(context), limits);
}

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::CreateOn(std::shared_ptr<devices::cuda::Context> context,
                                                                 const CudaLimits& limits) {
  auto sampler = CudaSampler::State::Create(context, limits, true);
  if (!sampler.ok()) return sampler.status();
  std::unique_ptr<CudaStream> made(new CudaStream(std::move(context), *std::move(sampler), limits));
  if (absl::Status status = made->Open(); !status.ok()) return status;
  return made;
}

CudaStream::CudaStream(std::shared_ptr<devices::cuda::Context> context, std::unique_ptr<CudaSampler::State> sampler,
                       const CudaLimits& limits)
    : context_(std::move(context)), limits_(limits), sampler_(std::move(sampler)), rows_(limits.rows) {}

absl::Status CudaStream::Open() {
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  SORTITION_CUDA_RETURN_IF_ERROR(context_->api(), MemAlloc(&results_, kResultBytes * limits_.rows * kMostTickets));
  return absl::OkStatus();
}

CudaStream::~CudaStream() {
  const CurrentContext current(*context_);
  // Waits for all work of the device first.
  if (results_ != 0) context_->api().MemFree(results_);
}

absl::Status CudaStream::Put(uint32_t row, std::shared_ptr<LocalSequence> sequence) {
  if (row >= limits_.rows) return NoSuchRow(row, limits_.rows);
  const LocalText::StreamStart start = sequence->own_->StartOnStream();
  const service::SequenceSpec& spec = *start.spec;
  if (absl::Status status = CheckOptions(spec); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  const bool is_alone = std::ranges::all_of(rows_, [](const Row& one) { return one.sequence == nullptr; });
  if (spec.live_vocabulary > limits_.vocabulary || (!is_alone && spec.live_vocabulary != vocabulary_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence: a live vocabulary of ", spec.live_vocabulary, ", unlike the limits or another row"));
  }
  // Fails before the row is taken.
  if (start.edits.size() > limits_.edits) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence: has ", start.edits.size(), " logit edits, and limits.edits is ", limits_.edits));
  }
  if (absl::Status status = sampler_->SetRow(row, spec.parameters, start.noise); !status.ok()) return status;
  rows_[row] = {nullptr, ++puts_};
  law::SamplingParameters penalties;
  penalties.repetition_penalty = spec.repetition_penalty;
  penalties.frequency_penalty = spec.frequency_penalty;
  penalties.presence_penalty = spec.presence_penalty;
  absl::Status status = sampler_->SetEdits(row, start.edits);
  if (status.ok()) status = sampler_->SetSamplerState(row, start.sampler_state);
  if (status.ok()) status = sampler_->SetSequence(row, penalties, start.counts);
  if (!status.ok()) return status;
  rows_[row].sequence = std::move(sequence);
  if (is_alone) vocabulary_ = spec.live_vocabulary;
  return absl::OkStatus();
}

absl::Status CudaStream::Clear(uint32_t row) {
  if (row >= limits_.rows) return NoSuchRow(row, limits_.rows);
  absl::MutexLock lock(&mutex_);
  rows_[row] = {nullptr, ++puts_};
  return absl::OkStatus();
}

absl::Status CudaStream::CheckRows(const StreamStep& step) const {
  if (step.rows.empty()) return absl::InvalidArgumentError("rows: a step has one at least");
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const uint32_t row = step.rows[i];
    if (row == kNoRow || (row < limits_.rows && rows_[row].sequence != nullptr)) continue;
    return absl::InvalidArgumentError(absl::StrCat("rows[", i, "]: row ", row, " of the stream has no sequence"));
  }
  return absl::OkStatus();
}

QueuedStep CudaStream::NextBuffers() const {
  const devices::cuda::DevicePointer at = results_ + kResultBytes * limits_.rows * (steps_ % kMostTickets);
  return {0, PointerTo<const int32_t>(at), PointerTo<const float>(at + sizeof(int32_t) * limits_.rows)};
}

absl::StatusOr<QueuedStep> CudaStream::Step(const StreamStep& step, CUstream_st* stream) {
  absl::MutexLock lock(&mutex_);
  if (vocabulary_ == 0) return absl::FailedPreconditionError("Step before a sequence was put into a row");
  if (queued_.size() == kMostTickets) {
    return absl::ResourceExhaustedError(absl::StrCat(kMostTickets, " tickets were not awaited yet"));
  }
  if (absl::Status status = CheckRows(step); !status.ok()) return status;
  if (ElementBytes(step.dtype) == 0) return absl::InvalidArgumentError("dtype: unspecified");
  if (absl::Status status = sampler_->CheckStream(stream, false); !status.ok()) return status;
  QueuedStep made = NextBuffers();
  absl::Status status = sampler_->Bind({.logits = step.logits,
                                        .row_bytes = step.row_bytes,
                                        .dtype = KernelType(step.dtype),
                                        .rows = static_cast<uint32_t>(step.rows.size()),
                                        .vocabulary = vocabulary_,
                                        .tokens = const_cast<int32_t*>(made.tokens),
                                        .logprobs = const_cast<float*>(made.logprobs)},
                                       step.rows);
  if (status.ok() && !sampler_->is_uploaded()) status = sampler_->Upload(stream);
  if (status.ok()) status = sampler_->Sample(stream);
  Queued queued;
  if (status.ok()) status = sampler_->Fetch(stream, &queued.ticket);
  if (!status.ok()) return status;
  for (const uint32_t row : step.rows) queued.rows.push_back({row, row == kNoRow ? 0 : rows_[row].put});
  made.ticket = queued.ticket.number;
  queued_.push_back(std::move(queued));
  ++steps_;
  return made;
}

devices::cuda::EventHandle CudaStream::DoneOf(Ticket ticket) const {
  absl::MutexLock lock(&mutex_);
  return sampler_->DoneOf({ticket});
}

absl::StatusOr<bool> CudaStream::IsDone(Ticket ticket) const {
  const devices::cuda::EventHandle done = DoneOf(ticket);
  if (done == nullptr) return true;
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  const devices::cuda::Result result = context_->api().EventQuery(done);
  if (result == devices::cuda::Result::kNotReady) return false;
  if (absl::Status status = ToStatus(context_->api(), result, "cuEventQuery"); !status.ok()) return status;
  return true;
}

absl::Status CudaStream::Wait(Ticket ticket) const {
  const devices::cuda::EventHandle done = DoneOf(ticket);
  if (done == nullptr) return absl::OkStatus();
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  SORTITION_CUDA_RETURN_IF_ERROR(context_->api(), EventSynchronize(done));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::optional<RowResult>>> CudaStream::Await(Ticket ticket) {
  {
    absl::MutexLock lock(&mutex_);
    if (queued_.empty() || queued_.front().ticket.number != ticket) {
      return absl::InvalidArgumentError(absl::StrCat("ticket: ", ticket, " is not the first that was not awaited"));
    }
  }
  const absl::Status done = Wait(ticket);
  absl::MutexLock lock(&mutex_);
  if (queued_.empty() || queued_.front().ticket.number != ticket) {
    return absl::InvalidArgumentError(absl::StrCat("ticket: ", ticket, " was awaited by another thread"));
  }
  const Queued queued = std::move(queued_.front());
  queued_.erase(queued_.begin());
  if (!done.ok()) return done;
  std::vector<kernels::RowOutput> outputs;
  if (absl::Status status = sampler_->Await(queued.ticket, &outputs); !status.ok()) return status;
  std::vector<std::optional<RowResult>> results(queued.rows.size());
  for (uint32_t i = 0; i < results.size(); ++i) {
    const auto [row, put] = queued.rows[i];
    if (row == kNoRow || rows_[row].sequence == nullptr || rows_[row].put != put) continue;
    const kernels::RowOutput& output = outputs[i];
    if (output.error == kernels::RowFault::kTooManyEdits) {
      results[i] = NoRoom(i, output.error_token);
    } else {
      results[i] = rows_[row].sequence->own_->TakeDrawn(i, output);
    }
  }
  return results;
}

}  // namespace sortition::client
