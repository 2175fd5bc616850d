// The service's parts without the service: validation, state, kernel, answer.
#include "client/local/own_sequence.h"

#include <map>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "client/cpp/compact_rows.h"
#include "client/cpp/errors.h"
#include "kernels/check.h"
#include "kernels/cpu/sample_row.h"
#include "kernels/law/version.h"
#include "service/entropy.h"
#include "service/limits.h"
#include "service/request/open_request.h"
#include "service/result/encode.h"
#include "service/sequence/row_of.h"

namespace sortition::client {
namespace {

struct Workspace {
  kernels::cpu::Scratch scratch;
  kernels::RowOutput answer;
};

Workspace& ThreadWorkspace() {
  thread_local Workspace workspace;
  return workspace;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OwnSequence>> OwnSequence::Open(const SequenceOptions& options) {
  if (options.start_position && !options.prompt.empty()) {
    return absl::InvalidArgumentError("start_position and prompt exclude each other");
  }
  if (!options.watermark_key_id.empty()) {
    return absl::InvalidArgumentError("watermark_key_id: a service has its operator's keys, not this process");
  }
  if (options.turns != 0) return absl::InvalidArgumentError("turns: with ClientOptions::shard only");
  if (options.receipts != nullptr)
    return absl::InvalidArgumentError("receipts: a service makes them, not this process");
  const auto prompt_length = static_cast<uint32_t>(options.prompt.size());
  auto opened =
      OpenAt(options, options.seed, {options.prompt, prompt_length, options.start_position.value_or(prompt_length)});
  if (const auto* error = std::get_if<RowError>(&opened)) return ToStatus(*error);
  auto& sequence = std::get<std::unique_ptr<OwnSequence>>(opened);
  if (sequence->stateful() && options.start_position) {
    return absl::InvalidArgumentError("start_position: an option looks at the history, so the prompt is needed");
  }
  sequence->rewinds_ = Rewinds(options.rewound);
  return std::move(sequence);
}

std::variant<std::unique_ptr<OwnSequence>, RowError> OwnSequence::OpenAt(const SequenceOptions& options,
                                                                         std::optional<uint64_t> seed,
                                                                         const Text& text) {
  v1::OpenSequence message;
  message.set_request_id(options.request_id);
  message.set_law_version(law::kLawVersion);
  *message.mutable_parameters() = options.parameters;
  if (seed) message.set_seed(*seed);
  message.set_choice_index(options.choice_index);
  message.set_vocabulary_size(options.vocabulary_size);
  if (options.live_vocabulary_size) message.set_live_vocabulary_size(*options.live_vocabulary_size);
  message.set_model(options.model);

  service::SystemEntropy entropy;
  auto parsed = service::ParseOpen(message, service::Limits{}, "open", &entropy);
  if (const auto* request = std::get_if<service::OpenRequest>(&parsed);
      request != nullptr && request->spec->stateful()) {
    message.mutable_history()->mutable_tokens()->Assign(text.tokens.begin(), text.tokens.end());
    message.mutable_history()->set_prompt_length(text.tokens.empty() ? 0 : text.prompt_length);
    parsed = service::ParseOpen(message, service::Limits{}, "open", &entropy);
  }
  if (const auto* refusal = std::get_if<service::Refusal>(&parsed)) return ToRowError(*refusal);
  auto spec = std::get<service::OpenRequest>(std::move(parsed)).spec;
  std::unique_ptr<service::SequenceState> state;
  if (spec->stateful()) {
    // The whole history is kept, so that every cut can be made.
    state = service::SequenceState::Build(spec, text.tokens, message.history().prompt_length(),
                                          service::Limits{}.max_history);
  }
  return std::unique_ptr<OwnSequence>(new OwnSequence(std::move(spec), std::move(state), text.position));
}

OwnSequence::OwnSequence(std::shared_ptr<const service::SequenceSpec> spec,
                         std::unique_ptr<service::SequenceState> state, uint32_t position)
    : spec_(std::move(spec)),
      state_(std::move(state)),
      position_(position),
      sampler_state_(kernels::InitialSamplerState(spec_->parameters.chain)) {}

absl::StatusOr<std::unique_ptr<OwnSequence>> OwnSequence::Fork(SequenceOptions options,
                                                               std::optional<uint32_t> position) const {
  if (options.start_position || !options.prompt.empty()) {
    return absl::InvalidArgumentError("a fork has the tokens of its parent, and no prompt of its own");
  }
  if (options.rewound != Rewound()) return absl::InvalidArgumentError("rewound: a fork has those of its parent");
  const uint32_t at = position.value_or(position_);
  if (at > position_) {
    return absl::OutOfRangeError(absl::StrCat("Fork: position ", at, " is beyond the end (<= ", position_, ")"));
  }
  auto child = Open(options);
  if (!child.ok()) return child.status();
  if ((*child)->stateful() && !stateful()) {
    return absl::InvalidArgumentError("an option of the fork looks at a history that its parent does not keep");
  }
  (*child)->position_ = at;
  (*child)->rewinds_ = rewinds_.OfFork();
  if ((*child)->stateful()) {
    (*child)->state_ = state_->Fork((*child)->spec_, at);
    SORTITION_CHECK((*child)->state_ != nullptr);
  }
  return child;
}

std::unique_ptr<OwnSequence> OwnSequence::Clone() const {
  std::unique_ptr<OwnSequence> clone(
      new OwnSequence(spec_, stateful() ? state_->Fork(spec_, position_) : nullptr, position_));
  clone->sampler_state_ = sampler_state_;
  clone->last_checkpoint_ = last_checkpoint_;
  clone->rewinds_ = rewinds_;
  return clone;
}

std::vector<uint32_t> OwnSequence::tokens() const { return stateful() ? state_->Tokens() : std::vector<uint32_t>(); }

std::optional<uint64_t> OwnSequence::history_hash() const {
  return state_ != nullptr ? std::optional(state_->history_hash()) : std::nullopt;
}

RowResult OwnSequence::Step(v1::DType dtype, const Row& row, const LocalStepOptions& options) {
  Workspace& workspace = ThreadWorkspace();
  if (IsPlainDraw(dtype, row, options)) {
    kernels::cpu::SampleRow(BeginDraw(dtype, row, options), &workspace.scratch, &workspace.answer);
    return EndDraw(workspace.answer);
  }
  auto begun = Begin(dtype, row, options);
  if (auto* const error = std::get_if<RowError>(&begun)) return std::move(*error);
  std::vector<kernels::RowOutput> answers;
  for (Requests requests = std::get<Requests>(std::move(begun)); !requests.empty(); requests = Continue(answers)) {
    answers.assign(requests.size(), {});
    for (size_t i = 0; i < requests.size(); ++i) {
      kernels::cpu::SampleRow(requests[i], &workspace.scratch, &answers[i]);
    }
  }
  return End();
}

std::variant<OwnSequence::Requests, RowError> OwnSequence::Begin(v1::DType dtype, const Row& given,
                                                                 const LocalStepOptions& options) {
  if (IsPlainDraw(dtype, given, options)) return Requests{BeginDraw(dtype, given, options)};
  Row row = given;
  row.draw_salt = rewinds_.Salt(given);
  const std::vector<std::vector<uint32_t>> bans = BansWith(given, rewinds_.At(position_));
  if (!bans.empty()) row.banned_tokens = bans;
  if (absl::Status status = CheckRow(row); !status.ok()) {
    RowError error;
    error.code = status.code();
    error.message = absl::StrCat("rows[", options.row, "].", status.message());
    return error;
  }
  auto begun = LocalRun::Begin(spec_, {position_, sampler_state_, state_.get()}, dtype, row, options);
  if (auto* const refusal = std::get_if<service::Refusal>(&begun)) return ToRowError(*refusal);
  run_ = std::get<std::unique_ptr<LocalRun>>(std::move(begun));
  return run_->First();
}

OwnSequence::Requests OwnSequence::Continue(std::span<kernels::RowOutput> answers) {
  if (run_ != nullptr) return run_->Continue(answers);
  SORTITION_CHECK(answers.size() == 1);
  draw_.answer = std::move(answers.front());
  return {};
}

RowResult OwnSequence::End() { return run_ != nullptr ? EndRun() : EndDraw(std::exchange(draw_.answer, {})); }

void OwnSequence::Abandon() {
  run_ = nullptr;
  if (state_ != nullptr) state_->EndLoan();
  draw_ = {};
}

OwnSequence::StreamStart OwnSequence::StartOnStream() const {
  StreamStart start = {
      spec_, service::RowOf(*spec_, nullptr, position_, rewinds_.Salt(Row())).noise, sampler_state_, {}, {}};
  std::map<uint32_t, kernels::LogitEdit> edits;
  for (const kernels::LogitEdit& edit : spec_->listed_edits) edits[edit.token] = edit;
  if (state_ != nullptr) {
    const service::PenaltyCounts& counted = state_->counts();
    for (size_t i = 0; i < counted.counts().size(); ++i) {
      const service::TokenCount& count = counted.counts()[i];
      if (count.all() == 0) continue;  // only listed
      const uint32_t token = counted.edits()[i].token;
      if (spec_->repetition_penalty != 1) {
        edits[token].token = token;
        edits[token].flags |= kernels::LogitEdit::kRepeated;
      }
      if (count.in_output != 0) start.counts.push_back({token, count.in_output});
    }
  }
  for (const auto& [token, edit] : edits) start.edits.push_back(edit);
  return start;
}

RowResult OwnSequence::TakeDrawn(uint32_t row, const kernels::RowOutput& output) {
  draw_.row = row;
  draw_.mask = {};
  return EndDraw(output);
}

bool OwnSequence::IsPlainDraw(v1::DType dtype, const Row& row, const LocalStepOptions& options) const {
  return options.vocabulary_size.value_or(spec_->vocabulary) == spec_->vocabulary && row.drafts == nullptr &&
         row.scored.empty() && row.banned_tokens.empty() && !rewinds_.IsAt(position_) && row.logits != nullptr &&
         ElementBytes(dtype) != 0 && row.draw_salt <= service::kMaxDrawSalt &&
         position_ < service::Limits{}.max_history;
}

kernels::RowRequest OwnSequence::BeginDraw(v1::DType dtype, const Row& row, const LocalStepOptions& options) {
  draw_.row = options.row;
  draw_.mask = {row.allowed_bits, row.masks() * ((size_t{spec_->vocabulary} + 31) / 32)};
  if (state_ != nullptr) draw_.views = service::LookAhead(state_.get(), {});
  const service::PositionView* const view = draw_.views.empty() ? nullptr : &draw_.views.front();
  kernels::RowRequest request = service::RowOf(*spec_, view, position_, rewinds_.Salt(row));
  request.logits = row.logits;
  request.dtype = KernelType(dtype);
  request.allowed_bits = row.allowed_bits;
  request.sampler_state = sampler_state_;
  service::ForceToken(view, &request);
  return request;
}

RowResult OwnSequence::EndDraw(const kernels::RowOutput& answer) {
  if (state_ != nullptr) state_->EndLoan();
  service::PositionViews views = std::exchange(draw_.views, {});
  const uint32_t phase = views.empty() ? service::kNoPhase : views.front().phase;
  RowResult outcome;  // a draw
  if (answer.error != kernels::RowError::kNone) {
    outcome = ToRowError(WhyNotDrawn(answer, std::move(views)));
    return outcome;
  }
  Advance(answer);
  last_checkpoint_ = {sampler_state_, position_, history_hash().value_or(0)};
  v1::DrawResult& draw = std::get<v1::DrawResult>(outcome);
  service::EncodeDraw(answer, *spec_, phase, history_hash(), &draw);
  for (const kernels::TokenBits& token : answer.kept_tokens) draw.add_kept_tokens(token.token);
  const service::TextEnd end = state_ != nullptr ? state_->text_end() : service::TextEnd();
  service::EncodeEnd(end, answer.token, *spec_, &draw);
  TakeBack(end);
  return outcome;
}

service::Refusal OwnSequence::WhyNotDrawn(const kernels::RowOutput& answer, service::PositionViews views) const {
  service::RowPlan plan;
  plan.row = draw_.row;
  std::vector<service::RowMaskBits> masks;
  if (!draw_.mask.empty()) {
    plan.masks.emplace_back().mask_row = 0;
    masks.push_back(service::RowMaskBits::Lent(draw_.mask));
  }
  service::RowRun run({{.spec = spec_}, std::move(plan), std::move(masks), {0, std::move(views)}});
  run.Take(0, answer);
  return std::get<service::Refusal>(run.Commit());
}

RowResult OwnSequence::EndRun() {
  const std::unique_ptr<LocalRun> run = std::move(run_);
  auto finished = run->Finish();
  if (const auto* refusal = std::get_if<service::Refusal>(&finished)) return ToRowError(*refusal);
  service::RowResult& result = std::get<service::RowResult>(finished);
  if (run->plan().kind != service::RowPlan::Kind::kScore) {
    for (const kernels::RowOutput& output : result.outputs) Advance(output);
    result.history_hash = history_hash();
    if (state_ != nullptr) result.end = state_->text_end();
    last_checkpoint_ = {sampler_state_, position_, result.history_hash.value_or(0)};
  } else {
    last_checkpoint_ = {result.outputs.back().sampler_state, position_ + static_cast<uint32_t>(result.outputs.size()),
                        0};
  }
  TakeBack(result.end);
  return run->Encode(result);
}

void OwnSequence::TakeBack(const service::TextEnd& end) {
  if (!takes_back_ || !end.phrase_from || !rewinds_.Ban(*end.phrase_from, end.phrase.front())) return;
  SORTITION_CHECK(Truncate(*end.phrase_from).ok());
}

void OwnSequence::Advance(const kernels::RowOutput& answer) {
  ++position_;
  sampler_state_ = answer.sampler_state;
  if (state_ == nullptr) return;
  state_->Append(answer.token);
}

absl::Status OwnSequence::CheckToken(uint32_t token) const {
  if (token < spec_->live_vocabulary) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("token ", token, " is outside the live vocabulary (< ", spec_->live_vocabulary, ")"));
}

absl::Status OwnSequence::ReplaceLast(uint32_t token) {
  if (absl::Status status = CheckToken(token); !status.ok()) return status;
  if (position_ == 0) return absl::OutOfRangeError("ReplaceLast: the history is empty");
  if (absl::Status status = Truncate(position_ - 1); !status.ok()) return status;
  return Append({&token, 1});
}

absl::Status OwnSequence::Append(std::span<const uint32_t> tokens) {
  for (uint32_t token : tokens) {
    if (absl::Status status = CheckToken(token); !status.ok()) return status;
  }
  position_ += static_cast<uint32_t>(tokens.size());
  if (state_ == nullptr) return absl::OkStatus();
  state_->Rewrite(std::nullopt, tokens);
  return absl::OkStatus();
}

absl::Status OwnSequence::Truncate(uint32_t position) {
  if (position > position_) {
    return absl::OutOfRangeError(
        absl::StrCat("Truncate: position ", position, " is beyond the end (<= ", position_, ")"));
  }
  rewinds_.Truncate(position);
  position_ = position;
  if (state_ == nullptr) return absl::OkStatus();
  state_->Rewrite(position, {});
  return absl::OkStatus();
}

void OwnSequence::MoveTo(uint32_t position, uint32_t shared, std::span<const uint32_t> appended) {
  if (state_ != nullptr && (shared != position_ || !appended.empty())) state_->Rewrite(shared, appended);
  position_ = position;
}

}  // namespace sortition::client
