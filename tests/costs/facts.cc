// By the scenario's parameters and sizes.
#include "tests/costs/facts.h"

#include <algorithm>

namespace sortition::costs {

uint64_t AskedBytes(const Scenario& scenario, const Messages& messages) {
  const v1::SamplingParameters& parameters = messages.parameters();
  const auto requested = std::max<uint64_t>(static_cast<uint64_t>(parameters.logprob_token_ids_size()),
                                            scenario.Has("requested") ? scenario.Size("requested") : 0);
  if (scenario.kind == Kind::kBringAnswer) return messages.brought() * (128 + 4 * scenario.Size("banned"));
  uint64_t asked = 128;
  const auto add = [&](bool has, uint32_t top) {
    if (has) asked += 20 + 12 * (top + requested);
  };
  add(parameters.has_raw_logprobs(), parameters.raw_logprobs().top());
  add(parameters.has_processed_logprobs(), parameters.processed_logprobs().top());
  add(parameters.has_tempered_logprobs(), parameters.tempered_logprobs().top());
  if (parameters.kept_set().tokens()) asked += 4 * uint64_t{messages.live_vocabulary()};
  if (scenario.Has("return_probabilities")) asked += 4 * uint64_t{messages.live_vocabulary()};
  if (scenario.Has("receipts")) asked += 512;
  return asked * messages.shards() * std::max<uint64_t>(messages.all_positions(), 1);
}

uint64_t WorkOf(Plant plant, const Scenario& scenario, const Messages& messages) {
  const v1::SamplingParameters& parameters = messages.parameters();
  const uint64_t positions = messages.all_positions();
  const uint64_t history = scenario.is_stateful() ? scenario.Size("history") : 0;
  const uint64_t distinct = std::min<uint64_t>({history, scenario.Size("distinct"), messages.live_vocabulary()});
  const auto listed = static_cast<uint64_t>(parameters.logit_bias_size() + parameters.banned_token_ids_size() +
                                            parameters.stop_token_ids_size() + parameters.bad_words_size());
  const uint64_t edits = (listed + (scenario.penalises() ? distinct : 0)) * positions;
  const bool is_opened = scenario.kind == Kind::kOpen || scenario.kind == Kind::kLastPiece;
  const uint64_t appended = scenario.Has("append_tokens") ? scenario.Size("append") : 0;
  switch (plant) {
    case Plant::kNone:
    case Plant::kTenthPrice:
      break;
    case Plant::kInsertedCounts:
      return scenario.penalises() && is_opened ? distinct * distinct / 4 : 0;
    case Plant::kSearchingFollower:
      return scenario.is_step() ? history * (messages.positions() - 1 + appended) / 4 : 0;
    case Plant::kFreeFork:
      return scenario.kind == Kind::kFork ? 500 * history : 0;
    case Plant::kEarlyLookAhead:
      return scenario.is_compact() ? 40 * edits : 0;
    case Plant::kMergedBans:
      return scenario.Has("mask.banned_tokens") ? 40 * edits : 0;
    case Plant::kRecountedPhases:
      return scenario.Has("phases") ? 40 * distinct * positions : 0;
  }
  return 0;
}

}  // namespace sortition::costs
