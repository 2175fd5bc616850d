// Validation of tasks: scores, chains and trees of drafts, drafters' probabilities, masks.
#include "service/request/position_request.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/law/law.h"
#include "service/request/checks.h"

namespace sortition::service {
namespace {

template <typename Tokens>
std::optional<Refusal> CheckTokens(const Tokens& tokens, const Bound& most, const SequenceSpec& spec,
                                   const std::string& field) {
  if (tokens.empty()) return MissingField(field);
  if (auto refusal = CheckCount(static_cast<uint64_t>(tokens.size()), most, field)) return refusal;
  for (int i = 0; i < tokens.size(); ++i) {
    if (auto refusal = CheckToken(tokens[i], spec.live_vocabulary, field, i)) return refusal;
  }
  return std::nullopt;
}

Refusal Contradiction(std::string field, absl::string_view why) {
  return Refusal{Reason::kContradiction, std::move(field), "", std::string(why)};
}

// Returns why no draft of the sequence can be verified by blocks.
std::optional<Refusal> WhyNoBlock(const SequenceSpec& spec, const std::string& field) {
  if (spec.AnyOptions([](const RowOptions& options) { return options.parameters.greedy; })) {
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

std::optional<Refusal> ParseMode(v1::VerifyMode mode, const SequenceSpec& spec, const std::string& path,
                                 RowPlan* plan) {
  const std::string field = path + ".mode";
  switch (mode) {
    case v1::VERIFY_MODE_GREEDY:
      if (!spec.parameters.greedy) return Contradiction(field, "the sequence's temperature is not 0");
      if (spec.AnyOptions([](const RowOptions& options) { return !options.parameters.greedy; })) {
        return Contradiction(field, "the temperature of a phase is not 0");
      }
      plan->kind = RowPlan::Kind::kCompare;
      return std::nullopt;
    case v1::VERIFY_MODE_COUPLED:
      plan->kind = RowPlan::Kind::kCompare;
      return std::nullopt;
    case v1::VERIFY_MODE_REJECTION:
      plan->kind = RowPlan::Kind::kReject;
      return std::nullopt;
    case v1::VERIFY_MODE_BLOCK:
      plan->kind = RowPlan::Kind::kBlock;
      return WhyNoBlock(spec, field);
    default:
      return MissingField(field);
  }
}

// Returns why the operator's policy takes no drafts that are accepted by their probability: these carry no mark.
std::optional<Refusal> WhyNoTest(const RowPlan& plan, const SequenceSpec& spec, const std::string& path) {
  if (!plan.has_test() || spec.history.watermark_id == 0) return std::nullopt;
  return Refusal{Reason::kContradiction, path + ".mode", "VERIFY_MODE_GREEDY or VERIFY_MODE_COUPLED",
                 "the operator's policy marks the text, and a draft that its probability accepts carries no mark"};
}

// `drafts` were drawn from the message's distribution.
std::optional<Refusal> ParseSparse(const v1::SparseProbabilities& message, std::span<const uint32_t> drafts,
                                   const std::string& field, const SequenceSpec& spec, const Limits& limits,
                                   SparseDraft* sparse) {
  const std::string tokens = field + ".tokens";
  if (auto refusal = CheckTokens(message.tokens(), Bounds(limits).max_listed_tokens(), spec, tokens)) return refusal;
  if (message.probabilities_size() != message.tokens_size()) {
    return Refusal{Reason::kOutOfRange, field + ".probabilities", absl::StrCat(message.tokens_size(), " entries"),
                   absl::StrCat("has ", message.probabilities_size(), " entries; there is one for each token")};
  }
  std::vector<std::pair<uint32_t, uint32_t>> entries;
  uint64_t units = 0;
  for (int i = 0; i < message.tokens_size(); ++i) {
    const float q = message.probabilities(i);
    if (auto refusal = CheckRange(q, 0.0f, 1.0f, absl::StrCat(field, ".probabilities[", i, "]"))) return refusal;
    // -0 is 0.
    entries.emplace_back(message.tokens(i), std::bit_cast<uint32_t>(q) & 0x7fffffffu);
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

// `message` is a VerifyDraft or a VerifyTree; its drafts are in the plan.
template <typename Message>
std::optional<Refusal> ParseDraftProbabilities(const Message& message, const std::string& path, const StepShape& shape,
                                               const SequenceSpec& spec, const Limits& limits, RowPlan* plan) {
  const std::string row_field = path + ".draft_row";
  const std::string sparse_field = path + ".sparse_probabilities";
  const bool is_sparse = message.sparse_probabilities_size() > 0;
  if (!message.has_draft_row() && !is_sparse) {
    if (plan->kind == RowPlan::Kind::kBlock) return MissingField(row_field);
    return std::nullopt;
  }
  if (!plan->has_test()) {
    return Contradiction(is_sparse ? sparse_field : row_field, "the mode looks at no draft probabilities");
  }
  if (message.has_draft_row() && is_sparse) return Contradiction(sparse_field, "there is a draft_row, too");
  const std::vector<std::vector<uint32_t>> drafts = DraftsOfPositions(plan->ahead);
  const auto count = static_cast<uint32_t>(drafts.size());
  if (message.has_draft_row()) {
    if (!shape.draft_payload) return MissingField("step.draft_probabilities");
    if (message.draft_row() >= shape.draft_rows || count > shape.draft_rows - message.draft_row()) {
      return Refusal{Reason::kOutOfRange, row_field, absl::StrCat("<= ", shape.draft_rows, " - ", count),
                     absl::StrCat("the step has ", shape.draft_rows, " rows of draft probabilities")};
    }
    plan->draft_row = message.draft_row();
    return std::nullopt;
  }
  if (static_cast<uint32_t>(message.sparse_probabilities_size()) != count) {
    return Refusal{Reason::kOutOfRange, sparse_field, absl::StrCat(count, " entries"),
                   absl::StrCat("has ", message.sparse_probabilities_size(), " entries; there is one for each ",
                                plan->is_tree ? "place that drafts follow" : "draft")};
  }
  plan->sparse.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    if (auto refusal = ParseSparse(message.sparse_probabilities(static_cast<int>(i)), drafts[i],
                                   absl::StrCat(sparse_field, "[", i, "]"), spec, limits, &plan->sparse[i])) {
      return refusal;
    }
  }
  return std::nullopt;
}

// Returns how the tree's drafts are tested: a tree with probabilities says how they were drawn.
std::optional<Refusal> ParseSampling(const v1::VerifyTree& tree, const std::string& path, RowPlan* plan) {
  const std::string field = path + ".draft_sampling";
  const bool has_probabilities = tree.has_draft_row() || tree.sparse_probabilities_size() > 0;
  switch (tree.draft_sampling()) {
    case v1::DRAFT_SAMPLING_WITHOUT_REPLACEMENT:
    case v1::DRAFT_SAMPLING_WITH_REPLACEMENT:
      if (!has_probabilities) return Contradiction(field, "the row has no draft probabilities");
      plan->with_replacement = tree.draft_sampling() == v1::DRAFT_SAMPLING_WITH_REPLACEMENT;
      return std::nullopt;
    default:
      if (has_probabilities) return MissingField(field);
      // Rejecting certain drafts in turn is the same as drawing a token and comparing it with each of them.
      plan->kind = RowPlan::Kind::kCompare;
      return std::nullopt;
  }
}

std::optional<Refusal> ParseChain(const v1::VerifyDraft& chain, const std::string& path, const StepShape& shape,
                                  const SequenceSpec& spec, const Limits& limits, RowPlan* plan) {
  const Bound most = Bounds::max_draft_tokens();
  if (auto refusal = CheckTokens(chain.draft_tokens(), most, spec, path + ".draft_tokens")) return refusal;
  if (auto refusal = ParseMode(chain.mode(), spec, path, plan)) return refusal;
  if (auto refusal = WhyNoTest(*plan, spec, path)) return refusal;
  plan->ahead = TokenTree::Chain({chain.draft_tokens().begin(), chain.draft_tokens().end()});
  plan->return_probabilities = chain.return_probabilities();
  return ParseDraftProbabilities(chain, path, shape, spec, limits, plan);
}

std::optional<Refusal> ParseTree(const v1::VerifyTree& tree, const std::string& path, const StepShape& shape,
                                 const SequenceSpec& spec, const Limits& limits, RowPlan* plan) {
  const Bound most = Bounds::max_draft_tokens();
  if (auto refusal = CheckTokens(tree.draft_tokens(), most, spec, path + ".draft_tokens")) return refusal;
  if (auto refusal = ParseMode(tree.mode(), spec, path, plan)) return refusal;
  if (plan->kind == RowPlan::Kind::kBlock) return Contradiction(path + ".mode", "the drafts of a tree are no block");
  if (auto refusal = ParseSampling(tree, path, plan)) return refusal;
  if (auto refusal = WhyNoTest(*plan, spec, path)) return refusal;
  plan->is_tree = true;
  plan->return_probabilities = tree.return_probabilities();
  if (tree.parents_size() != tree.draft_tokens_size()) {
    return Refusal{Reason::kOutOfRange, path + ".parents", absl::StrCat(tree.draft_tokens_size(), " entries"),
                   absl::StrCat("has ", tree.parents_size(), " entries; there is one for each draft")};
  }
  std::set<std::pair<int32_t, uint32_t>> continuations;
  for (int i = 0; i < tree.parents_size(); ++i) {
    const std::string field = absl::StrCat(path, ".parents[", i, "]");
    if (auto refusal = CheckRange<int32_t>(tree.parents(i), -1, i - 1, field)) return refusal;
    const bool is_new = continuations.emplace(tree.parents(i), tree.draft_tokens(i)).second;
    if (!is_new && !plan->with_replacement) {
      return Contradiction(absl::StrCat(path, ".draft_tokens[", i, "]"), "its parent has this continuation already");
    }
  }
  plan->ahead.tokens.assign(tree.draft_tokens().begin(), tree.draft_tokens().end());
  plan->ahead.parents.assign(tree.parents().begin(), tree.parents().end());
  return ParseDraftProbabilities(tree, path, shape, spec, limits, plan);
}

std::optional<Refusal> ParseRequested(const v1::Score& score, const std::string& field, const SequenceSpec& spec,
                                      RowPlan* plan) {
  if (score.requested().empty()) return std::nullopt;
  if (score.requested_size() != score.tokens_size()) {
    return Refusal{Reason::kOutOfRange, field, absl::StrCat(score.tokens_size(), " entries, or none"),
                   absl::StrCat("has ", score.requested_size(), " entries; there is one for each token")};
  }
  if (!spec.has_logprobs()) return NoLogprobs(field);
  for (int i = 0; i < score.requested_size(); ++i) {
    const auto& tokens = score.requested(i).tokens();
    const std::string at = absl::StrCat(field, "[", i, "].tokens");
    const Bound most = Bounds::max_top_logprobs();
    if (auto refusal = CheckCount(static_cast<uint64_t>(tokens.size()), most, at)) return refusal;
    for (int j = 0; j < tokens.size(); ++j) {
      if (auto refusal = CheckToken(tokens[j], spec.live_vocabulary, at, j)) return refusal;
    }
    std::vector<uint32_t>& ids = plan->requested.emplace_back(tokens.begin(), tokens.end());
    std::vector<uint32_t> sorted = ids;
    std::ranges::sort(sorted);
    if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
      return Contradiction(at, absl::StrCat("token id ", *twice, " is listed twice"));
    }
  }
  return std::nullopt;
}

std::optional<Refusal> ParseScore(const v1::Score& score, const std::string& path, const SequenceSpec& spec,
                                  RowPlan* plan) {
  if (auto refusal = CheckTokens(score.tokens(), Bounds::max_score_tokens(), spec, path + ".tokens")) return refusal;
  plan->kind = RowPlan::Kind::kScore;
  plan->scored.assign(score.tokens().begin(), score.tokens().end());
  plan->ahead = TokenTree::Chain({score.tokens().begin(), score.tokens().end() - 1});
  if (score.race()) {
    const auto adapts = [](const kernels::Stage& stage) { return stage.kind == kernels::StageKind::kAdaptiveP; };
    if (std::ranges::any_of(spec.parameters.chain, adapts)) {
      return Contradiction(path + ".race", "the sequence has adaptive_p, whose race its answers do not show");
    }
    plan->wants_race = true;
  }
  return ParseRequested(score, path + ".requested", spec, plan);
}

// Takes a list of live tokens as a sorted set.
std::optional<Refusal> TakeTokens(const google::protobuf::RepeatedField<uint32_t>& tokens, const std::string& field,
                                  const SequenceSpec& spec, const Limits& limits, std::vector<uint32_t>* set) {
  const Bound most = Bounds(limits).max_listed_tokens();
  if (auto refusal = CheckCount(static_cast<uint64_t>(tokens.size()), most, field)) return refusal;
  for (int i = 0; i < tokens.size(); ++i) {
    if (auto refusal = CheckToken(tokens[i], spec.live_vocabulary, field, i)) return refusal;
  }
  set->assign(tokens.begin(), tokens.end());
  std::ranges::sort(*set);
  set->erase(std::unique(set->begin(), set->end()), set->end());
  return std::nullopt;
}

// `may_be_empty`: the mask is one of a list.
std::optional<Refusal> ParseMask(const v1::RowMask& mask, bool may_be_empty, const std::string& field,
                                 const StepShape& shape, const SequenceSpec& spec, const Limits& limits,
                                 PositionMask* parsed) {
  if (!mask.banned_tokens().empty()) {
    auto refusal = TakeTokens(mask.banned_tokens(), field + ".banned_tokens", spec, limits, &parsed->banned_tokens);
    if (refusal) return refusal;
  }
  switch (mask.kind_case()) {
    case v1::RowMask::KIND_NOT_SET:
      if (may_be_empty || !mask.banned_tokens().empty()) return std::nullopt;
      return MissingField(field + ".kind");
    case v1::RowMask::kUploadedMaskId:
      parsed->uploaded_mask_id = mask.uploaded_mask_id();
      return std::nullopt;
    case v1::RowMask::kMaskRow:
      if (!shape.mask_payload) return MissingField("step.masks");
      if (mask.mask_row() >= shape.mask_rows) {
        return Refusal{Reason::kOutOfRange, field + ".mask_row", absl::StrCat("< ", shape.mask_rows),
                       absl::StrCat("the step has ", shape.mask_rows, " mask rows")};
      }
      parsed->mask_row = mask.mask_row();
      return std::nullopt;
    case v1::RowMask::kAllowedTokens:
      break;
  }
  parsed->has_allowed_tokens = true;
  return TakeTokens(mask.allowed_tokens().tokens(), field + ".allowed_tokens.tokens", spec, limits,
                    &parsed->allowed_tokens);
}

template <typename Masks>
std::optional<Refusal> ParseMasks(const v1::StepRow& row, const std::string& path, const Masks& masks,
                                  const std::string& masks_field, const StepShape& shape, const SequenceSpec& spec,
                                  const Limits& limits, RowPlan* plan) {
  if (row.has_mask()) {
    if (!masks.empty()) return Contradiction(masks_field, "the row has a mask for all positions, too");
    return ParseMask(row.mask(), false, path + ".mask", shape, spec, limits, &plan->masks.emplace_back());
  }
  if (masks.empty()) return std::nullopt;
  if (static_cast<uint32_t>(masks.size()) != plan->positions()) {
    return Refusal{Reason::kOutOfRange, masks_field, absl::StrCat(plan->positions(), " entries"),
                   absl::StrCat("has ", masks.size(), " entries; there is one for each draft and one more")};
  }
  for (int i = 0; i < masks.size(); ++i) {
    if (auto refusal = ParseMask(masks[i], true, absl::StrCat(masks_field, "[", i, "]"), shape, spec, limits,
                                 &plan->masks.emplace_back())) {
      return refusal;
    }
  }
  return std::nullopt;
}

}  // namespace

uint64_t PositionsOf(const v1::StepRow& row) {
  switch (row.task_case()) {
    case v1::StepRow::kScore:
      return static_cast<uint64_t>(std::max(row.score().tokens_size(), 1));
    case v1::StepRow::kVerifyDraft:
      return static_cast<uint64_t>(row.verify_draft().draft_tokens_size()) + 1;
    case v1::StepRow::kVerifyTree:
      return static_cast<uint64_t>(row.verify_tree().draft_tokens_size()) + 1;
    case v1::StepRow::kDraw:
    case v1::StepRow::TASK_NOT_SET:
      break;
  }
  return 1;
}

std::optional<Refusal> ParsePositions(const v1::StepRow& row, int index, const StepShape& shape,
                                      const SequenceSpec& spec, const Limits& limits, RowPlan* plan) {
  const bool is_draw = row.task_case() == v1::StepRow::kDraw || row.task_case() == v1::StepRow::TASK_NOT_SET;
  if (is_draw && !row.has_mask()) return std::nullopt;
  const std::string path = absl::StrCat("step.rows[", index, "]");
  const google::protobuf::RepeatedPtrField<v1::RowMask> none;
  const std::string chain = path + ".verify_draft";
  const std::string tree = path + ".verify_tree";
  std::optional<Refusal> refusal;
  switch (row.task_case()) {
    case v1::StepRow::kDraw:
    case v1::StepRow::TASK_NOT_SET:
      break;
    case v1::StepRow::kScore:
      refusal = ParseScore(row.score(), path + ".score", spec, plan);
      break;
    case v1::StepRow::kVerifyDraft:
      refusal = ParseChain(row.verify_draft(), chain, shape, spec, limits, plan);
      if (refusal) return refusal;
      return ParseMasks(row, path, row.verify_draft().masks(), chain + ".masks", shape, spec, limits, plan);
    case v1::StepRow::kVerifyTree:
      refusal = ParseTree(row.verify_tree(), tree, shape, spec, limits, plan);
      if (refusal) return refusal;
      return ParseMasks(row, path, row.verify_tree().masks(), tree + ".masks", shape, spec, limits, plan);
  }
  if (refusal) return refusal;
  return ParseMasks(row, path, none, "", shape, spec, limits, plan);
}

}  // namespace sortition::service
