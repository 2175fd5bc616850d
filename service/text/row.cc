// A row from its plan to its result.
#include "service/text/row.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/check.h"
#include "kernels/cpu/compact/decide_row.h"
#include "kernels/law/block.h"
#include "service/checks.h"
#include "service/text/masking_options.h"

namespace sortition::service {
namespace {

// Returns each phase's parameters for a row that wants more than its sequence; none if it does not.
std::vector<kernels::RowParameters> MoreParameters(const RowPlan& plan, const SequenceSpec& spec) {
  std::vector<kernels::RowParameters> more;
  const bool has_receipts = spec.receipts && plan.kind != RowPlan::Kind::kScore;
  if (!plan.return_probabilities && !has_receipts) return more;
  for (uint32_t phase = 0; phase <= spec.history.phases.size(); ++phase) {
    kernels::RowParameters& parameters = more.emplace_back(spec.Within(phase).parameters);
    parameters.processed_logprob = parameters.kept_tokens = true;
  }
  return more;
}

// Returns true if an edit of the sequence may have a bias or a penalty above 0.
bool MayRaise(const SequenceSpec& spec) {
  const auto raises = [](const kernels::LogitEdit& edit) { return static_cast<int32_t>(edit.bias) > 0; };
  return spec.AnyOptions([&](const PhaseOptions& options) {
    return options.frequency_penalty < 0 || options.presence_penalty < 0 ||
           std::ranges::any_of(options.listed_edits, raises);
  });
}

}  // namespace

kernels::RowRequest MakeRowRequest(const SequenceSpec& spec, const PositionView* view, uint32_t position,
                                   uint32_t draw_salt) {
  kernels::RowRequest row;
  row.live_vocabulary = spec.live_vocabulary;
  const PhaseOptions& options = spec.Within(view != nullptr ? view->phase : kNoPhase);
  row.parameters = &options.parameters;
  row.noise = {spec.seed, position, spec.choice_index | draw_salt << 16};
  if (view != nullptr && view->marked_noise) row.noise = *view->marked_noise;
  row.edits = view != nullptr ? std::span<const kernels::LogitEdit>(*view->edits) : options.listed_edits;
  row.has_allowed_tokens = options.has_allowed_tokens;
  row.allowed_tokens = options.allowed_tokens;
  row.requested = spec.logprob_token_ids;
  return row;
}

void ForceToken(const PositionView* view, kernels::RowRequest* row) {
  if (view == nullptr || !view->forced) return;
  row->edits = {};
  row->has_allowed_tokens = true;
  row->allowed_tokens = {&*view->forced, 1};
  row->allowed_bits = nullptr;
}

RowRun::RowRun(std::shared_ptr<const SequenceSpec> spec, RowPlan&& plan, std::vector<RowMaskBits>&& masks,
               PositionViews&& views)
    : spec_(std::move(spec)),
      plan_(std::move(plan)),
      masks_(std::move(masks)),
      views_(std::move(views)),
      more_(MoreParameters(plan_, *spec_)),
      runs_in_order_(plan_.positions() > 1 &&
                     (plan_.kind == RowPlan::Kind::kBlock || kernels::KeepsSamplerState(spec_->parameters.chain))),
      outputs_(plan_.positions()),
      missing_(plan_.positions()) {
  CutToAllowed();
  MergeBans();
  if (plan_.kind == RowPlan::Kind::kReject && plan_.is_tree) rivals_.resize(plan_.positions());
  for (uint32_t draft = 0; draft < plan_.drafts() && !rivals_.empty(); ++draft) {
    const auto position = static_cast<uint32_t>(plan_.ahead.parents[draft] + 1);
    if (plan_.FirstDraftAfter(position) != draft) rivals_[position].push_back(plan_.ahead.tokens[draft]);
  }
  if (plan_.kind != RowPlan::Kind::kBlock) return;
  for (const uint32_t draft : plan_.ahead.tokens) {
    requested_.emplace_back(spec_->logprob_token_ids).push_back(draft);
  }
}

void RowRun::CutToAllowed() {
  if (plan_.masks.empty()) return;
  for (uint32_t index = 0; index < plan_.positions(); ++index) {
    const uint32_t phase = PhaseAt(index);
    const size_t number = MaskOf(index);
    const PositionMask& mask = plan_.masks[number];
    const PhaseOptions& options = spec().Within(phase);
    if (!mask.has_allowed_tokens || !options.has_allowed_tokens) continue;
    const auto [both, is_new] = allowed_.try_emplace({phase, number});
    if (!is_new) continue;
    std::ranges::set_intersection(options.allowed_tokens, mask.allowed_tokens, std::back_inserter(both->second));
  }
}

void RowRun::MergeBans() {
  const auto bans = [](const PositionMask& mask) { return !mask.banned_tokens.empty(); };
  const bool has_bans = std::ranges::any_of(plan_.masks, bans);
  if (has_bans) {
    PositionEdits listed({spec_, &spec().listed_edits});
    listed.Share();
    banned_edits_.assign(plan_.positions(), listed);
  }
  const PositionEdits* before = nullptr;
  for (uint32_t index = 0; index < plan_.positions(); ++index) {
    PositionEdits* edits = views_.empty() ? nullptr : &views_[index].edits;
    if (has_bans && bans(plan_.masks[MaskOf(index)])) {
      const PositionEdits& without = edits != nullptr ? *edits : banned_edits_[index];
      edits = &(banned_edits_[index] = without.WithBans(plan_.masks[MaskOf(index)].banned_tokens));
    }
    // A compact row asks for its positions in turn.
    if (edits == nullptr || !plan_.compact.empty()) continue;
    edits->Keep(before);
    before = edits;
  }
}

void RowRun::Next::Set(kernels::RowRequest* request) const {
  request->sampler_state = sampler_state;
  if (request->survival != kernels::RowRequest::kNoBlock) request->survival = survival;
}

std::span<const uint32_t> RowRun::AllowedIn(uint32_t phase, size_t number) const {
  const auto cut = allowed_.find({phase, number});
  return cut != allowed_.end() ? cut->second : plan_.masks[number].allowed_tokens;
}

std::optional<uint32_t> RowRun::DraftRowAt(uint32_t index) const {
  const std::optional<uint32_t> draft = plan_.draft_row ? plan_.FirstDraftAfter(index) : std::nullopt;
  return draft ? std::optional(*plan_.draft_row + plan_.DistributionOf(index)) : std::nullopt;
}

kernels::RowRequest RowRun::RequestAt(uint32_t index, kernels::DType dtype, const void* dense,
                                      kernels::DType draft_dtype) const {
  const PositionView* const view = views_.empty() ? nullptr : &views_[index];
  kernels::RowRequest kernel =
      MakeRowRequest(spec(), view, plan_.intent.position + plan_.DepthOf(index), plan_.draw_salt);
  kernel.dtype = dtype;
  kernel.parameters = &ParametersIn(PhaseAt(index));
  kernel.sampler_state = plan_.sampler_state;
  if (!plan_.masks.empty()) {
    const size_t at = MaskOf(index);
    const PositionMask& mask = plan_.masks[at];
    if (!mask.banned_tokens.empty()) kernel.edits = banned_edits_[index];
    if (mask.has_allowed_tokens) {
      kernel.has_allowed_tokens = true;
      kernel.allowed_tokens = AllowedIn(PhaseAt(index), at);
    }
    const std::span<const uint32_t> words = masks_[at].words();
    kernel.allowed_bits = words.empty() ? nullptr : words.data();
  }
  ForceToken(view, &kernel);
  if (plan_.kind == RowPlan::Kind::kScore) {
    kernel.task = kernels::RowTask::kScore;
    kernel.given = plan_.scored[index];
    kernel.wants_race_place = plan_.wants_race;
    if (!plan_.requested.empty()) kernel.requested = plan_.requested[index];
    return kernel;
  }
  const std::optional<uint32_t> draft = plan_.FirstDraftAfter(index);
  if (!draft) return kernel;
  kernel.given = plan_.ahead.tokens[*draft];
  if (!plan_.has_test()) {
    kernel.likely = kernel.given;
    return kernel;
  }
  if (plan_.kind == RowPlan::Kind::kBlock) {
    kernel.survival = kernels::RowRequest::kCertainSurvival;
    kernel.requested = requested_[index];
  }
  kernel.task = kernels::RowTask::kVerify;
  kernel.draft.with_replacement = plan_.with_replacement;
  if (!rivals_.empty()) kernel.rivals = rivals_[index];
  if (!plan_.sparse.empty()) {
    const SparseDraft& sparse = plan_.sparse[plan_.DistributionOf(index)];
    kernel.draft.form = kernels::DraftDistribution::Form::kSparse;
    kernel.draft.sparse_tokens = sparse.tokens;
    kernel.draft.sparse_bits = sparse.bits;
  } else if (dense != nullptr) {
    kernel.draft.form = kernels::DraftDistribution::Form::kDense;
    kernel.draft.dtype = draft_dtype;
    kernel.draft.dense = dense;
  }
  return kernel;
}

RowRun::Progress RowRun::Taken(uint32_t index) {
  --missing_;
  if (!runs_in_order_) return {missing_ == 0, std::nullopt};
  if (plan_.kind == RowPlan::Kind::kBlock) {
    const std::optional<Next> next = NextOfBlock(index);
    return {!next, next};
  }
  const PositionOutput& taken = *outputs_[index];
  const std::optional<uint32_t> next = PositionAfter(plan_, {spec().stop_tokens, views_}, index, taken);
  if (!next) return {true, std::nullopt};
  // The output's token continues the text, drawn, accepted or given alike, and so its state continues the sampler's.
  return {false, Next{*next, std::get<kernels::RowOutput>(taken).sampler_state}};
}

void RowRun::RunCompact(DenseAt dense_at, kernels::DType draft_dtype, Bill* bill) {
  thread_local kernels::cpu::Scratch scratch;
  const bool may_raise = MayRaise(spec());
  size_t named = 0;  // tokens that the row's positions require
  const auto run = [&](const kernels::RowRequest& request, uint32_t index) -> PositionOutput {
    const kernels::StatedRow& stated = plan_.compact[index];
    const uint64_t tokens = stated.first.size() + stated.others.size() + request.requested.size();
    kernels::RowRequired required;  // the whole row
    if (bill->Take(price::kCompactToken * tokens + price::kCopiedEdit * request.edits.size())) {
      auto decided = kernels::cpu::DecideRow(request, stated.row(), may_raise, &scratch);
      if (auto* output = std::get_if<kernels::RowOutput>(&decided)) return std::move(*output);
      required = std::get<kernels::RowRequired>(std::move(decided));
      named += required.tokens.size();
      bill->Take(price::kNamedToken * required.tokens.size());  // what they cost shows when they are found
      if (named > kMaxRequiredTokens || !bill->TakeNames(required.tokens.size())) required.tokens = {};
    }
    Refusal refusal{Reason::kRowRequired, "", "", ""};
    refusal.required.push_back({index, std::move(required)});
    return refusal;
  };
  std::optional<Next> next;
  for (std::optional<uint32_t> index = 0; index;) {
    kernels::RowRequest request = RequestAt(*index, kernels::DType::kF32, dense_at(*index), draft_dtype);
    if (next) next->Set(&request);
    const Progress progress = Take(*index, run(request, *index));
    next = progress.next;
    index = progress.is_complete ? std::nullopt : progress.next ? std::optional(progress.next->index) : *index + 1;
  }
}

std::optional<RowRun::Next> RowRun::NextOfBlock(uint32_t index) {
  auto* const output = std::get_if<kernels::RowOutput>(&*outputs_[index]);
  if (output == nullptr || output->error != kernels::RowFault::kNone) return std::nullopt;
  if (index < plan_.drafts()) {
    if (output->survival == 0) return std::nullopt;
    return Next{index + 1, plan_.sampler_state, output->survival};
  }
  const uint64_t survival = std::get<kernels::RowOutput>(*outputs_[index - 1]).survival;
  const PositionView* const view = views_.empty() ? nullptr : &views_[index];
  const law::DrawKey key =
      law::ToDrawKey(MakeRowRequest(spec(), view, plan_.intent.position + plan_.DepthOf(index), plan_.draw_salt).noise);
  output->accepted = law::MayEndAfter(law::WordOf(law::BlockWords(key), 1), survival);
  return std::nullopt;
}

std::optional<uint32_t> RowRun::EndBlock() {
  uint32_t end = 0;
  for (uint32_t i = 0; i < outputs_.size() && outputs_[i]; ++i) {
    const auto* const output = std::get_if<kernels::RowOutput>(&*outputs_[i]);
    if (output == nullptr || output->error != kernels::RowFault::kNone) return i;
    if (output->accepted) end = i;
  }
  for (uint32_t i = 0; i < outputs_.size() && outputs_[i]; ++i) {
    auto& output = std::get<kernels::RowOutput>(*outputs_[i]);
    output.accepted = i < end;
    if (i == plan_.drafts()) break;
    if (output.accepted) output.token = plan_.ahead.tokens[i];
    for (kernels::Distribution* const d : {&output.raw, &output.processed, &output.tempered}) {
      if (d->requested.empty()) continue;
      if (output.accepted) {
        d->chosen = {output.token, d->requested.back().bits};
        d->rank = d->requested.back().rank;
      }
      d->requested.pop_back();
    }
  }
  return std::nullopt;
}

std::variant<RowResult, Refusal> RowRun::Finish() {
  std::variant<RowResult, Refusal> ended;  // made in place: the only thing that is returned
  if (!plan_.compact.empty()) {
    if (Refusal required = WhyRequired(); !required.required.empty()) {
      ended = std::move(required);
      return ended;
    }
  }
  if (plan_.kind == RowPlan::Kind::kBlock) {
    if (const std::optional<uint32_t> failed = EndBlock()) {
      ended = WhyFailed(*failed, *outputs_[*failed]);
      return ended;
    }
  }
  RowResult& result = std::get<RowResult>(ended);
  if (const auto failed = Walk(plan_, {spec().stop_tokens, views_}, absl::MakeSpan(outputs_), &result)) {
    ended = WhyFailed(failed->index, failed->why);
    return ended;
  }
  for (uint32_t i = 0; i < result.outputs.size() && !spec().history.phases.empty(); ++i) {
    // The position after an accepted draft has the draft's number and one.
    const bool follows_path = plan_.verifies() && i > 0;
    result.phases.push_back(PhaseAt(follows_path ? result.path[i - 1] + 1 : i));
  }
  return ended;
}

// Lists the undecided positions, those after the walk's end too: the result says which drafts passed there.
Refusal RowRun::WhyRequired() const {
  Refusal all{Reason::kRowRequired, "", "", "the compact row does not decide its answer"};
  for (const std::optional<PositionOutput>& output : outputs_) {
    const Refusal* const refusal = output ? std::get_if<Refusal>(&*output) : nullptr;
    if (refusal == nullptr) continue;
    all.required.insert(all.required.end(), refusal->required.begin(), refusal->required.end());
  }
  if (!all.required.empty()) {
    all.field = absl::StrCat(StepRowField(plan_.row), ".compact[", all.required[0].position, "]");
  }
  return all;
}

Refusal RowRun::WhyFailed(uint32_t index, const PositionOutput& why) const {
  if (const auto* const refused = std::get_if<Refusal>(&why)) return *refused;
  Refusal refusal = ToRefusal(std::get<kernels::RowOutput>(why), plan_.row);
  const PositionView* const view = views_.empty() ? nullptr : &views_[index];
  const bool is_forced = view != nullptr && view->forced;
  if (refusal.reason == Reason::kNoLiveToken && is_forced) {
    refusal.message = absl::StrCat("the logits mask token ", *view->forced, ", which phase ", view->phase, " forces");
  } else if (refusal.reason == Reason::kNoLiveToken) {
    NameMasks(index, view, &refusal);
  }
  if (plan_.positions() > 1) absl::StrAppend(&refusal.message, ", on the row's tensor row ", index);
  return refusal;
}

void RowRun::NameMasks(uint32_t index, const PositionView* view, Refusal* refusal) const {
  const size_t mask = MaskOf(index);
  const bool lists_none =
      mask < plan_.masks.size() && plan_.masks[mask].has_allowed_tokens && plan_.masks[mask].allowed_tokens.empty();
  const bool allows_none = lists_none || (mask < masks_.size() && masks_[mask].AllowsNone(spec().live_vocabulary));
  if (allows_none) {
    refusal->field = MaskField(plan_, mask);
    refusal->message = "the mask allows no token";
  } else if (mask < plan_.masks.size() && !plan_.masks[mask].banned_tokens.empty()) {
    refusal->field = MaskField(plan_, mask) + ".banned_tokens";
    refusal->message = "no token is live beside the banned ones";
  }
  refusal->message += MaskingOptions(plan_, mask, spec(), view);
}

Checkpoint CheckpointAfter(const RowPlan& plan, const RowResult& result) {
  return {result.outputs.back().sampler_state, plan.intent.position + static_cast<uint32_t>(result.outputs.size()),
          result.history_hash.value_or(0)};
}

std::string MaskField(const RowPlan& plan, size_t number) {
  if (plan.masks.size() == 1) return StepRowField(plan.row) + ".mask";
  return absl::StrCat(StepRowField(plan.row), plan.is_tree ? ".verify_tree" : ".verify_draft", ".masks[", number, "]");
}

Refusal ToRefusal(const kernels::RowOutput& output, uint32_t row) {
  const std::string field = StepRowField(row);
  switch (output.error) {
    case kernels::RowFault::kNaN:
      return {Reason::kLogitNan, field, "", absl::StrCat("the logit of token id ", output.error_token, " is NaN")};
    case kernels::RowFault::kLogitTooLarge:
      return {Reason::kLogitTooLarge, field, "< 65504",
              absl::StrCat("the logit of token id ", output.error_token, " is too large")};
    case kernels::RowFault::kNoLiveToken:
      return {Reason::kNoLiveToken, field, "", "every token is masked"};
    case kernels::RowFault::kDraftNoProbability:
      return {Reason::kOutOfRange, field, "draft probabilities in 0..1",
              absl::StrCat("the draft probability of token id ", output.error_token, " is none")};
    case kernels::RowFault::kDraftSum:
      return {Reason::kOutOfRange, field, "draft probabilities that sum to 1 within 0.01",
              "the draft probabilities do not sum to 1"};
    case kernels::RowFault::kDraftImpossible:
      return {Reason::kContradiction, field, "",
              absl::StrCat("token id ", output.error_token, " was drafted with probability 0")};
    case kernels::RowFault::kTooManyEdits:
    case kernels::RowFault::kNone:
      break;
  }
  SORTITION_CHECK(!"an error of a row");
  return {};
}

}  // namespace sortition::service
