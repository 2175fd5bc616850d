// A row's way: read, edit, filter, race, describe.
#include "kernels/cpu/sample_row.h"

#include <algorithm>
#include <optional>

#include "kernels/check_row.h"
#include "kernels/cpu/allowed_words.h"
#include "kernels/cpu/chain/chain_run.h"
#include "kernels/cpu/compact/describe.h"
#include "kernels/cpu/edit.h"
#include "kernels/cpu/filter.h"
#include "kernels/cpu/list_first.h"
#include "kernels/cpu/race.h"
#include "kernels/cpu/race_place.h"
#include "kernels/cpu/read.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/sums.h"
#include "kernels/cpu/verify.h"
#include "kernels/law/chain.h"
#include "kernels/law/reference_row.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {
namespace {

// Returns the token with the key that was sent.
Candidate Sent(const Kernels& kernels, const RowRequest& request, const RowView& row, uint32_t token) {
  const uint32_t group = token / law::kGroupSize;
  if (row.lazy != nullptr && !row.lazy->Has(group)) kernels.CopyGroup(row, group);
  return Candidate::Of(law::Key(law::Canonical(SentBits(request, token))), token);
}

// Returns the token with its key after the changes, 0 where it is masked.
Candidate Changed(const Kernels& kernels, const RowRequest& request, const RowView& row, uint32_t token) {
  if (row.IsOnlyListed()) {
    const uint32_t sent = law::KeyBits(Sent(kernels, request, row, token).key());
    return Candidate::Of(law::Key(law::ChangedBits(request, {token, sent})), token);
  }
  const auto edited = std::ranges::lower_bound(row.edited, token, {}, &Candidate::token);
  if (edited != row.edited.end() && edited->token() == token) return *edited;
  const bool shown = row.sent_words == nullptr || (row.sent_words[token / 64] >> (token % 64) & 1) != 0;
  return shown ? Sent(kernels, request, row, token) : Candidate::Of(0, token);
}

// Applies `place` to the requested tokens.
template <typename Place>
std::span<const Candidate> Requested(const RowRequest& request, Scratch* scratch, Place place) {
  Candidate* const requested = scratch->requested.Reserve(request.requested.size());
  for (size_t i = 0; i < request.requested.size(); ++i) requested[i] = place(request.requested[i]);
  return {requested, request.requested.size()};
}

// Fills in the requested logprobs of the processed distribution.
void DescribeProcessed(const Kernels& kernels, const RowRequest& request, const RowView& row, const RowScale& scale,
                       const Kept& kept, Scratch* scratch, RowOutput* answer) {
  const RowParameters& parameters = *request.parameters;
  if (parameters.processed_logprob || parameters.kept_count || parameters.kept_tokens) {
    answer->kept = CountKept(kernels, row, kept, scratch);
  }
  if (parameters.processed_logprob) {
    const auto changed = [&](uint32_t token) { return Changed(kernels, request, row, token); };
    Describe(kernels, row, scale, kept, changed(answer->token), parameters.processed_top,
             Requested(request, scratch, changed), scratch, &answer->processed);
  }
  if (parameters.entropy) answer->entropy = SumEntropy(kernels, row, scale, kept, scratch);
  if (parameters.kept_tokens) ListKept(kernels, row, kept, scratch, &answer->kept_tokens);
  if (request.wants_race_place) {
    const Candidate given = Changed(kernels, request, row, request.given);
    answer->race = FindRacePlace(kernels, row, scale, kept, law::ToDrawKey(request.noise), given, scratch);
  }
}

// The scale of the tempered distribution. `max_key`: the changed row's.
RowScale TemperedScale(const RowRequest& request, uint32_t max_key, const RowOutput& answer) {
  return MakeRowScale(law::TemperedConstants(*request.parameters, answer.temperature), max_key);
}

// Describes the changed row before the filters. `answer->mass.kept` is known.
void DescribeTempered(const Kernels& kernels, const RowRequest& request, const RowView& row, Scratch* scratch,
                      RowOutput* answer) {
  const RowParameters& parameters = *request.parameters;
  const RowScale scale = TemperedScale(request, row.max_key, *answer);
  if (parameters.tempered_logprob) {
    const auto changed = [&](uint32_t token) { return Changed(kernels, request, row, token); };
    Describe(kernels, row, scale, Kept(), changed(answer->token), parameters.tempered_top,
             Requested(request, scratch, changed), scratch, &answer->tempered);
  }
  if (!parameters.kept_log_mass) return;
  answer->mass.all =
      parameters.tempered_logprob ? answer->tempered.weight_sum : SumOfWeights(kernels, row, kLastLive, scale, scratch);
}

// `first` is the changed row's first token.
void SampleGreedy(const Kernels& kernels, const RowRequest& request, const RowView& row, Candidate first,
                  Scratch* scratch, RowOutput* answer) {
  const RowParameters& parameters = *request.parameters;
  answer->token = request.task == RowTask::kScore ? request.given : first.token();
  const bool is_rival = std::ranges::find(request.rivals, first.token()) != request.rivals.end();
  answer->accepted = request.task == RowTask::kVerify && (request.given == first.token() || is_rival);
  if (parameters.processed_logprob || parameters.kept_count || parameters.kept_tokens) answer->kept = 1;
  if (parameters.processed_logprob) {
    const auto changed = [&](uint32_t token) { return Changed(kernels, request, row, token); };
    DescribePointMass(first, changed(answer->token), parameters.processed_top, Requested(request, scratch, changed),
                      &answer->processed);
  }
  if (parameters.entropy) answer->entropy = {law::kUnitWeight, 0};
  if (parameters.kept_tokens) answer->kept_tokens = {{first.token(), law::KeyBits(first.key())}};
  if (parameters.kept_log_mass) answer->mass.kept = law::kUnitWeight;
  if (request.wants_race_place && answer->token == first.token()) answer->race = {1, 0};
}

// True if an option needs a sum over the whole row.
bool WantsSum(const RowParameters& parameters) {
  return parameters.raw_logprob || parameters.tempered_logprob || parameters.kept_log_mass;
}

// True if only the first token of the row as sent is needed.
bool IsPlainGreedy(const RowRequest& request) {
  return request.parameters->greedy && !WantsSum(*request.parameters) && request.edits.empty() && !IsMasked(request);
}

// True if a stage sums levels of all tokens as they were sent.
bool SumsSentLevels(const RowRequest& request) {
  if (IsMasked(request) || !request.edits.empty()) return false;
  for (const Stage& stage : request.parameters->chain) {
    if (law::SumsOf(uint32_t(stage.kind)) == law::kSumLevels) return true;
    if (stage.kind != StageKind::kTemperature) return false;
  }
  return false;
}

// True if the request names other tokens than the first.
bool NamesTokens(const RowRequest& request) { return request.task != RowTask::kDraw || !request.requested.empty(); }

// True if the answer describes the kept tokens.
bool DescribesKept(const RowRequest& request) {
  const RowParameters& parameters = *request.parameters;
  return parameters.processed_logprob || parameters.kept_count || parameters.kept_tokens || parameters.kept_log_mass ||
         parameters.entropy || request.wants_race_place;
}

bool HasTopK(const RowRequest& request) {
  return request.parameters->top_k != 0 && request.parameters->top_k < request.live_vocabulary;
}

// True if the row is drawn by temperature, min-p and top-p, and nothing but the token depends on what top-p keeps.
bool DrawsByTopP(const RowRequest& request) {
  return request.parameters->top_p != 0 && !HasTopK(request) && request.task == RowTask::kDraw &&
         !DescribesKept(request);
}

// True if few groups are read: copying these takes less time than copying the whole row.
bool LooksAtFewGroups(const RowRequest& request) {
  constexpr uint32_t kFew = 16;  // reads at most 1 of kFew groups
  const RowParameters& parameters = *request.parameters;
  const uint32_t groups = GroupsOf(request.live_vocabulary);
  if (groups < LazyCopy::kLeastGroups) return false;
  if (request.edits.size() > groups / kFew && !LooksAtFirst(request)) return false;
  if (WantsSum(parameters) || !parameters.chain.empty()) return false;
  if (parameters.greedy || (parameters.top_k != 0 && parameters.top_k <= groups / kFew)) return true;
  if (parameters.top_p != 0) return DrawsByTopP(request);
  return request.task == RowTask::kDraw && !DescribesKept(request);
}

// The token that the caller expects, if the race can begin with it.
std::optional<Candidate> Likely(const Kernels& kernels, const RowRequest& request, const RowView& row,
                                const RowScale& scale, const Kept& kept) {
  if (request.likely == RowRequest::kNoToken) return std::nullopt;
  const Candidate likely = Changed(kernels, request, row, request.likely);
  if (likely.key() < scale.first_live_key || !kept.Has(likely)) return std::nullopt;
  return likely;
}

// Samples from the kept tokens, and describes them as the request asks.
void SampleKept(const Kernels& kernels, const RowRequest& request, const RowView& row, const RowScale& scale,
                const Kept& kept, Scratch* scratch, RowOutput* answer) {
  switch (request.task) {
    case RowTask::kDraw:
      answer->token = Draw(kernels, row, scale, kept, law::ToDrawKey(request.noise),
                           Likely(kernels, request, row, scale, kept), scratch);
      break;
    case RowTask::kScore:
      answer->token = request.given;
      break;
    case RowTask::kVerify: {
      const Candidate draft = Changed(kernels, request, row, request.given);
      if (request.survival == RowRequest::kNoBlock && request.rivals.empty()) {
        Verify(kernels, request, row, scale, kept, draft, scratch, answer);
        break;
      }
      const std::span<const uint32_t> listed = request.draft.sparse_tokens;
      Candidate* const support = scratch->requested.Reserve(listed.size());
      for (size_t i = 0; i < listed.size(); ++i) support[i] = Changed(kernels, request, row, listed[i]);
      if (request.rivals.empty()) {
        VerifyBlock(kernels, request, row, scale, kept, draft, {support, listed.size()}, scratch, answer);
      } else {
        VerifyRounds(kernels, request, row, scale, kept, {support, listed.size()}, scratch, answer);
      }
      break;
    }
  }
  DescribeProcessed(kernels, request, row, scale, kept, scratch, answer);
}

// Draws with top-p: the race comes first, unless min-p or a mask leaves few groups. A winner that is not kept leaves
// only tokens before it. A caller that knows the noise can make rows with many such winners, so the row itself decides
// after a few.
void SampleTopP(const Kernels& kernels, const RowRequest& request, const RowView& row, const RowScale& scale,
                Scratch* scratch, RowOutput* answer) {
  constexpr int kMostRulings = 3;
  const law::DrawKey key = law::ToDrawKey(request.noise);
  const uint32_t top_p = request.parameters->top_p;
  const uint32_t floor = FloorOfMinP(*request.parameters, row, scale);
  const auto rule_by_row = [&] {
    return TopPRuling{TopPStep::kRow, false, TopPOfRow(kernels, top_p, floor, row, scale, scratch), true};
  };
  TopPRuling ruling = {TopPStep::kOwnSum, false, {.last = Candidate::Of(floor, ~0u), .listed = {}}, false};
  if (floor != 1 || IsMasked(request)) {
    const uint32_t few = floor != 1 ? 256 : Kept::kMostListed / law::kGroupSize;
    uint32_t* const groups = scratch->groups.Reserve(row.groups);
    if (kernels.SelectAtLeast(row.maxima, row.groups, floor, groups) <= few) ruling = rule_by_row();
  }
  std::optional<Candidate> likely = Likely(kernels, request, row, scale, ruling.kept);
  for (int rulings = 0;; ++rulings) {
    answer->token = Draw(kernels, row, scale, ruling.kept, key, likely, scratch);
    if (ruling.is_exact) return;
    likely.reset();
    const Candidate winner = Changed(kernels, request, row, answer->token);
    ruling = rulings < kMostRulings ? RuleByTopP(kernels, top_p, floor, winner, row, scale, scratch) : rule_by_row();
    if (ruling.is_kept) return;
  }
}

// True if the row verifies a draft that passes by a bound of the kept tokens' sum: the sum over all tokens that min-p
// keeps. Reads few groups, unless it is left to top-p. If that finds out what is kept, `*kept` says so.
bool PassesByBounds(const Kernels& kernels, const RowRequest& request, const RowView& row, const RowScale& scale,
                    Scratch* scratch, std::optional<Kept>* kept) {
  if (request.task != RowTask::kVerify || request.survival != RowRequest::kNoBlock || !request.rivals.empty())
    return false;
  const RowParameters& parameters = *request.parameters;
  if (HasTopK(request) || row.IsOnlyListed() || DescribesKept(request)) return false;
  const uint32_t floor = FloorOfMinP(parameters, row, scale);
  const Candidate draft = Changed(kernels, request, row, request.given);
  // Tries less than the sum first: the first token's weight, then lower bounds of all groups.
  if (draft.key() < floor || !Passes(request, scale, draft, law::kUnitWeight)) return false;
  const uint64_t least = BoundGroupsBelow(kernels, row, kNoCeiling, scale, scratch, floor).low;
  if (!Passes(request, scale, draft, least)) return false;
  constexpr uint64_t kWidest = law::kUnitWeight / 16;  // bounds that are further apart seldom decide
  const LeadingSum part = SumLeadingGroups(kernels, row, floor, kWidest, 0.25, scale, scratch);
  if (part.level == ~0u || !Passes(request, scale, draft, part.sum + part.rest.high)) return false;
  if (parameters.top_p == 0) return true;
  const TopPRuling ruling = RuleByTopP(kernels, parameters.top_p, floor, draft, row, scale, scratch);
  if (!ruling.is_kept && ruling.is_exact) *kept = ruling.kept;
  return ruling.is_kept;
}

void SampleDrawn(const Kernels& kernels, const RowRequest& request, const RowView& row, Scratch* scratch,
                 RowOutput* answer) {
  const RowScale scale = MakeRowScale(*request.parameters, row.max_key);
  if (DrawsByTopP(request)) return SampleTopP(kernels, request, row, scale, scratch, answer);
  if (request.task == RowTask::kScore && !DescribesKept(request)) {
    answer->token = request.given;  // and what is asked for does not depend on filters
    return;
  }
  std::optional<Kept> kept;
  if (PassesByBounds(kernels, request, row, scale, scratch, &kept)) {
    answer->token = request.given;
    answer->accepted = true;
    return;
  }
  if (!kept) kept = Filter(kernels, request, row, scale, scratch);
  SampleKept(kernels, request, row, scale, *kept, scratch, answer);
  if (request.parameters->kept_log_mass) answer->mass.kept = WeighKept(kernels, row, scale, *kept, scratch);
}

void SampleChained(const Kernels& kernels, const RowRequest& request, const RowView& changed, Scratch* scratch,
                   RowOutput* answer) {
  Chain chain(kernels, request, changed, scratch);
  chain.Run(request.task == RowTask::kDraw && !DescribesKept(request));
  const auto sample = [&] {
    SampleKept(kernels, request, chain.row(), chain.scale(), chain.kept(), scratch, answer);
    return Changed(kernels, request, chain.row(), answer->token);
  };
  Candidate chosen = sample();
  while (!chain.Keeps(chosen)) chosen = sample();
  const Kept kept = chain.kept();
  answer->temperature = chain.shape().dynamic;
  if (request.parameters->kept_log_mass) {
    const RowScale scale = TemperedScale(request, changed.max_key, *answer);
    answer->mass.kept = WeighKept(kernels, chain.row(), scale, kept, scratch);
  }
  const bool is_kept = chosen.key() != 0 && kept.Has(chosen);
  answer->sampler_state = is_kept ? chain.NextState(chosen) : request.sampler_state;
  law::ShowProcessed(chain.shape(), answer);
}

// Samples a row that LayRow laid at `*laid`. Writes there what it finds in the row.
void SampleLaid(const Kernels& kernels, const RowRequest& request, Scratch* scratch, RowView* laid, RowOutput* answer) {
  const RowParameters& parameters = *request.parameters;
  RowView row;
  if (!ReadRow(kernels, request, scratch, laid, answer)) return;
  const RowView& raw = *laid;
  if (!ChangeRow(kernels, request, raw, scratch, &row, answer)) return;
  if (row.max_key == 0) {
    answer->error = RowFault::kNoLiveToken;
    return;
  }
  if (request.task == RowTask::kVerify && !CheckDraft(kernels, request, answer)) return;
  if (parameters.greedy) {
    SampleGreedy(kernels, request, row, First(kernels, row), scratch, answer);
  } else if (!parameters.chain.empty()) {
    SampleChained(kernels, request, row, scratch, answer);
  } else {
    SampleDrawn(kernels, request, row, scratch, answer);
  }
  if (parameters.tempered_logprob || parameters.kept_log_mass) {
    // A chain may have masked tokens in the memory that `row` refers to.
    if (!parameters.chain.empty()) ChangeRow(kernels, request, raw, scratch, &row, answer);
    DescribeTempered(kernels, request, row, scratch, answer);
  }
  if (parameters.raw_logprob) {
    const RowScale scale = MakeRowScale(RowParameters(), raw.max_key);
    const auto sent = [&](uint32_t token) { return Sent(kernels, request, raw, token); };
    Describe(kernels, raw, scale, Kept(), sent(answer->token), parameters.raw_top, Requested(request, scratch, sent),
             scratch, &answer->raw);
  }
}

}  // namespace

void SampleRow(const Target& target, const RowRequest& request, const RowCopy& copy, Scratch* scratch,
               RowOutput* answer) {
  CheckAllButEdits(request);
  const Kernels& kernels = target.kernels;
  answer->Clear();

  RowView raw = LayRow(request, copy, scratch);
  // A row that is copied keeps only its first token after this pass.
  if (IsPlainGreedy(request) && (copy.segments.empty() || !NamesTokens(request))) {
    Candidate first;
    if (kernels.FindPlainFirst(raw, &first)) {
      if (request.task == RowTask::kVerify && !CheckDraft(kernels, request, answer)) return;
      return SampleGreedy(kernels, request, raw, first, scratch, answer);
    }
  }
  if (!copy.segments.empty() && LooksAtFewGroups(request)) {
    LazyCopy lazy = CopyLazily(scratch, raw);
    RowView lazily = raw;
    lazily.lazy = &lazy;
    SampleLaid(kernels, request, scratch, &lazily, answer);
    if (!lazy.has_failed) return;
    answer->Clear();
  }
  raw.sums_logits = SumsSentLevels(request);
  SampleLaid(kernels, request, scratch, &raw, answer);
}

void SampleRow(const Target& target, const RowRequest& request, Scratch* scratch, RowOutput* answer) {
  SampleRow(target, request, RowCopy(), scratch, answer);
}

void SampleRow(const RowRequest& request, Scratch* scratch, RowOutput* answer) {
  SampleRow(BestTarget(), request, scratch, answer);
}

}  // namespace sortition::kernels::cpu
