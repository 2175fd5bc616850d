// From a caller's row to the service's plain values, and from its result to the caller's.
#include "client/local/local_text.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/compact_rows.h"
#include "client/cpp/row_message.h"
#include "client/cpp/transport/wire_errors.h"
#include "kernels/check.h"
#include "kernels/cpu/sample_row.h"
#include "kernels/law/version.h"
#include "service/checks.h"
#include "service/entropy.h"
#include "service/limits.h"
#include "service/text/judge_row.h"
#include "service/text/look_ahead.h"
#include "service/text/make_receipts.h"
#include "service/text/mask_digest.h"
#include "service/text/row.h"
#include "service/wire/encode.h"
#include "service/wire/encode_result.h"
#include "service/wire/open_request.h"
#include "service/wire/step_request.h"

namespace sortition::client {
namespace {

// The longest list of kept tokens whose memory an idle sequence holds for its next draw.
constexpr size_t kMaxIdleKept = 4096;

void TakeDrafts(const Drafts& drafts, service::RowAsk* ask) {
  const bool is_tree = !drafts.parents.empty();
  ask->task = is_tree ? service::RowAsk::Task::kVerifyTree : service::RowAsk::Task::kVerifyDraft;
  ask->tokens = drafts.tokens;
  ask->parents = drafts.parents;
  ask->mode = service::ToMode(drafts.mode);
  if (is_tree) ask->sampling = service::ToSampling(drafts.sampling);
  if (drafts.probabilities != nullptr) ask->draft_row = 0;
  for (const auto& sparse : drafts.sparse_probabilities) ask->sparse.push_back(service::ToAsk(sparse));
  ask->return_probabilities = drafts.return_probabilities;
}

// Returns one mask and bans for each position, or one for all positions.
std::vector<service::MaskAsk> ToMaskAsks(const Row& row) {
  const auto bans = [](const std::vector<uint32_t>& list) { return !list.empty(); };
  std::vector<service::MaskAsk> asks(std::ranges::any_of(row.banned_tokens, bans) ? row.banned_tokens.size()
                                                                                  : row.masks());
  for (size_t i = 0; i < asks.size(); ++i) {
    if (row.allowed_bits != nullptr) {
      asks[i].kind = service::MaskAsk::Kind::kTensorRow;
      asks[i].number = i;
    }
    if (i < row.banned_tokens.size()) asks[i].banned = row.banned_tokens[i];
  }
  return asks;
}

// Takes the row's task and masks. Refers to the row's lists.
void TakeTask(const Row& row, service::RowAsk* ask) {
  if (!row.scored.empty()) {
    ask->task = service::RowAsk::Task::kScore;
    ask->tokens = row.scored;
    ask->requested.assign(row.scored_requests.begin(), row.scored_requests.end());
    ask->wants_race = row.score_race;
  } else if (row.drafts != nullptr) {
    TakeDrafts(*row.drafts, ask);
  }
  if (row.allowed_bits == nullptr && row.banned_tokens.empty()) return;
  ask->masks = ToMaskAsks(row);
  if (row.drafts == nullptr && !ask->masks.empty()) {
    ask->mask = ask->masks.front();
    ask->masks.clear();
  }
}

std::vector<service::RowMaskBits> MasksOf(const Row& row, uint32_t vocabulary) {
  std::vector<service::RowMaskBits> masks;
  const size_t words = (size_t{vocabulary} + 31) / 32;
  for (size_t i = 0; i < row.masks(); ++i) {
    masks.push_back(service::RowMaskBits::Lent({row.allowed_bits + i * words, words}));
  }
  return masks;
}

}  // namespace

RowError ToRowError(const service::Refusal& refusal) {
  v1::Error error;
  service::EncodeError(refusal, &error);
  return FromWire(error);
}

absl::StatusOr<std::unique_ptr<LocalText>> LocalText::Open(const SequenceOptions& options) {
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
  auto& sequence = std::get<std::unique_ptr<LocalText>>(opened);
  if (sequence->stateful() && options.start_position) {
    return absl::InvalidArgumentError("start_position: an option looks at the history, so the prompt is needed");
  }
  sequence->rewinds_ = Rewinds(options.rewound);
  return std::move(sequence);
}

std::variant<std::unique_ptr<LocalText>, RowError> LocalText::OpenAt(const SequenceOptions& options,
                                                                     std::optional<uint64_t> seed, const Start& start) {
  static const service::Limits limits;
  auto compiled = service::CompileSpec({options.request_id, options.model, law::kLawVersion, options.vocabulary_size,
                                        options.live_vocabulary_size, options.choice_index},
                                       options.parameters, limits, "open");
  if (const auto* refusal = std::get_if<service::Refusal>(&compiled)) return ToRowError(*refusal);
  auto spec = std::get<std::shared_ptr<service::SequenceSpec>>(std::move(compiled));
  spec->receipts = options.receipts != nullptr;
  spec->seed = seed ? *seed : service::SystemEntropy().Draw();
  std::unique_ptr<service::Text> state;
  if (spec->stateful()) {
    const uint32_t prompt_length = start.tokens.empty() ? 0 : start.prompt_length;
    if (auto refusal = service::CheckHistory({start.tokens, 0, prompt_length, true}, *spec, limits, "open.history")) {
      return ToRowError(*refusal);
    }
    // The whole history is kept, so that every cut can be made.
    state = service::Text::Build(spec, start.tokens, prompt_length, limits.max_history);
  }
  return std::unique_ptr<LocalText>(new LocalText(std::move(spec), std::move(state), start.position));
}

LocalText::LocalText(std::shared_ptr<const service::SequenceSpec> spec, std::unique_ptr<service::Text> state,
                     uint32_t position)
    : spec_(std::move(spec)),
      state_(std::move(state)),
      position_(position),
      sampler_state_(kernels::InitialSamplerState(spec_->parameters.chain)),
      begun_{service::RowRun(spec_)} {}

absl::StatusOr<std::unique_ptr<LocalText>> LocalText::Fork(SequenceOptions options,
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

std::unique_ptr<LocalText> LocalText::Clone() const {
  std::unique_ptr<LocalText> clone(
      new LocalText(spec_, stateful() ? state_->Fork(spec_, position_) : nullptr, position_));
  clone->sampler_state_ = sampler_state_;
  clone->last_checkpoint_ = last_checkpoint_;
  clone->rewinds_ = rewinds_;
  return clone;
}

std::vector<uint32_t> LocalText::tokens() const { return stateful() ? state_->Tokens() : std::vector<uint32_t>(); }

std::optional<uint64_t> LocalText::history_hash() const {
  return state_ != nullptr ? std::optional(state_->history_hash()) : std::nullopt;
}

RowResult LocalText::Step(v1::DType dtype, const Row& row, const LocalStepOptions& options) {
  if (auto error = BeginRow(dtype, row, options)) return *std::move(error);
  thread_local kernels::cpu::Scratch scratch;
  service::RowRun& run = begun_.run;
  std::optional<service::RowRun::Next> next;
  for (uint32_t index = 0;;) {
    kernels::RowRequest request = RequestAt(index);
    if (next) next->Set(&request);
    kernels::cpu::SampleRow(request, &scratch, run.OutputAt(index));
    const service::RowRun::Progress progress = run.TakeWritten(index);
    next = progress.next;
    if (progress.is_complete) break;
    index = next ? next->index : index + 1;
  }
  return End();
}

std::variant<LocalText::Requests, RowError> LocalText::Begin(v1::DType dtype, const Row& row,
                                                             const LocalStepOptions& options) {
  if (auto error = BeginRow(dtype, row, options)) return *std::move(error);
  Requests requests;
  begun_.asked.clear();
  for (uint32_t index = 0; index < begun_.run.first_positions(); ++index) {
    begun_.asked.push_back(index);
    requests.push_back(RequestAt(index));
  }
  return requests;
}

LocalText::Requests LocalText::Continue(std::span<kernels::RowOutput> answers) {
  std::vector<uint32_t>& asked = begun_.asked;
  SORTITION_CHECK(answers.size() == asked.size());
  service::RowRun::Progress progress;
  for (size_t i = 0; i < answers.size(); ++i) progress = begun_.run.Take(asked[i], std::move(answers[i]));
  if (!progress.next) return {};
  asked.front() = progress.next->index;
  Requests requests = {RequestAt(asked.front())};
  progress.next->Set(&requests.front());
  return requests;
}

RowResult LocalText::End() {
  RowResult outcome;  // a draw; made in place: the only thing that is returned
  const service::RowPlan& plan = begun_.run.plan();
  if (const auto refusal = begun_.run.Finish()) {
    Abandon();
    outcome = ToRowError(*refusal);
    return outcome;
  }
  service::RowResult& result = begun_.run.result();
  if (plan.kind != service::RowPlan::Kind::kScore) {
    position_ += static_cast<uint32_t>(result.outputs.size());
    sampler_state_ = result.outputs.back().sampler_state;
    if (state_ != nullptr) state_->Commit(&result);
  } else if (state_ != nullptr) {
    state_->EndLoan();
  }
  last_checkpoint_ = CheckpointAfter(plan, result);
  if (spec_->receipts) {
    last_receipts_ = plan.kind == service::RowPlan::Kind::kScore ? std::vector<service::Receipt>()
                                                                 : service::MakeReceipts(result, plan, *spec_);
  }
  if (plan.kind == service::RowPlan::Kind::kDraw) {
    service::EncodeWholeDraw(result, *spec_, &std::get<v1::DrawResult>(outcome));
  } else {
    v1::RowResult whole;
    service::EncodeWhole(result, plan, *spec_, &whole);
    outcome = ToRowResult(std::move(whole));
  }
  TakeBack(result.end);
  if (plan.is_plain_draw() && result.outputs.front().kept_tokens.capacity() <= kMaxIdleKept) {
    begun_.run.Release();
    begun_.has_row = false;
  } else {
    Clear();
  }
  return outcome;
}

void LocalText::Abandon() {
  if (state_ != nullptr) state_->EndLoan();
  Clear();
}

void LocalText::Clear() { begun_ = {service::RowRun(spec_)}; }

LocalText::StreamStart LocalText::StartOnStream() const {
  StreamStart start = {
      spec_, service::MakeRowRequest(*spec_, nullptr, position_, rewinds_.Salt(Row())).noise, sampler_state_, {}, {}};
  std::map<uint32_t, kernels::LogitEdit> edits;
  for (const kernels::LogitEdit& edit : spec_->listed_edits) edits[edit.token] = edit;
  if (state_ != nullptr) {
    const service::PenaltyCounts& counted = state_->counts();
    for (size_t i = 0; i < counted.counts().size(); ++i) {
      const service::TokenOccurrences& count = counted.counts()[i];
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

RowResult LocalText::TakeDrawn(uint32_t row, kernels::RowOutput output) {
  // Its logits are the device's.
  if (auto error = Plan(v1::DTYPE_F32, Row(), {.row = row})) return *std::move(error);
  begun_.run.Take(0, std::move(output));
  return End();
}

std::optional<RowError> LocalText::BeginRow(v1::DType dtype, const Row& row, const LocalStepOptions& options) {
  return rewinds_.all().bans.empty() ? CheckAndPlan(dtype, row, options) : BeginBanned(dtype, row, options);
}

std::optional<RowError> LocalText::BeginBanned(v1::DType dtype, Row row, const LocalStepOptions& options) {
  const std::vector<std::vector<uint32_t>> bans = BansWith(row, rewinds_.At(position_));
  if (!bans.empty()) row.banned_tokens = bans;
  return CheckAndPlan(dtype, row, options);
}

std::optional<RowError> LocalText::CheckAndPlan(v1::DType dtype, const Row& row, const LocalStepOptions& options) {
  if (absl::Status status = CheckRow(row); !status.ok()) {
    RowError error;
    error.code = status.code();
    error.message = absl::StrCat("rows[", options.row, "].", status.message());
    return error;
  }
  return Plan(dtype, row, options);
}

std::optional<RowError> LocalText::Plan(v1::DType dtype, const Row& row, const LocalStepOptions& options) {
  if (ElementBytes(dtype) == 0) return ToRowError(service::MissingField("step.logits.dtype"));
  const bool is_dense = row.drafts != nullptr && row.drafts->probabilities != nullptr;
  if (is_dense && ElementBytes(options.draft_dtype) == 0) {
    return ToRowError(service::MissingField("step.draft_probabilities.dtype"));
  }
  if (begun_.has_row) Abandon();  // an exception has left it
  begun_.has_row = true;
  service::RowAsk& ask = begun_.ask;
  ask.row = options.row;
  ask.step_id = 1;
  ask.position = position_;
  ask.draw_salt = rewinds_.Salt(row);
  ask.history_hash = history_hash();
  TakeTask(row, &ask);
  service::StepTensors tensors;
  tensors.vocabulary = options.vocabulary_size.value_or(spec_->vocabulary);
  tensors.tensor_rows = static_cast<uint32_t>(row.positions());
  if (row.allowed_bits != nullptr) tensors.mask_rows = static_cast<uint32_t>(row.masks());
  if (is_dense) tensors.draft_rows = static_cast<uint32_t>(row.drafts->distributions());
  static const service::Limits limits;
  service::RowParts& parts = begun_.run.parts();
  if (auto refusal = service::JudgeRow(ask, tensors, *spec_, limits, &parts.plan)) {
    Clear();
    return ToRowError(*refusal);
  }
  parts.plan.sampler_state = sampler_state_;
  if (!parts.plan.masks.empty()) {
    parts.masks = MasksOf(row, spec_->vocabulary);
    parts.masks.resize(parts.plan.masks.size());  // a mask may only ban tokens
    if (spec_->receipts) service::HashMasks(parts.masks, spec_->live_vocabulary, &parts.plan);
  }
  if (state_ != nullptr) parts.views = service::LookAhead(state_.get(), parts.plan.ahead);
  begun_.run.Begin();
  begun_.dtype = KernelType(dtype);
  begun_.logits = static_cast<const std::byte*>(row.logits);
  if (is_dense) {
    begun_.draft_dtype = KernelType(options.draft_dtype);
    begun_.probabilities = static_cast<const std::byte*>(row.drafts->probabilities);
  }
  return std::nullopt;
}

kernels::RowRequest LocalText::RequestAt(uint32_t index) const {
  const auto row_of = [&](const std::byte* tensor, size_t row, kernels::DType dtype) {
    return tensor + row * spec_->vocabulary * kernels::ElementBytes(dtype);
  };
  const std::byte* dense = nullptr;
  if (const auto draft_row = begun_.run.DraftRowAt(index)) {
    dense = row_of(begun_.probabilities, *draft_row, begun_.draft_dtype);
  }
  kernels::RowRequest request = begun_.run.RequestAt(index, begun_.dtype, dense, begun_.draft_dtype);
  request.logits = row_of(begun_.logits, index, begun_.dtype);
  return request;
}

void LocalText::TakeBack(const service::TextEnd& end) {
  if (!takes_back_ || !end.phrase_from || !rewinds_.Ban(*end.phrase_from, end.phrase.front())) return;
  SORTITION_CHECK(Truncate(*end.phrase_from).ok());
}

absl::Status LocalText::CheckToken(uint32_t token) const {
  if (token < spec_->live_vocabulary) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("token ", token, " is outside the live vocabulary (< ", spec_->live_vocabulary, ")"));
}

absl::Status LocalText::ReplaceLast(uint32_t token) {
  if (absl::Status status = CheckToken(token); !status.ok()) return status;
  if (position_ == 0) return absl::OutOfRangeError("ReplaceLast: the history is empty");
  if (absl::Status status = Truncate(position_ - 1); !status.ok()) return status;
  return Append({&token, 1});
}

absl::Status LocalText::Append(std::span<const uint32_t> tokens) {
  for (uint32_t token : tokens) {
    if (absl::Status status = CheckToken(token); !status.ok()) return status;
  }
  position_ += static_cast<uint32_t>(tokens.size());
  if (state_ == nullptr) return absl::OkStatus();
  state_->Rewrite(std::nullopt, tokens);
  return absl::OkStatus();
}

absl::Status LocalText::Truncate(uint32_t position) {
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

void LocalText::MoveTo(uint32_t position, uint32_t shared, std::span<const uint32_t> appended) {
  if (state_ != nullptr && (shared != position_ || !appended.empty())) state_->Rewrite(shared, appended);
  position_ = position;
}

}  // namespace sortition::client
