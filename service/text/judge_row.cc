// Makes plans of rows, position by position.
#include "service/text/judge_row.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "kernels/law/law.h"
#include "service/text/cost.h"

namespace sortition::service {
namespace {

// Checks a list of live tokens, which may be empty.
std::optional<Refusal> CheckList(std::span<const uint32_t> tokens, const Bound& most, const SequenceSpec& spec,
                                 const FieldName& field) {
  if (auto refusal = CheckCount(tokens.size(), most, field)) return refusal;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (auto refusal = CheckToken(tokens[i], spec.live_vocabulary, field, static_cast<int>(i))) return refusal;
  }
  return std::nullopt;
}

std::optional<Refusal> CheckTokens(std::span<const uint32_t> tokens, const Bound& most, const SequenceSpec& spec,
                                   const std::string& field) {
  if (tokens.empty()) return MissingField(field);
  return CheckList(tokens, most, spec, field);
}

Refusal Contradiction(std::string field, absl::string_view why) {
  return Refusal{Reason::kContradiction, std::move(field), "", std::string(why)};
}

// Returns why no draft of the sequence can be verified by blocks.
std::optional<Refusal> WhyNoBlock(const SequenceSpec& spec, const std::string& field) {
  if (spec.AnyOptions([](const PhaseOptions& options) { return options.parameters.greedy; })) {
    return Contradiction(field, "the sequence's temperature is 0, or that of a phase");
  }
  if (kernels::KeepsSamplerState(spec.parameters.chain)) {
    return Contradiction(field, "mirostat and adaptive_p follow from the token that is drawn before");
  }
  if (spec.receipts) return Contradiction(field, "receipts have no form for blocks");
  if (spec.logprob_token_ids.size() >= kernels::kMaxTopLogprobs) {
    return Contradiction(field, "logprob_token_ids leaves no place for a position's draft");
  }
  return std::nullopt;
}

std::optional<Refusal> JudgeMode(RowAsk::Mode mode, const SequenceSpec& spec, const std::string& path, RowPlan* plan) {
  const std::string field = path + ".mode";
  switch (mode) {
    case RowAsk::Mode::kGreedy:
      if (!spec.parameters.greedy) return Contradiction(field, "the sequence's temperature is not 0");
      if (spec.AnyOptions([](const PhaseOptions& options) { return !options.parameters.greedy; })) {
        return Contradiction(field, "the temperature of a phase is not 0");
      }
      plan->kind = RowPlan::Kind::kCompare;
      return std::nullopt;
    case RowAsk::Mode::kCoupled:
      plan->kind = RowPlan::Kind::kCompare;
      return std::nullopt;
    case RowAsk::Mode::kRejection:
      plan->kind = RowPlan::Kind::kReject;
      return std::nullopt;
    case RowAsk::Mode::kBlock:
      plan->kind = RowPlan::Kind::kBlock;
      return WhyNoBlock(spec, field);
    case RowAsk::Mode::kUnset:
      break;
  }
  return MissingField(field);
}

// Returns why the operator's policy takes no drafts that are accepted by their probability: these carry no mark.
std::optional<Refusal> WhyNoTest(const RowPlan& plan, const SequenceSpec& spec, const std::string& path) {
  if (!plan.has_test() || spec.history.watermark_id == 0) return std::nullopt;
  return Refusal{Reason::kContradiction, path + ".mode", "VERIFY_MODE_GREEDY or VERIFY_MODE_COUPLED",
                 "the operator's policy marks the text, and a draft that its probability accepts carries no mark"};
}

// `drafts` were drawn from the distribution that is asked.
std::optional<Refusal> JudgeSparse(const SparseAsk& ask, std::span<const uint32_t> drafts, const std::string& field,
                                   const SequenceSpec& spec, const Limits& limits, SparseDraft* sparse) {
  const std::string tokens = field + ".tokens";
  if (auto refusal = CheckTokens(ask.tokens, Bounds(limits).max_listed_tokens(), spec, tokens)) return refusal;
  if (ask.probabilities.size() != ask.tokens.size()) {
    return Refusal{Reason::kOutOfRange, field + ".probabilities", absl::StrCat(ask.tokens.size(), " entries"),
                   absl::StrCat("has ", ask.probabilities.size(), " entries; there is one for each token")};
  }
  std::vector<std::pair<uint32_t, uint32_t>> entries;
  uint64_t units = 0;
  for (size_t i = 0; i < ask.tokens.size(); ++i) {
    const float q = ask.probabilities[i];
    if (auto refusal = CheckRange(q, 0.0f, 1.0f, absl::StrCat(field, ".probabilities[", i, "]"))) return refusal;
    // -0 is 0.
    entries.emplace_back(ask.tokens[i], std::bit_cast<uint32_t>(q) & 0x7fffffffu);
    units += law::ProbabilityUnits(entries.back().second);
  }
  if (!law::IsWhole(units)) {
    return Refusal{Reason::kOutOfRange, field + ".probabilities", "a sum of 1 within 0.01",
                   "the probabilities do not sum to 1"};
  }
  std::ranges::sort(entries);
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto& [token, bits] = entries[i];
    if (i > 0 && entries[i - 1].first == token) {
      return Contradiction(tokens, absl::StrCat("token id ", token, " is listed twice"));
    }
    if (bits == 0) continue;
    sparse->tokens.push_back(token);
    sparse->bits.push_back(bits);
  }
  for (const uint32_t draft : drafts) {
    if (std::ranges::binary_search(sparse->tokens, draft)) continue;
    return Contradiction(field, absl::StrCat("token id ", draft, " was drafted with probability 0"));
  }
  return std::nullopt;
}

// Returns the drafts of each position that has some, in the order of positions.
std::vector<std::vector<uint32_t>> DraftsOfPositions(const TokenTree& ahead) {
  std::map<int32_t, std::vector<uint32_t>> drafts;
  for (size_t i = 0; i < ahead.tokens.size(); ++i) drafts[ahead.parents[i]].push_back(ahead.tokens[i]);
  std::vector<std::vector<uint32_t>> listed;
  for (auto& [parent, tokens] : drafts) listed.push_back(std::move(tokens));
  return listed;
}

// The drafts are in the plan.
std::optional<Refusal> JudgeDraftProbabilities(const RowAsk& ask, const std::string& path, const StepTensors& tensors,
                                               const SequenceSpec& spec, const Limits& limits, RowPlan* plan) {
  const std::string row_field = path + ".draft_row";
  const std::string sparse_field = path + ".sparse_probabilities";
  const bool is_sparse = !ask.sparse.empty();
  if (!ask.draft_row && !is_sparse) {
    if (plan->kind == RowPlan::Kind::kBlock) return MissingField(row_field);
    return std::nullopt;
  }
  if (!plan->has_test()) {
    return Contradiction(is_sparse ? sparse_field : row_field, "the mode looks at no draft probabilities");
  }
  if (ask.draft_row && is_sparse) return Contradiction(sparse_field, "there is a draft_row, too");
  const std::vector<std::vector<uint32_t>> drafts = DraftsOfPositions(plan->ahead);
  const auto count = static_cast<uint32_t>(drafts.size());
  if (ask.draft_row) {
    if (!tensors.draft_rows) return MissingField("step.draft_probabilities");
    if (*ask.draft_row >= *tensors.draft_rows || count > *tensors.draft_rows - *ask.draft_row) {
      return Refusal{Reason::kOutOfRange, row_field, absl::StrCat("<= ", *tensors.draft_rows, " - ", count),
                     absl::StrCat("the step has ", *tensors.draft_rows, " rows of draft probabilities")};
    }
    plan->draft_row = ask.draft_row;
    return std::nullopt;
  }
  if (ask.sparse.size() != count) {
    return Refusal{Reason::kOutOfRange, sparse_field, absl::StrCat(count, " entries"),
                   absl::StrCat("has ", ask.sparse.size(), " entries; there is one for each ",
                                plan->is_tree ? "place that drafts follow" : "draft")};
  }
  plan->sparse.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    if (auto refusal = JudgeSparse(ask.sparse[i], drafts[i], absl::StrCat(sparse_field, "[", i, "]"), spec, limits,
                                   &plan->sparse[i])) {
      return refusal;
    }
  }
  return std::nullopt;
}

// Judges how the tree's drafts are tested: a tree with probabilities says how they were drawn.
std::optional<Refusal> JudgeSampling(const RowAsk& ask, const std::string& path, RowPlan* plan) {
  const std::string field = path + ".draft_sampling";
  const bool has_probabilities = ask.draft_row || !ask.sparse.empty();
  if (ask.sampling != RowAsk::Sampling::kUnset) {
    if (!has_probabilities) return Contradiction(field, "the row has no draft probabilities");
    plan->with_replacement = ask.sampling == RowAsk::Sampling::kWithReplacement;
    return std::nullopt;
  }
  if (has_probabilities) return MissingField(field);
  // Rejecting certain drafts in turn is the same as drawing a token and comparing it with each of them.
  plan->kind = RowPlan::Kind::kCompare;
  return std::nullopt;
}

// Takes the parents of a tree's drafts.
std::optional<Refusal> JudgeParents(const RowAsk& ask, const std::string& path, RowPlan* plan) {
  if (ask.parents.size() != ask.tokens.size()) {
    return Refusal{Reason::kOutOfRange, path + ".parents", absl::StrCat(ask.tokens.size(), " entries"),
                   absl::StrCat("has ", ask.parents.size(), " entries; there is one for each draft")};
  }
  std::set<std::pair<int32_t, uint32_t>> continuations;
  for (size_t i = 0; i < ask.parents.size(); ++i) {
    const std::string field = absl::StrCat(path, ".parents[", i, "]");
    if (auto refusal = CheckRange<int32_t>(ask.parents[i], -1, static_cast<int32_t>(i) - 1, field)) return refusal;
    const bool is_new = continuations.emplace(ask.parents[i], ask.tokens[i]).second;
    if (!is_new && !plan->with_replacement) {
      return Contradiction(absl::StrCat(path, ".draft_tokens[", i, "]"), "its parent has this continuation already");
    }
  }
  plan->ahead.tokens.assign(ask.tokens.begin(), ask.tokens.end());
  plan->ahead.parents.assign(ask.parents.begin(), ask.parents.end());
  return std::nullopt;
}

std::optional<Refusal> JudgeDrafts(const RowAsk& ask, const std::string& path, const StepTensors& tensors,
                                   const SequenceSpec& spec, const Limits& limits, RowPlan* plan) {
  const Bound most = Bounds::max_draft_tokens();
  if (auto refusal = CheckTokens(ask.tokens, most, spec, path + ".draft_tokens")) return refusal;
  if (auto refusal = JudgeMode(ask.mode, spec, path, plan)) return refusal;
  plan->is_tree = ask.task == RowAsk::Task::kVerifyTree;
  if (plan->is_tree) {
    if (plan->kind == RowPlan::Kind::kBlock) return Contradiction(path + ".mode", "the drafts of a tree are no block");
    if (auto refusal = JudgeSampling(ask, path, plan)) return refusal;
  }
  if (auto refusal = WhyNoTest(*plan, spec, path)) return refusal;
  if (plan->is_tree) {
    if (auto refusal = JudgeParents(ask, path, plan)) return refusal;
  } else {
    plan->ahead = TokenTree::Chain({ask.tokens.begin(), ask.tokens.end()});
  }
  plan->return_probabilities = ask.return_probabilities;
  return JudgeDraftProbabilities(ask, path, tensors, spec, limits, plan);
}

std::optional<Refusal> JudgeRequested(const RowAsk& ask, const std::string& field, const SequenceSpec& spec,
                                      RowPlan* plan) {
  if (ask.requested.empty()) return std::nullopt;
  if (ask.requested.size() != ask.tokens.size()) {
    return Refusal{Reason::kOutOfRange, field, absl::StrCat(ask.tokens.size(), " entries, or none"),
                   absl::StrCat("has ", ask.requested.size(), " entries; there is one for each token")};
  }
  if (!spec.has_logprobs()) return NoLogprobs(field);
  for (size_t i = 0; i < ask.requested.size(); ++i) {
    const std::string at = absl::StrCat(field, "[", i, "].tokens");
    if (auto refusal = CheckList(ask.requested[i], Bounds::max_top_logprobs(), spec, at)) return refusal;
    std::vector<uint32_t> sorted = plan->requested.emplace_back(ask.requested[i].begin(), ask.requested[i].end());
    std::ranges::sort(sorted);
    if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
      return Contradiction(at, absl::StrCat("token id ", *twice, " is listed twice"));
    }
  }
  return std::nullopt;
}

std::optional<Refusal> JudgeScore(const RowAsk& ask, const std::string& path, const SequenceSpec& spec, RowPlan* plan) {
  if (auto refusal = CheckTokens(ask.tokens, Bounds::max_score_tokens(), spec, path + ".tokens")) return refusal;
  plan->kind = RowPlan::Kind::kScore;
  plan->scored.assign(ask.tokens.begin(), ask.tokens.end());
  plan->ahead = TokenTree::Chain({ask.tokens.begin(), ask.tokens.end() - 1});
  if (ask.wants_race) {
    const auto adapts = [](const kernels::Stage& stage) { return stage.kind == kernels::StageKind::kAdaptiveP; };
    if (std::ranges::any_of(spec.parameters.chain, adapts)) {
      return Contradiction(path + ".race", "the sequence has adaptive_p, whose race its answers do not show");
    }
    plan->wants_race = true;
  }
  return JudgeRequested(ask, path + ".requested", spec, plan);
}

// Takes a list of live tokens as a sorted set.
std::optional<Refusal> TakeTokens(std::span<const uint32_t> tokens, const std::string& field, const SequenceSpec& spec,
                                  const Limits& limits, std::vector<uint32_t>* set) {
  if (auto refusal = CheckList(tokens, Bounds(limits).max_listed_tokens(), spec, field)) return refusal;
  set->assign(tokens.begin(), tokens.end());
  std::ranges::sort(*set);
  set->erase(std::unique(set->begin(), set->end()), set->end());
  return std::nullopt;
}

// `may_be_empty`: the mask is one of a list.
std::optional<Refusal> JudgeMask(const MaskAsk& ask, bool may_be_empty, const std::string& field,
                                 const StepTensors& tensors, const SequenceSpec& spec, const Limits& limits,
                                 PositionMask* mask) {
  if (!ask.banned.empty()) {
    auto refusal = TakeTokens(ask.banned, field + ".banned_tokens", spec, limits, &mask->banned_tokens);
    if (refusal) return refusal;
  }
  switch (ask.kind) {
    case MaskAsk::Kind::kUnset:
      if (may_be_empty || !ask.banned.empty()) return std::nullopt;
      return MissingField(field + ".kind");
    case MaskAsk::Kind::kUploaded:
      mask->uploaded_mask_id = ask.number;
      return std::nullopt;
    case MaskAsk::Kind::kTensorRow:
      if (!tensors.mask_rows) return MissingField("step.masks");
      if (ask.number >= *tensors.mask_rows) {
        return Refusal{Reason::kOutOfRange, field + ".mask_row", absl::StrCat("< ", *tensors.mask_rows),
                       absl::StrCat("the step has ", *tensors.mask_rows, " mask rows")};
      }
      mask->mask_row = static_cast<uint32_t>(ask.number);
      return std::nullopt;
    case MaskAsk::Kind::kList:
      break;
  }
  mask->has_allowed_tokens = true;
  return TakeTokens(ask.allowed, field + ".allowed_tokens.tokens", spec, limits, &mask->allowed_tokens);
}

// `path` is the row's, `task` its drafts'.
std::optional<Refusal> JudgeMasks(const RowAsk& ask, const std::string& path, const std::string& task,
                                  const StepTensors& tensors, const SequenceSpec& spec, const Limits& limits,
                                  RowPlan* plan) {
  if (ask.mask) {
    if (!ask.masks.empty()) return Contradiction(task + ".masks", "the row has a mask for all positions, too");
    return JudgeMask(*ask.mask, false, path + ".mask", tensors, spec, limits, &plan->masks.emplace_back());
  }
  if (ask.masks.empty()) return std::nullopt;
  if (ask.masks.size() != plan->positions()) {
    return Refusal{Reason::kOutOfRange, task + ".masks", absl::StrCat(plan->positions(), " entries"),
                   absl::StrCat("has ", ask.masks.size(), " entries; there is one for each draft and one more")};
  }
  for (size_t i = 0; i < ask.masks.size(); ++i) {
    if (auto refusal = JudgeMask(ask.masks[i], true, absl::StrCat(task, ".masks[", i, "]"), tensors, spec, limits,
                                 &plan->masks.emplace_back())) {
      return refusal;
    }
  }
  return std::nullopt;
}

// Fills `*plan` with the row's task and masks.
std::optional<Refusal> JudgeTask(const RowAsk& ask, const StepTensors& tensors, const SequenceSpec& spec,
                                 const Limits& limits, RowPlan* plan) {
  if (ask.task == RowAsk::Task::kDraw && !ask.mask) return std::nullopt;
  const std::string path = absl::StrCat("step.rows[", ask.row, "]");
  std::string task = path;
  std::optional<Refusal> refusal;
  switch (ask.task) {
    case RowAsk::Task::kDraw:
      break;
    case RowAsk::Task::kScore:
      refusal = JudgeScore(ask, path + ".score", spec, plan);
      break;
    case RowAsk::Task::kVerifyDraft:
    case RowAsk::Task::kVerifyTree:
      task += ask.task == RowAsk::Task::kVerifyTree ? ".verify_tree" : ".verify_draft";
      refusal = JudgeDrafts(ask, task, tensors, spec, limits, plan);
      break;
  }
  return refusal ? refusal : JudgeMasks(ask, path, task, tensors, spec, limits, plan);
}

}  // namespace

std::optional<Refusal> CheckTextEnd(const RowPlan& plan, const Limits& limits, const FieldName& field) {
  const uint64_t end = uint64_t{plan.intent.position} + plan.positions();
  if (end <= limits.max_history) return std::nullopt;
  return Refusal{Reason::kOutOfRange, field.Text(), Bounds(limits).max_history().Text(),
                 absl::StrCat("the text would have ", end, " tokens")};
}

uint64_t JudgeCost(const RowAsk& ask) {
  size_t tokens = ask.append_tokens.size() + ask.tokens.size();
  for (const auto& list : ask.requested) tokens += list.size();
  for (const SparseAsk& sparse : ask.sparse) tokens += sparse.tokens.size();
  if (ask.mask) tokens += ask.mask->allowed.size() + ask.mask->banned.size();
  for (const MaskAsk& mask : ask.masks) tokens += mask.allowed.size() + mask.banned.size();
  return price::kRow + price::kListedToken * tokens;
}

std::optional<Refusal> JudgeRow(const RowAsk& ask, const StepTensors& tensors, const SequenceSpec& spec,
                                const Limits& limits, RowPlan* out) {
  const auto field = [&](absl::string_view name) { return FieldName(static_cast<int>(ask.row), name); };
  const bool is_stateful = spec.stateful();
  if (ask.has_checkpoint && !kernels::KeepsSamplerState(spec.parameters.chain)) {
    return Contradiction(field("checkpoint").Text(), "no sampler of this sequence keeps a state");
  }
  const char* const of_history = ask.history_hash             ? "history_hash"
                                 : ask.truncate_to            ? "truncate_to"
                                 : !ask.append_tokens.empty() ? "append_tokens"
                                                              : nullptr;
  if (!is_stateful && of_history != nullptr) {
    return Contradiction(field(of_history).Text(), "the sequence keeps no state");
  }
  if (spec.vocabulary != tensors.vocabulary) {
    return Refusal{Reason::kVocabularyMismatch, "step.logits.vocabulary_size", absl::StrCat(spec.vocabulary),
                   absl::StrCat("the sequence was opened with another width than ", tensors.vocabulary)};
  }
  if (ask.step_id == 0) return MissingField(field("step_id"));

  RowPlan& plan = *out;
  plan.row = ask.row;
  StepIntent& intent = plan.intent;
  intent.step_id = ask.step_id;
  intent.position = ask.position;
  intent.history_hash = ask.history_hash;
  if (is_stateful && !intent.history_hash) return MissingField(field("history_hash"));
  intent.truncate_to = ask.truncate_to;
  if (ask.is_compact && ask.tensor_row) return Contradiction(field("tensor_row").Text(), "the row is compact");
  const uint32_t tensor_row = ask.tensor_row.value_or(tensors.first_row);
  if (auto refusal = CheckRange(ask.draw_salt, 0, Bounds::max_draw_salt(), field("draw_salt"))) return refusal;
  if (!ask.is_compact) {
    auto refusal = CheckRange<uint32_t>(tensor_row, 0, tensors.tensor_rows - 1, field("tensor_row"));
    if (refusal) return refusal;
  }
  intent.append_tokens.clear();
  if (!ask.append_tokens.empty()) {
    auto refusal = CheckList(ask.append_tokens, Bounds(limits).max_history(), spec, field("append_tokens"));
    if (refusal) return refusal;
    intent.append_tokens.assign(ask.append_tokens.begin(), ask.append_tokens.end());
  }
  plan.draw_salt = ask.draw_salt;
  plan.sampler_state = kernels::InitialSamplerState(spec.parameters.chain);
  plan.tensor_row = tensor_row;
  if (auto refusal = JudgeTask(ask, tensors, spec, limits, &plan)) return refusal;
  // The check of the first one has been made above.
  if (!ask.is_compact && plan.positions() > tensors.tensor_rows - tensor_row) {
    return Refusal{
        Reason::kOutOfRange, field("tensor_row").Text(),
        absl::StrCat("<= ", tensors.tensor_rows, " - ", plan.positions()),
        absl::StrCat("the row takes ", plan.positions(), " tensor rows; the tensor has ", tensors.tensor_rows)};
  }
  if (auto refusal = CheckTextEnd(plan, limits, field("position"))) return refusal;
  return std::nullopt;
}

uint64_t DigestOptions(const RowPlan& plan) {
  const StepIntent& intent = plan.intent;
  uint64_t digest =
      absl::HashOf(intent.position, intent.history_hash, intent.truncate_to, intent.append_tokens, plan.draw_salt,
                   plan.kind, plan.is_tree, plan.draft_row.has_value(), plan.with_replacement, plan.ahead.tokens,
                   plan.ahead.parents, plan.scored, plan.requested, plan.wants_race, plan.return_probabilities);
  for (const SparseDraft& sparse : plan.sparse) digest = absl::HashOf(digest, sparse.tokens, sparse.bits);
  return digest;
}

}  // namespace sortition::service
