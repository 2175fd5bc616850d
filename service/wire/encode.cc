// Turns integers into log probabilities, and refusals into errors.
#include "service/wire/encode.h"

#include <string>

#include "kernels/check.h"
#include "kernels/law/chain.h"
#include "kernels/law/logprob.h"
#include "service/limits.h"

namespace sortition::service {
namespace {

void EncodeLogprobs(const kernels::Distribution& distribution, double temperature, v1::Logprobs* logprobs) {
  logprobs->set_logprob(law::Logprob(distribution, distribution.chosen.bits, temperature));
  logprobs->set_rank(distribution.rank);
  logprobs->mutable_top_tokens()->Reserve(static_cast<int>(distribution.top.size()));
  logprobs->mutable_top_logprobs()->Reserve(static_cast<int>(distribution.top.size()));
  for (const kernels::TokenBits& top : distribution.top) {
    logprobs->add_top_tokens(top.token);
    logprobs->add_top_logprobs(law::Logprob(distribution, top.bits, temperature));
  }
  for (const kernels::TokenPlace& place : distribution.requested) {
    logprobs->add_requested_logprobs(law::Logprob(distribution, place.bits, temperature));
    logprobs->add_requested_ranks(place.rank);
  }
}

v1::RequiredLogits::Cause ToCause(kernels::RowRequiredReason reason) {
  switch (reason) {
    case kernels::RowRequiredReason::kTokens:
      return v1::RequiredLogits::CAUSE_TOKENS;
    case kernels::RowRequiredReason::kCut:
      return v1::RequiredLogits::CAUSE_CUT;
    case kernels::RowRequiredReason::kSums:
      return v1::RequiredLogits::CAUSE_SUMS;
    case kernels::RowRequiredReason::kRow:
      return v1::RequiredLogits::CAUSE_ROW;
  }
  __builtin_unreachable();
}

}  // namespace

void EncodeError(const Refusal& refusal, v1::Error* error) {
  error->set_code(static_cast<int32_t>(ToStatusCode(refusal.reason)));
  error->set_reason(static_cast<v1::ErrorReason>(refusal.reason));
  error->set_field(refusal.field);
  error->set_limit(refusal.limit);
  error->set_message(refusal.message);
  for (const RequiredLogits& required : refusal.required) {
    v1::RequiredLogits& position = *error->add_required();
    position.set_position(required.position);
    position.set_cause(ToCause(required.why.reason));
    position.mutable_tokens()->Add(required.why.tokens.begin(), required.why.tokens.end());
  }
  if (refusal.retry_after > absl::ZeroDuration()) {
    const int64_t nanoseconds = absl::ToInt64Nanoseconds(refusal.retry_after);
    error->mutable_retry_after()->set_seconds(nanoseconds / 1'000'000'000);
    error->mutable_retry_after()->set_nanos(static_cast<int32_t>(nanoseconds % 1'000'000'000));
  }
}

v1::StreamResponse EncodeRefused(const v1::StreamRequest& message, uint64_t message_index, const Refusal& refusal) {
  // No sequence has a longer name; it is not echoed.
  const auto is_name = [](const std::string& name) { return !name.empty() && name.size() <= kMaxNameBytes; };
  v1::StreamResponse response;
  v1::Error* error = nullptr;
  if (message.has_open() && is_name(message.open().request_id())) {
    response.mutable_opened()->set_request_id(message.open().request_id());
    response.mutable_opened()->set_epoch(message.open().epoch());
    error = response.mutable_opened()->mutable_error();
  } else if (message.has_fork() && is_name(message.fork().child().request_id())) {
    response.mutable_forked()->set_request_id(message.fork().child().request_id());
    error = response.mutable_forked()->mutable_error();
  } else if (message.has_close() && is_name(message.close().request_id())) {
    response.mutable_closed()->set_request_id(message.close().request_id());
    response.mutable_closed()->set_epoch(message.close().epoch());
    error = response.mutable_closed()->mutable_error();
  } else if (message.has_upload_mask()) {
    response.mutable_mask_uploaded()->set_mask_id(message.upload_mask().mask_id());
    error = response.mutable_mask_uploaded()->mutable_error();
  } else {
    response.mutable_rejected()->set_message_index(message_index);
    error = response.mutable_rejected()->mutable_error();
  }
  EncodeError(refusal, error);
  return response;
}

template <typename To>
void EncodeAsked(const kernels::RowOutput& output, const kernels::RowParameters& parameters, To* to) {
  if (parameters.raw_logprob) EncodeLogprobs(output.raw, 1, to->mutable_raw());
  if (parameters.processed_logprob) {
    EncodeLogprobs(output.processed, law::ProcessedTemperature(parameters, output), to->mutable_processed());
  }
  if (parameters.tempered_logprob) {
    EncodeLogprobs(output.tempered, law::TemperedTemperature(parameters, output), to->mutable_tempered());
  }
  if (parameters.kept_log_mass) to->set_kept_log_mass(law::KeptLogMass(output.mass));
  if (parameters.entropy) to->set_entropy(law::Entropy(output.entropy));
  if (parameters.kept_count) to->set_kept_count(output.kept);
}
template void EncodeAsked(const kernels::RowOutput&, const kernels::RowParameters&, v1::DrawResult*);
template void EncodeAsked(const kernels::RowOutput&, const kernels::RowParameters&, v1::Position*);

void EncodeDraw(const kernels::RowOutput& answer, const SequenceSpec& spec, uint32_t phase,
                std::optional<uint64_t> history_hash, v1::DrawResult* result) {
  SORTITION_CHECK(answer.error == kernels::RowFault::kNone);
  result->set_token(answer.token);
  if (history_hash) result->set_history_hash(*history_hash);
  result->set_phase(phase);
  EncodeAsked(answer, spec.Within(phase).parameters, result);
}

template <typename To>
void EncodeEnd(const TextEnd& end, uint32_t last, const SequenceSpec& spec, To* to) {
  if (spec.stops(last)) {
    to->set_finish_reason(v1::FINISH_REASON_STOP_TOKEN);
  } else if (end.repeats) {
    to->set_finish_reason(v1::FINISH_REASON_REPETITION);
  }
  if (!end.phrase_from) return;
  to->mutable_rewind()->set_position(*end.phrase_from);
  to->mutable_rewind()->mutable_tokens()->Add(end.phrase.begin(), end.phrase.end());
}
template void EncodeEnd(const TextEnd&, uint32_t, const SequenceSpec&, v1::DrawResult*);
template void EncodeEnd(const TextEnd&, uint32_t, const SequenceSpec&, v1::VerifyResult*);

}  // namespace sortition::service
