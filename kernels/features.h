// Features are abilities that some kernels lack. A device names the features of its kernels; the router gives it no row
// that asks for another.
#pragma once

#include <cstdint>

#include "kernels/row.h"

namespace sortition::kernels {

// A bit for each: bit i of the first 32 is StageKind i of a chain.
using Features = uint64_t;
inline constexpr Features kNoFeatures = 0;

constexpr Features FeatureOf(StageKind kind) { return Features{1} << uint32_t(kind); }
static_assert(kStageKinds <= 32);
inline constexpr Features kFeatureEveryStage = (Features{1} << kStageKinds) - 1;
inline constexpr Features kFeatureScore = Features{1} << 32;
inline constexpr Features kFeatureVerify = Features{1} << 33;
inline constexpr Features kFeatureRequested = Features{1} << 34;  // logprobs of tokens by name
inline constexpr Features kFeatureEntropy = Features{1} << 35;
inline constexpr Features kFeatureKeptSet = Features{1} << 36;   // its count, or its tokens
inline constexpr Features kFeatureTempered = Features{1} << 37;  // the tempered distribution, or the kept mass in it
inline constexpr Features kFeatureMinKeep = Features{1} << 38;   // filters that keep a number of tokens at least
inline constexpr Features kFeatureBlock = Features{1} << 39;     // verification of blocks
inline constexpr Features kFeatureRounds = Features{1} << 40;    // several drafts of a position, tested in rounds
inline constexpr Features kAllFeatures = kFeatureEveryStage | kFeatureScore | kFeatureVerify | kFeatureRequested |
                                         kFeatureEntropy | kFeatureKeptSet | kFeatureTempered | kFeatureMinKeep |
                                         kFeatureBlock | kFeatureRounds;

// O(stages).
inline Features FeaturesOf(const RowRequest& request) {
  Features features = kNoFeatures;
  const RowParameters& parameters = *request.parameters;
  for (const Stage& stage : parameters.chain) {
    features |= FeatureOf(stage.kind);
    // The law's LeastCount of a filter: 0 and 1 are off.
    const bool has_count = stage.kind != StageKind::kTemperature && (stage.operands[3] & ~1u) != 0;
    if (has_count) features |= kFeatureMinKeep;
  }
  if (request.task == RowTask::kScore) features |= kFeatureScore;
  if (request.task == RowTask::kVerify) features |= kFeatureVerify;
  if (request.survival != RowRequest::kNoBlock) features |= kFeatureBlock;
  if (!request.rivals.empty()) features |= kFeatureRounds;
  if (!request.requested.empty()) features |= kFeatureRequested;
  if (parameters.entropy) features |= kFeatureEntropy;
  if (parameters.kept_count || parameters.kept_tokens) features |= kFeatureKeptSet;
  if (parameters.tempered_logprob || parameters.kept_log_mass) features |= kFeatureTempered;
  return features;
}

}  // namespace sortition::kernels
