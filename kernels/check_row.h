// Asserts that a request keeps row.h's promises. Every kernel checks them before it reads a byte.
#pragma once

#include <algorithm>

#include "kernels/check.h"
#include "kernels/row.h"

namespace sortition::kernels {

inline void CheckDraftOf(const RowRequest& request) {
  const DraftDistribution& draft = request.draft;
  SORTITION_CHECK(draft.form != DraftDistribution::Form::kDense || draft.dense != nullptr);
  SORTITION_CHECK(draft.sparse_tokens.size() == draft.sparse_bits.size());
  for (size_t i = 0; i < draft.sparse_tokens.size(); ++i) {
    SORTITION_CHECK(draft.sparse_tokens[i] < request.live_vocabulary);
    SORTITION_CHECK(i == 0 || draft.sparse_tokens[i - 1] < draft.sparse_tokens[i]);
    SORTITION_CHECK(draft.sparse_bits[i] <= 0x3f800000u);
  }
  if (request.rivals.empty()) return;
  SORTITION_CHECK(draft.form != DraftDistribution::Form::kCertain && request.survival == RowRequest::kNoBlock);
  for (size_t i = 0; i < request.rivals.size(); ++i) {
    const std::span<const uint32_t> before = request.rivals.first(i);
    const bool is_new =
        request.rivals[i] != request.given && std::ranges::find(before, request.rivals[i]) == before.end();
    SORTITION_CHECK(request.rivals[i] < request.live_vocabulary && (is_new || draft.with_replacement));
  }
}

inline void CheckEdits(const RowRequest& request) {
  SORTITION_CHECK(request.edits.empty() || request.edits.back().token < request.live_vocabulary);
  bool ascend = true;  // one check behind the loop: rows with penalties pay for it
  int64_t before = -1;
  for (const LogitEdit& edit : request.edits) {
    ascend &= before < edit.token;
    before = edit.token;
  }
  SORTITION_CHECK(ascend);
}

// For requests that have no logits. O(allowed tokens + sparse draft probabilities).
inline void CheckOptions(const RowRequest& request) {
  SORTITION_CHECK(request.parameters != nullptr);
  SORTITION_CHECK(request.live_vocabulary >= 1 && request.live_vocabulary <= kMaxVocabulary);
  for (size_t i = 0; i < request.allowed_tokens.size(); ++i) {
    SORTITION_CHECK(request.allowed_tokens[i] < request.live_vocabulary);
    SORTITION_CHECK(i == 0 || request.allowed_tokens[i - 1] < request.allowed_tokens[i]);
  }
  const RowParameters& parameters = *request.parameters;
  SORTITION_CHECK(parameters.multiplier >= 1u << 30 && parameters.multiplier < 1u << 31);
  SORTITION_CHECK(parameters.raw_top == 0 || parameters.raw_logprob);
  SORTITION_CHECK(parameters.processed_top == 0 || parameters.processed_logprob);
  SORTITION_CHECK(parameters.tempered_top == 0 || parameters.tempered_logprob);
  SORTITION_CHECK(parameters.chain.size() <= kMaxStages);
  const bool plain = parameters.min_p_distance == RowParameters::kMinPOff && parameters.top_k == 0 &&
                     parameters.top_p == 0 && parameters.temperature == 1;
  SORTITION_CHECK(parameters.chain.empty() || plain);
  SORTITION_CHECK(parameters.raw_top <= kMaxTopLogprobs && parameters.processed_top <= kMaxTopLogprobs);
  SORTITION_CHECK(parameters.tempered_top <= kMaxTopLogprobs);
  SORTITION_CHECK(request.requested.size() <= kMaxTopLogprobs);
  for (const uint32_t token : request.requested) SORTITION_CHECK(token < request.live_vocabulary);
  if (request.task != RowTask::kDraw) SORTITION_CHECK(request.given < request.live_vocabulary);
  SORTITION_CHECK(request.rivals.empty() || request.task == RowTask::kVerify);
  if (request.task == RowTask::kVerify) CheckDraftOf(request);
  if (request.survival != RowRequest::kNoBlock) {
    SORTITION_CHECK(request.task == RowTask::kVerify && !parameters.greedy);
    SORTITION_CHECK(request.survival <= RowRequest::kCertainSurvival);
  }
  if (!request.wants_race_place) return;
  SORTITION_CHECK(request.task == RowTask::kScore);
  SORTITION_CHECK(parameters.chain.empty() || parameters.chain.back().kind != StageKind::kAdaptiveP);
}

// O(allowed tokens + sparse draft probabilities).
inline void CheckAllButEdits(const RowRequest& request) {
  SORTITION_CHECK(request.logits != nullptr);
  CheckOptions(request);
}

// O(edits + allowed tokens + sparse draft probabilities).
inline void CheckRow(const RowRequest& request) {
  CheckAllButEdits(request);
  CheckEdits(request);
}

}  // namespace sortition::kernels
