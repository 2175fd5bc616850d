// From options and history to an answer, the long way.
#include "tests/support/plain_sequence.h"

#include <algorithm>
#include <set>

#include "kernels/check.h"
#include "kernels/law/chain.h"
#include "kernels/law/logprob.h"
#include "kernels/law/reference.h"
#include "service/text/history/history_hash.h"
#include "service/wire/compile_history_options.h"
#include "tests/support/plain_history.h"
#include "tests/support/plain_parameters.h"

namespace sortition::testing {
namespace {

uint32_t LiveVocabulary(const v1::OpenSequence& open) {
  return open.has_live_vocabulary_size() ? open.live_vocabulary_size() : open.vocabulary_size();
}

v1::Logprobs ToLogprobs(const kernels::Distribution& distribution, double temperature) {
  v1::Logprobs logprobs;
  logprobs.set_logprob(law::Logprob(distribution, distribution.chosen.bits, temperature));
  logprobs.set_rank(distribution.rank);
  for (const kernels::TokenBits& top : distribution.top) {
    logprobs.add_top_tokens(top.token);
    logprobs.add_top_logprobs(law::Logprob(distribution, top.bits, temperature));
  }
  for (const kernels::TokenPlace& place : distribution.requested) {
    logprobs.add_requested_logprobs(law::Logprob(distribution, place.bits, temperature));
    logprobs.add_requested_ranks(place.rank);
  }
  return logprobs;
}

}  // namespace

PlainSequence::PlainSequence(const v1::OpenSequence& open)
    : open_(open),
      prompt_length_(open.history().prompt_length()),
      tokens_(open.history().tokens().begin(), open.history().tokens().end()) {}

uint64_t PlainSequence::hash() const {
  const law::SamplingParameters law = PlainSamplers(open_.parameters());
  service::HistoryIdentity identity;
  identity.law_version = open_.law_version();
  identity.seed = open_.seed();
  identity.choice_index = open_.choice_index();
  identity.vocabulary = open_.vocabulary_size();
  identity.live_vocabulary = LiveVocabulary(open_);
  identity.repetition_penalty = law.repetition_penalty;
  identity.frequency_penalty = law.frequency_penalty;
  identity.presence_penalty = law.presence_penalty;
  identity.options = service::CompileHistoryOptions(open_.parameters()).Words();
  uint64_t chain = service::kEmptyHash;
  for (const uint32_t token : tokens_) chain = service::ExtendTokenHash(chain, token);
  return service::HistoryHash(chain, prompt_length_, service::HistoryDigest(identity));
}

kernels::RowOutput PlainSequence::Answer(const Row& row, uint32_t position) const {
  const PlainPlace place = PlainPlaceAfter(open_.parameters(), tokens_, prompt_length_);
  const v1::SamplingParameters p = PlainWithin(open_.parameters(), place.phase);
  const kernels::RowParameters parameters = PlainRowParameters(p);
  const std::vector<kernels::LogitEdit> edits = PlainEdits(p, tokens_, prompt_length_);
  const uint32_t live = LiveVocabulary(open_);

  std::set<uint32_t> allowed;
  for (uint32_t id = 0; id < live; ++id) {
    const auto& list = p.allowed_token_ids();
    const bool listed = list.empty() || std::find(list.begin(), list.end(), id) != list.end();
    const bool in_mask = row.mask.empty() || row.mask.at(id);
    const bool in_step = !row.allowed || std::find(row.allowed->begin(), row.allowed->end(), id) != row.allowed->end();
    if (listed && in_mask && in_step) allowed.insert(id);
  }
  const std::optional<uint32_t>& forced = place.forced;
  if (forced) allowed = {*forced};
  const std::vector<uint32_t> allowed_tokens(allowed.begin(), allowed.end());

  kernels::RowRequest request;
  request.logits = row.logits.data();
  request.dtype = row.dtype;
  request.live_vocabulary = live;
  request.parameters = &parameters;
  request.noise = PlainNoise(p, tokens_, {open_.seed(), position, open_.choice_index() | row.draw_salt << 16});
  if (!forced) request.edits = edits;
  request.has_allowed_tokens = true;
  request.allowed_tokens = allowed_tokens;
  const std::vector<uint32_t> requested(p.logprob_token_ids().begin(), p.logprob_token_ids().end());
  request.requested = requested;
  request.task = row.task;
  request.given = row.given;
  request.draft = row.draft;
  request.survival = row.survival;
  request.rivals = row.rivals;
  request.sampler_state = row.sampler_state.value_or(kernels::InitialSamplerState(parameters.chain));
  return law::SampleRowReference(request);
}

v1::DrawResult PlainSequence::Draw(const Row& row, uint32_t position) const { return Encode(Answer(row, position)); }

v1::DrawResult PlainSequence::Encode(const kernels::RowOutput& answer) const {
  SORTITION_CHECK(answer.error == kernels::RowFault::kNone);
  const PlainPlace place = PlainPlaceAfter(open_.parameters(), tokens_, prompt_length_);
  const kernels::RowParameters parameters = PlainRowParameters(PlainWithin(open_.parameters(), place.phase));
  v1::DrawResult result;
  result.set_token(answer.token);
  result.set_phase(place.phase);
  const auto& stops = open_.parameters().stop_token_ids();
  if (std::find(stops.begin(), stops.end(), answer.token) != stops.end()) {
    result.set_finish_reason(v1::FINISH_REASON_STOP_TOKEN);
  }
  if (parameters.raw_logprob) *result.mutable_raw() = ToLogprobs(answer.raw, 1);
  if (parameters.processed_logprob) {
    *result.mutable_processed() = ToLogprobs(answer.processed, law::ProcessedTemperature(parameters, answer));
  }
  if (parameters.tempered_logprob) {
    *result.mutable_tempered() = ToLogprobs(answer.tempered, law::TemperedTemperature(parameters, answer));
  }
  if (parameters.kept_log_mass) result.set_kept_log_mass(law::KeptLogMass(answer.mass));
  if (parameters.entropy) result.set_entropy(law::Entropy(answer.entropy));
  if (parameters.kept_count) result.set_kept_count(answer.kept);
  for (const kernels::TokenBits& token : answer.kept_tokens) result.add_kept_tokens(token.token);
  return result;
}

}  // namespace sortition::testing
