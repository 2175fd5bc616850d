// Integers to logprobs, reasons to errors.
#include "service/result/encode.h"

#include <string>

#include "kernels/check.h"
#include "kernels/law/chain.h"
#include "kernels/law/logprob.h"
#include "service/limits.h"

namespace sortition::service {

void EncodeLogprobs(const kernels::Distribution& distribution, double temperature, v1::Logprobs* logprobs) {
  logprobs->set_logprob(law::Logprob(distribution, distribution.chosen.bits, temperature));
  logprobs->set_rank(distribution.rank);
  logprobs->mutable_top_tokens()->Reserve(static_cast<int>(distribution.top.size()));
  logprobs->mutable_top_logprobs()->Reserve(static_cast<int>(distribution.top.size()));
  for (const kernels::TokenBits& top : distribution.top) {
    logprobs->add_top_tokens(top.token);
    logprobs->add_top_logprobs(law::Logprob(distribution, top.bits, temperature));
  }
  for (const kernels::Place& place : distribution.requested) {
    logprobs->add_requested_logprobs(law::Logprob(distribution, place.bits, temperature));
    logprobs->add_requested_ranks(place.rank);
  }
}

void EncodeError(const Refusal& refusal, v1::Error* error) {
  error->set_code(static_cast<int32_t>(CodeOf(refusal.reason)));
  error->set_reason(static_cast<v1::ErrorReason>(refusal.reason));
  error->set_field(refusal.field);
  error->set_limit(refusal.limit);
  error->set_message(refusal.message);
  if (refusal.retry_after > absl::ZeroDuration()) {
    const int64_t nanoseconds = absl::ToInt64Nanoseconds(refusal.retry_after);
    error->mutable_retry_after()->set_seconds(nanoseconds / 1'000'000'000);
    error->mutable_retry_after()->set_nanos(static_cast<int32_t>(nanoseconds % 1'000'000'000));
  }
}

v1::StreamResponse EncodeRefused(const v1::StreamRequest& message, uint64_t message_index, const Refusal& refusal) {
  // A longer name is no sequence's and is not echoed.
  const auto is_name = [](const std::string& name) { return !name.empty() && name.size() <= kMaxNameBytes; };
  v1::StreamResponse response;
  v1::Error* error = nullptr;
  if (message.has_open() && is_name(message.open().request_id())) {
    response.mutable_opened()->set_request_id(message.open().request_id());
    response.mutable_opened()->set_epoch(message.open().epoch());
    error = response.mutable_opened()->mutable_error();
  } else if (message.has_import_sequence() && is_name(message.import_sequence().open().request_id())) {
    response.mutable_opened()->set_request_id(message.import_sequence().open().request_id());
    response.mutable_opened()->set_epoch(message.import_sequence().open().epoch());
    error = response.mutable_opened()->mutable_error();
  } else if (message.has_fork() && is_name(message.fork().child().request_id())) {
    response.mutable_forked()->set_request_id(message.fork().child().request_id());
    error = response.mutable_forked()->mutable_error();
  } else if (message.has_export_sequence() && is_name(message.export_sequence().request_id())) {
    response.mutable_exported()->set_request_id(message.export_sequence().request_id());
    error = response.mutable_exported()->mutable_error();
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

void EncodeDraw(const kernels::RowOutput& answer, const kernels::RowParameters& parameters,
                std::optional<uint64_t> history_hash, v1::DrawResult* result) {
  SORTITION_CHECK(answer.error == kernels::RowError::kNone);
  result->set_token(answer.token);
  if (history_hash) result->set_history_hash(*history_hash);
  if (parameters.raw_logprob) EncodeLogprobs(answer.raw, 1, result->mutable_raw());
  if (parameters.processed_logprob)
    EncodeLogprobs(answer.processed, law::ProcessedTemperature(parameters, answer), result->mutable_processed());
  if (parameters.entropy) result->set_entropy(law::Entropy(answer.entropy));
  if (parameters.kept_count) result->set_kept_count(answer.kept);
}

}  // namespace sortition::service
