// The service's parts without the service: validation, state, kernel, answer.
#include "client/cpp/local_sequence.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "client/cpp/errors.h"
#include "client/cpp/history.h"
#include "kernels/cpu/sample_row.h"
#include "kernels/law/version.h"
#include "service/entropy.h"
#include "service/limits.h"
#include "service/request/open_request.h"
#include "service/result/encode.h"
#include "service/sequence/row_of.h"

namespace sortition::client {
namespace {

RowError ToRowError(const service::Refusal& refusal) {
  v1::Error error;
  service::EncodeError(refusal, &error);
  return FromWire(error);
}

kernels::DType KernelType(v1::DType dtype) {
  return dtype == v1::DTYPE_F32 ? kernels::DType::kF32
                                : (dtype == v1::DTYPE_F16 ? kernels::DType::kF16 : kernels::DType::kBF16);
}

struct Workspace {
  kernels::cpu::Scratch scratch;
  kernels::RowAnswer answer;
};

Workspace& ThreadWorkspace() {
  thread_local Workspace workspace;
  return workspace;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalSequence>> LocalSequence::Open(const SequenceOptions& options) {
  if (options.start_position && !options.prompt.empty()) {
    return absl::InvalidArgumentError("start_position and prompt exclude each other");
  }
  v1::OpenSequence message;
  message.set_request_id(options.request_id);
  message.set_law_version(law::kLawVersion);
  *message.mutable_parameters() = options.parameters;
  if (options.seed) message.set_seed(*options.seed);
  message.set_choice_index(options.choice_index);
  message.set_vocabulary_size(options.vocabulary_size);
  if (options.live_vocabulary_size) message.set_live_vocabulary_size(*options.live_vocabulary_size);
  message.set_model(options.model);
  message.mutable_history()->mutable_tokens()->Assign(options.prompt.begin(), options.prompt.end());
  message.mutable_history()->set_prompt_length(static_cast<uint32_t>(options.prompt.size()));

  service::SystemEntropy entropy;
  auto parsed = service::ParseOpen(message, service::Limits{}, "open", &entropy);
  if (const auto* refusal = std::get_if<service::Refusal>(&parsed)) return ToStatus(ToRowError(*refusal));
  auto spec = std::get<service::OpenRequest>(std::move(parsed)).spec;
  if (spec->stateful() && options.start_position) {
    return absl::InvalidArgumentError("start_position: an option looks at the history, so the prompt is needed");
  }
  const uint32_t prompt_length = static_cast<uint32_t>(options.prompt.size());
  return std::unique_ptr<LocalSequence>(new LocalSequence(
      std::move(spec), options.prompt, options.start_position.value_or(prompt_length), prompt_length));
}

LocalSequence::LocalSequence(std::shared_ptr<const service::SequenceSpec> spec, std::vector<uint32_t> tokens,
                             uint32_t position, uint32_t prompt_length)
    : spec_(std::move(spec)),
      position_(position),
      sampler_state_(kernels::InitialSamplerState(spec_->parameters.chain)) {
  if (!spec_->stateful()) return;
  tokens_ = std::move(tokens);
  // The whole history is kept, so that every cut can be made.
  state_ = service::SequenceState::Build(spec_, tokens_, prompt_length, service::Limits{}.max_history);
}

absl::StatusOr<std::unique_ptr<LocalSequence>> LocalSequence::Fork(SequenceOptions options,
                                                                   std::optional<uint32_t> position) const {
  if (options.start_position || !options.prompt.empty()) {
    return absl::InvalidArgumentError("a fork has the tokens of its parent, and no prompt of its own");
  }
  const uint32_t at = position.value_or(position_);
  if (at > position_) {
    return absl::OutOfRangeError(absl::StrCat("Fork: position ", at, " is beyond the end (<= ", position_, ")"));
  }
  auto child = Open(options);
  if (!child.ok()) return child.status();
  if ((*child)->stateful() && !stateful()) {
    return absl::InvalidArgumentError("an option of the fork looks at a history that its parent does not keep");
  }
  std::vector<uint32_t> tokens;
  uint32_t prompt_length = 0;
  if (stateful()) {
    tokens.assign(tokens_.begin(), tokens_.begin() + at);
    prompt_length = std::min(state_->prompt_length(), at);
  }
  return std::unique_ptr<LocalSequence>(new LocalSequence((*child)->spec_, std::move(tokens), at, prompt_length));
}

RowOutcome LocalSequence::Step(v1::DType dtype, const Row& row) {
  auto begun = Begin(dtype, row);
  if (auto* const error = std::get_if<RowError>(&begun)) return std::move(*error);
  Workspace& workspace = ThreadWorkspace();
  kernels::cpu::SampleRow(std::get<kernels::RowRequest>(begun), &workspace.scratch, &workspace.answer);
  return End(workspace.answer);
}

std::variant<kernels::RowRequest, RowError> LocalSequence::Begin(v1::DType dtype, const Row& row) {
  if (row.draw_salt > service::kMaxDrawSalt) {
    return ToRowError({service::Reason::kOutOfRange, "step.rows[0].draw_salt",
                       absl::StrCat("0..", service::kMaxDrawSalt), "the draw salt is out of range"});
  }
  if (row.drafts != nullptr || !row.scored.empty()) {
    return ToRowError({service::Reason::kNotImplemented, row.drafts != nullptr ? "drafts" : "scored", "",
                       "a local sequence draws one token at a time"});
  }
  if (state_ != nullptr) views_ = service::LookAhead(state_.get(), {});
  const service::PositionView* const view = views_.empty() ? nullptr : &views_.front();
  kernels::RowRequest request = service::RowOf(*spec_, view, position_, row.draw_salt);
  request.logits = row.logits;
  request.dtype = KernelType(dtype);
  request.allowed_bits = row.allowed_bits;
  request.sampler_state = sampler_state_;
  service::ForceToken(view, &request);
  return request;
}

void LocalSequence::Abandon() {
  if (state_ != nullptr) state_->EndLoan();
  views_.clear();
}

RowOutcome LocalSequence::End(const kernels::RowAnswer& answer) {
  Abandon();
  if (answer.error != kernels::RowError::kNone) return ToRowError(service::RefusalOf(answer, 0));
  ++position_;
  std::optional<uint64_t> history_hash;
  if (state_ != nullptr) {
    state_->Append(answer.token);
    tokens_.push_back(answer.token);
    history_hash = state_->history_hash();
  }
  sampler_state_ = answer.sampler_state;
  RowOutcome outcome;
  v1::DrawResult& draw = outcome.emplace<v1::DrawResult>();
  service::EncodeDraw(answer, spec_->parameters, history_hash, &draw);
  for (const kernels::TokenBits& token : answer.kept_tokens) draw.add_kept_tokens(token.token);
  if (spec_->stops(answer.token)) draw.set_finish_reason(v1::FINISH_REASON_STOP_TOKEN);
  return outcome;
}

absl::Status LocalSequence::CheckToken(uint32_t token) const {
  if (token < spec_->live_vocabulary) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("token ", token, " is outside the live vocabulary (< ", spec_->live_vocabulary, ")"));
}

absl::Status LocalSequence::ReplaceLast(uint32_t token) {
  if (absl::Status status = CheckToken(token); !status.ok()) return status;
  if (position_ == 0) return absl::OutOfRangeError("ReplaceLast: the history is empty");
  if (absl::Status status = Truncate(position_ - 1); !status.ok()) return status;
  return Append({&token, 1});
}

absl::Status LocalSequence::Append(std::span<const uint32_t> tokens) {
  for (uint32_t token : tokens) {
    if (absl::Status status = CheckToken(token); !status.ok()) return status;
  }
  position_ += static_cast<uint32_t>(tokens.size());
  if (state_ == nullptr) return absl::OkStatus();
  state_->Edit(std::nullopt, tokens);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  return absl::OkStatus();
}

absl::Status LocalSequence::Truncate(uint32_t position) {
  if (position > position_) {
    return absl::OutOfRangeError(
        absl::StrCat("Truncate: position ", position, " is beyond the end (<= ", position_, ")"));
  }
  position_ = position;
  if (state_ == nullptr) return absl::OkStatus();
  state_->Edit(position, {});
  tokens_.resize(position);
  return absl::OkStatus();
}

}  // namespace sortition::client
