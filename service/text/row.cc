// A row from its plan to its result.
#include "service/text/row.h"

#include <algorithm>
#include <bit>
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

void RowRun::Begin() {
  const uint32_t positions = plan().positions();
  runs_in_order_ =
      positions > 1 && (plan().kind == RowPlan::Kind::kBlock || kernels::KeepsSamplerState(spec_->parameters.chain));
  missing_ = positions;
  extras_ = nullptr;
  if (runs_in_order_) extras().missing.assign(positions, true);
  result_.outputs.resize(positions);
  result_.phases.clear();
  result_.history_hash.reset();
  result_.end = {};
  if (plan().return_probabilities || (spec().receipts && plan().kind != RowPlan::Kind::kScore)) AddParameters();
  if (!plan().masks.empty()) CutToAllowed();
  if (!plan().masks.empty() || parts_.views.size() > 1) MergeBans();
  if (plan().kind == RowPlan::Kind::kReject && plan().is_tree) ListRivals();
  if (plan().kind != RowPlan::Kind::kBlock) return;
  for (const uint32_t draft : plan().ahead.tokens) {
    extras().requested.emplace_back(spec_->logprob_token_ids).push_back(draft);
  }
}

void RowRun::AddParameters() {
  for (uint32_t phase = 0; phase <= spec().history.phases.size(); ++phase) {
    kernels::RowParameters& parameters = extras().parameters.emplace_back(spec().Within(phase).parameters);
    parameters.processed_logprob = parameters.kept_tokens = true;
  }
}

void RowRun::ListRivals() {
  std::vector<std::vector<uint32_t>>& rivals = extras().rivals;
  rivals.resize(plan().positions());
  for (uint32_t draft = 0; draft < plan().drafts(); ++draft) {
    const auto position = static_cast<uint32_t>(plan().ahead.parents[draft] + 1);
    if (plan().FirstDraftAfter(position) != draft) rivals[position].push_back(plan().ahead.tokens[draft]);
  }
}

void RowRun::CutToAllowed() {
  for (uint32_t index = 0; index < plan().positions(); ++index) {
    const uint32_t phase = PhaseAt(index);
    const size_t number = MaskOf(index);
    const PositionMask& mask = plan().masks[number];
    const PhaseOptions& options = spec().Within(phase);
    if (!mask.has_allowed_tokens || !options.has_allowed_tokens) continue;
    const auto [both, is_new] = extras().allowed.try_emplace({phase, number});
    if (!is_new) continue;
    std::ranges::set_intersection(options.allowed_tokens, mask.allowed_tokens, std::back_inserter(both->second));
  }
}

void RowRun::MergeBans() {
  const auto bans = [](const PositionMask& mask) { return !mask.banned_tokens.empty(); };
  const bool has_bans = std::ranges::any_of(plan().masks, bans);
  std::vector<PositionEdits> banned_edits;
  if (has_bans) {
    PositionEdits listed({spec_, &spec().listed_edits});
    listed.Share();
    banned_edits.assign(plan().positions(), listed);
  }
  const PositionEdits* before = nullptr;
  for (uint32_t index = 0; index < plan().positions(); ++index) {
    PositionEdits* edits = parts_.views.empty() ? nullptr : &parts_.views[index].edits;
    if (has_bans && bans(plan().masks[MaskOf(index)])) {
      const PositionEdits& without = edits != nullptr ? *edits : banned_edits[index];
      edits = &(banned_edits[index] = without.WithBans(plan().masks[MaskOf(index)].banned_tokens));
    }
    // A compact row asks for its positions in turn.
    if (edits == nullptr || !plan().compact.empty()) continue;
    edits->Keep(before);
    before = edits;
  }
  if (has_bans) extras().banned_edits = std::move(banned_edits);
}

void RowRun::Next::Set(kernels::RowRequest* request) const {
  request->sampler_state = sampler_state;
  if (request->survival != kernels::RowRequest::kNoBlock) request->survival = survival;
}

std::span<const uint32_t> RowRun::AllowedIn(uint32_t phase, size_t number) const {
  if (extras_ != nullptr) {
    const auto cut = extras_->allowed.find({phase, number});
    if (cut != extras_->allowed.end()) return cut->second;
  }
  return plan().masks[number].allowed_tokens;
}

kernels::RowRequest RowRun::RequestAt(uint32_t index, kernels::DType dtype, const void* dense,
                                      kernels::DType draft_dtype) const {
  const PositionView* const view = parts_.views.empty() ? nullptr : &parts_.views[index];
  kernels::RowRequest kernel =
      MakeRowRequest(spec(), view, plan().intent.position + plan().DepthOf(index), plan().draw_salt);
  kernel.dtype = dtype;
  kernel.parameters = &ParametersIn(PhaseAt(index));
  kernel.sampler_state = plan().sampler_state;
  if (!plan().masks.empty()) {
    const size_t at = MaskOf(index);
    const PositionMask& mask = plan().masks[at];
    if (!mask.banned_tokens.empty()) kernel.edits = extras_->banned_edits[index];
    if (mask.has_allowed_tokens) {
      kernel.has_allowed_tokens = true;
      kernel.allowed_tokens = AllowedIn(PhaseAt(index), at);
    }
    const std::span<const uint32_t> words = parts_.masks[at].words();
    kernel.allowed_bits = words.empty() ? nullptr : words.data();
  }
  ForceToken(view, &kernel);
  if (plan().kind == RowPlan::Kind::kScore) {
    kernel.task = kernels::RowTask::kScore;
    kernel.given = plan().scored[index];
    kernel.wants_race_place = plan().wants_race;
    if (!plan().requested.empty()) kernel.requested = plan().requested[index];
    return kernel;
  }
  const std::optional<uint32_t> draft = plan().FirstDraftAfter(index);
  if (!draft) return kernel;
  kernel.given = plan().ahead.tokens[*draft];
  if (!plan().has_test()) {
    kernel.likely = kernel.given;
    return kernel;
  }
  if (plan().kind == RowPlan::Kind::kBlock) {
    kernel.survival = kernels::RowRequest::kCertainSurvival;
    kernel.requested = extras_->requested[index];
  }
  kernel.task = kernels::RowTask::kVerify;
  kernel.draft.with_replacement = plan().with_replacement;
  if (plan().is_tree) kernel.rivals = extras_->rivals[index];
  if (!plan().sparse.empty()) {
    const SparseDraft& sparse = plan().sparse[plan().DistributionOf(index)];
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

RowRun::Progress RowRun::Take(uint32_t index, kernels::RowOutput&& output) {
  *OutputAt(index) = std::move(output);
  return TakeWritten(index);
}

RowRun::Progress RowRun::Take(uint32_t index, Refusal refusal) {
  if (runs_in_order_) extras_->missing[index] = false;
  extras().refusals.emplace(index, std::move(refusal));
  --missing_;
  return {runs_in_order_ || missing_ == 0, std::nullopt};
}

RowRun::Progress RowRun::TakeWritten(uint32_t index) {
  --missing_;
  if (!runs_in_order_) return {missing_ == 0, std::nullopt};
  extras_->missing[index] = false;
  if (plan().kind == RowPlan::Kind::kBlock) {
    const std::optional<Next> next = NextOfBlock(index);
    return {!next, next};
  }
  const std::optional<uint32_t> next = PositionAfter(index);
  if (!next) return {true, std::nullopt};
  // The output's token continues the text, drawn, accepted or given alike, and so its state continues the sampler's.
  return {false, Next{*next, result_.outputs[index].sampler_state}};
}

void RowRun::RunCompact(DenseAt dense_at, kernels::DType draft_dtype, Bill* bill) {
  thread_local kernels::cpu::Scratch scratch;
  const bool may_raise = MayRaise(spec());
  size_t named = 0;  // tokens that the row's positions require
  const auto run = [&](const kernels::RowRequest& request, uint32_t index) {
    const kernels::StatedRow& stated = plan().compact[index];
    const uint64_t tokens = stated.first.size() + stated.others.size() + request.requested.size();
    kernels::RowRequired required;  // the whole row
    const uint64_t sought = request.allowed_tokens.size() * static_cast<uint64_t>(std::bit_width(request.edits.size()));
    if (bill->Take(price::kCompactToken * tokens + price::kCopiedEdit * request.edits.size() +
                   price::kSearchStep * sought)) {
      auto decided = kernels::cpu::DecideRow(request, stated.row(), may_raise, &scratch);
      if (auto* output = std::get_if<kernels::RowOutput>(&decided)) return Take(index, std::move(*output));
      required = std::get<kernels::RowRequired>(std::move(decided));
      named += required.tokens.size();
      bill->Take(price::kNamedToken * required.tokens.size());  // what they cost shows when they are found
      if (named > kMaxRequiredTokens || !bill->TakeNames(required.tokens.size())) required.tokens = {};
    }
    Refusal refusal{Reason::kRowRequired, "", "", ""};
    refusal.required.push_back({index, std::move(required)});
    return Take(index, std::move(refusal));
  };
  std::optional<Next> next;
  for (std::optional<uint32_t> index = 0; index;) {
    kernels::RowRequest request = RequestAt(*index, kernels::DType::kF32, dense_at(*index), draft_dtype);
    if (next) next->Set(&request);
    const Progress progress = run(request, *index);
    next = progress.next;
    index = progress.is_complete ? std::nullopt : progress.next ? std::optional(progress.next->index) : *index + 1;
  }
}

std::optional<RowRun::Next> RowRun::NextOfBlock(uint32_t index) {
  kernels::RowOutput& output = result_.outputs[index];
  if (output.error != kernels::RowFault::kNone) return std::nullopt;
  if (index < plan().drafts()) {
    if (output.survival == 0) return std::nullopt;
    return Next{index + 1, plan().sampler_state, output.survival};
  }
  const uint64_t survival = result_.outputs[index - 1].survival;
  const PositionView* const view = parts_.views.empty() ? nullptr : &parts_.views[index];
  const law::DrawKey key = law::ToDrawKey(
      MakeRowRequest(spec(), view, plan().intent.position + plan().DepthOf(index), plan().draw_salt).noise);
  output.accepted = law::MayEndAfter(law::WordOf(law::BlockWords(key), 1), survival);
  return std::nullopt;
}

std::optional<uint32_t> RowRun::EndBlock() {
  uint32_t end = 0;
  for (uint32_t i = 0; i < plan().positions() && !IsMissing(i); ++i) {
    const kernels::RowOutput* const output = ServedAt(i);
    if (output == nullptr) return i;
    if (output->accepted) end = i;
  }
  for (uint32_t i = 0; i < plan().positions() && !IsMissing(i); ++i) {
    kernels::RowOutput& output = result_.outputs[i];
    output.accepted = i < end;
    if (i == plan().drafts()) break;
    if (output.accepted) output.token = plan().ahead.tokens[i];
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

std::optional<Refusal> RowRun::Finish() {
  if (!plan().compact.empty()) {
    if (Refusal required = WhyRequired(); !required.required.empty()) return required;
  }
  if (plan().kind == RowPlan::Kind::kBlock) {
    if (const std::optional<uint32_t> failed = EndBlock()) return WhyFailed(*failed);
  }
  SORTITION_CHECK(runs_in_order_ || missing_ == 0);
  if (const std::optional<uint32_t> failed = plan().verifies() ? Walk() : FindFailed()) return WhyFailed(*failed);
  for (uint32_t i = 0; i < result_.outputs.size() && !spec().history.phases.empty(); ++i) {
    // The position after an accepted draft has the draft's number and one.
    const bool follows_path = plan().verifies() && i > 0;
    result_.phases.push_back(PhaseAt(follows_path ? result_.path[i - 1] + 1 : i));
  }
  return std::nullopt;
}

// Lists the undecided positions, those after the walk's end too: the result says which drafts passed there.
Refusal RowRun::WhyRequired() const {
  Refusal all{Reason::kRowRequired, "", "", "the compact row does not decide its answer"};
  if (extras_ == nullptr) return all;
  for (const auto& [index, refusal] : extras_->refusals) {
    all.required.insert(all.required.end(), refusal.required.begin(), refusal.required.end());
  }
  if (!all.required.empty()) {
    all.field = absl::StrCat(StepRowField(plan().row), ".compact[", all.required[0].position, "]");
  }
  return all;
}

Refusal RowRun::WhyFailed(uint32_t index) const {
  if (extras_ != nullptr) {
    const auto refusal = extras_->refusals.find(index);
    if (refusal != extras_->refusals.end()) return refusal->second;
  }
  Refusal refusal = ToRefusal(result_.outputs[index], plan().row);
  const PositionView* const view = parts_.views.empty() ? nullptr : &parts_.views[index];
  const bool is_forced = view != nullptr && view->forced;
  if (refusal.reason == Reason::kNoLiveToken && is_forced) {
    refusal.message = absl::StrCat("the logits mask token ", *view->forced, ", which phase ", view->phase, " forces");
  } else if (refusal.reason == Reason::kNoLiveToken) {
    NameMasks(index, view, &refusal);
  }
  if (plan().positions() > 1) absl::StrAppend(&refusal.message, ", on the row's tensor row ", index);
  return refusal;
}

void RowRun::NameMasks(uint32_t index, const PositionView* view, Refusal* refusal) const {
  const size_t mask = MaskOf(index);
  const bool lists_none =
      mask < plan().masks.size() && plan().masks[mask].has_allowed_tokens && plan().masks[mask].allowed_tokens.empty();
  const bool allows_none =
      lists_none || (mask < parts_.masks.size() && parts_.masks[mask].AllowsNone(spec().live_vocabulary));
  if (allows_none) {
    refusal->field = MaskField(plan(), mask);
    refusal->message = "the mask allows no token";
  } else if (mask < plan().masks.size() && !plan().masks[mask].banned_tokens.empty()) {
    refusal->field = MaskField(plan(), mask) + ".banned_tokens";
    refusal->message = "no token is live beside the banned ones";
  }
  refusal->message += MaskingOptions(plan(), mask, spec(), view);
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
