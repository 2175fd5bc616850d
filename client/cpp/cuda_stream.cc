// Sequences' options and states to a sampler's rows, late outputs to sequences.
#include "client/cpp/cuda_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/compact_rows.h"
#include "client/cpp/message.h"
#include "kernels/check.h"

namespace sortition::client {
namespace {

absl::Status NotOnStream(const char* field) {
  return absl::UnimplementedError(
      absl::StrCat(field, ": a sequence on a stream does not have it; LocalSequence::Step waits for tokens, and does"));
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
  auto sampler = CudaSampler::State::Create(std::move(context), limits);
  if (!sampler.ok()) return sampler.status();
  std::unique_ptr<CudaStream> made(new CudaStream(*std::move(sampler), limits));
  for (uint32_t row = 0; row < limits.rows; ++row) {
    if (absl::Status status = made->SetEmpty(row); !status.ok()) return status;
  }
  return made;
}

CudaStream::CudaStream(std::unique_ptr<CudaSampler::State> sampler, const CudaLimits& limits)
    : limits_(limits), sampler_(std::move(sampler)), rows_(limits.rows) {}

absl::Status CudaStream::SetEmpty(uint32_t row) {
  is_changed_ = true;
  rows_[row] = {nullptr, ++puts_};
  kernels::RowParameters greedy;
  greedy.greedy = true;
  greedy.mask_nan = true;
  return sampler_->SetRow(row, greedy, {});
}

absl::Status CudaStream::Put(uint32_t row, std::shared_ptr<LocalSequence> sequence) {
  if (row >= limits_.rows) return absl::InvalidArgumentError(absl::StrCat("row: ", row, " of ", limits_.rows));
  const OwnSequence::StreamStart start = sequence->own_->StartOnStream();
  const service::SequenceSpec& spec = *start.spec;
  if (absl::Status status = CheckOptions(spec); !status.ok()) return status;
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
  is_changed_ = true;
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
  if (row >= limits_.rows) return absl::InvalidArgumentError(absl::StrCat("row: ", row, " of ", limits_.rows));
  return SetEmpty(row);
}

absl::StatusOr<CudaStream::Ticket> CudaStream::Step(const StreamStep& step, CUstream_st* stream) {
  if (vocabulary_ == 0) return absl::FailedPreconditionError("Step before a sequence was put into a row");
  if (queued_.size() == kMostTickets) {
    return absl::ResourceExhaustedError(absl::StrCat(kMostTickets, " tickets were not awaited yet"));
  }
  if (absl::Status status = sampler_->CheckStream(stream, false); !status.ok()) return status;
  const bool is_bound = step.logits == bound_.logits && step.row_bytes == bound_.row_bytes &&
                        step.dtype == bound_.dtype && step.tokens == bound_.tokens && step.logprobs == bound_.logprobs;
  if (is_changed_ || !is_bound) {
    if (ElementBytes(step.dtype) == 0) return absl::InvalidArgumentError("dtype: unspecified");
    is_changed_ = true;
    bound_ = step;
    absl::Status status = sampler_->Bind({.logits = step.logits,
                                          .row_bytes = step.row_bytes,
                                          .dtype = KernelType(step.dtype),
                                          .rows = limits_.rows,
                                          .vocabulary = vocabulary_,
                                          .tokens = step.tokens,
                                          .logprobs = step.logprobs});
    if (status.ok()) status = sampler_->Upload(stream);
    if (!status.ok()) return status;
    is_changed_ = false;
  }
  if (absl::Status status = sampler_->Sample(stream); !status.ok()) return status;
  Queued queued;
  if (absl::Status status = sampler_->Fetch(stream, &queued.ticket); !status.ok()) return status;
  for (const Row& row : rows_) queued.puts.push_back(row.put);
  queued_.push_back(std::move(queued));
  return queued_.back().ticket.number;
}

absl::StatusOr<std::vector<std::optional<RowResult>>> CudaStream::Await(Ticket ticket) {
  if (queued_.empty() || queued_.front().ticket.number != ticket) {
    return absl::InvalidArgumentError(absl::StrCat("ticket: ", ticket, " is not the first that was not awaited"));
  }
  const Queued queued = std::move(queued_.front());
  queued_.erase(queued_.begin());
  std::vector<kernels::RowOutput> outputs;
  if (absl::Status status = sampler_->Await(queued.ticket, &outputs); !status.ok()) return status;
  std::vector<std::optional<RowResult>> results(rows_.size());
  for (uint32_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row].sequence == nullptr || rows_[row].put != queued.puts[row]) continue;
    const kernels::RowOutput& output = outputs[row];
    if (output.error == kernels::RowError::kTooManyEdits) {
      results[row] = NoRoom(row, output.error_token);
    } else {
      results[row] = rows_[row].sequence->own_->TakeDrawn(row, output);
    }
  }
  return results;
}

}  // namespace sortition::client
