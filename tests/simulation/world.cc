// Draws a world, and adds up its events.
#include "tests/simulation/world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/simulation/draw.h"
#include "tests/simulation/fault.h"
#include "tests/simulation/text.h"

namespace sortition::simulation {

World::World(uint64_t world_seed, Plant planted) : seed(world_seed), plant(planted) {
  Draws draws(seed, Choice::kWorld, {});
  replicas = draws.Between(1, 3);
  workers = draws.Between(1, 3);
  sequences = draws.Between(1, 4);
  for (uint32_t worker = 0; worker < workers; ++worker) {
    Draws of_worker(seed, Choice::kRanks, {worker});
    const uint32_t count = of_worker.OneIn(5) ? of_worker.Between(2, 3) : 1;
    const bool in_step = of_worker.OneIn(2);
    for (uint32_t index = 0; index < count; ++index) ranks.push_back({worker, index, count, in_step});
    has_ranks |= count > 1;
  }
  max_latency = absl::Microseconds(draws.Between(100, 3000));
  max_service = absl::Microseconds(draws.Between(50, 3000));
  max_thought = absl::Microseconds(draws.Between(50, 3000));
  drain_grace = absl::Milliseconds(draws.Between(1, 20));
  fault_horizon = absl::Milliseconds(draws.Between(20, 120));
  policy_look = absl::Microseconds(Draws(seed, Choice::kPolicy, {1}).Between(200, 10000));

  // Small, so that runs reach every bound.
  limits.max_sequences = draws.OneIn(2) ? draws.Between(2, 6) : 1000;
  limits.kept_history = draws.Between(1, 70);
  limits.sequence_ttl = draws.OneIn(3) ? absl::Milliseconds(draws.Between(2, 30)) : absl::Hours(1);
  limits.replay_guard = absl::Milliseconds(50);
  if (draws.OneIn(3)) limits.replay_tokens_per_second = draws.Between(3000, 20000);
  limits.max_stream_age = draws.OneIn(3) ? absl::Milliseconds(draws.Between(5, 50)) : absl::ZeroDuration();
  // Long enough for a step that draws five positions in turn.
  if (limits.max_stream_age > absl::ZeroDuration()) {
    limits.max_stream_age = std::max(limits.max_stream_age, 3 * (max_latency + max_service));
  }
  limits.stream_unanswered_rows = draws.OneIn(3) ? draws.Between(1, 4) : 4096;
  limits.max_queued_rows = draws.OneIn(4) ? draws.Between(5, 8) : 16384;  // a row with drafts takes up to 5

  for (uint32_t i = 0; i < replicas; ++i) client.targets.push_back(absl::StrCat("replica ", i));
  client.limits.message_rows = draws.Between(1, 3);
  client.limits.history_piece_tokens = draws.Between(2, 9);
  client.default_timeout = absl::Hours(1);
  client.retry.connect_timeout = absl::Milliseconds(draws.Between(20, 300));
  client.retry.backoff = {absl::Milliseconds(5), absl::Milliseconds(40)};
  if (!has_ranks) {
    client.default_timeout = absl::Seconds(5);  // only silence lasts longer
    return;
  }
  limits.shard_wait = absl::Milliseconds(Draws(seed, Choice::kRanks, {}).Between(5, 200));
  // Ranks need all streams at once, room on them for rows that wait for each other, and answers that are kept for long.
  if (limits.max_stream_age > absl::ZeroDuration()) limits.max_stream_age += absl::Milliseconds(30);
  limits.stream_unanswered_rows = std::max(limits.stream_unanswered_rows, 16u);
  limits.sequence_ttl = absl::Hours(1);
}

std::string World::NameOf(uint32_t rank) const {
  const Rank& it = ranks[rank];
  const std::string name = absl::StrCat("worker ", it.worker);
  return it.count == 1 ? name : absl::StrCat(name, " rank ", it.index);
}

uint32_t World::ReplicaOf(uint32_t rank, size_t target) const {
  return ranks[rank].count == 1 ? static_cast<uint32_t>(target) : ranks[rank].worker % replicas;
}

client::ClientOptions World::ClientOf(uint32_t rank) const {
  client::ClientOptions options = client;
  const Rank& it = ranks[rank];
  if (it.count == 1) return options;
  options.targets = {client.targets[ReplicaOf(rank, 0)]};
  options.limits.message_rows = Draws(seed, Choice::kRanks, {it.worker, it.index}).Between(1, 3);
  // All shards have different widths.
  const auto begin = [&](uint32_t index) {
    return index == it.count ? kVocabulary : index * (kVocabulary / 4 + index);
  };
  options.shard =
      client::VocabularyShard{it.index, it.count, begin(it.index), begin(it.index + 1) - begin(it.index), kVocabulary};
  return options;
}

Tally& Tally::operator+=(const Tally& other) {
  steps += other.steps;
  tokens += other.tokens;
  batches += other.batches;
  replayed_tokens += other.replayed_tokens;
  evicted_sequences += other.evicted_sequences;
  missed_deadlines += other.missed_deadlines;
  silent_streams += other.silent_streams;
  drained_streams += other.drained_streams;
  lost_messages += other.lost_messages;
  late_requests += other.late_requests;
  repeated_answers += other.repeated_answers;
  superseded += other.superseded;
  overloaded += other.overloaded;
  history_required += other.history_required;
  forks += other.forks;
  accepted_drafts += other.accepted_drafts;
  scored_tokens += other.scored_tokens;
  rewinds += other.rewinds;
  repetitions += other.repetitions;
  mask_uploads += other.mask_uploads;
  checkpoints += other.checkpoints;
  zombie_tokens += other.zombie_tokens;
  rank_tokens += other.rank_tokens;
  kept_answers += other.kept_answers;
  brought_answers += other.brought_answers;
  freed_sequences += other.freed_sequences;
  missing_shards += other.missing_shards;
  compact_rows += other.compact_rows;
  required_rows += other.required_rows;
  lost_required += other.lost_required;
  repeated_required += other.repeated_required;
  marked_texts += other.marked_texts;
  bounded_texts += other.bounded_texts;
  policy_changes += other.policy_changes;
  bad_policies += other.bad_policies;
  late_starts += other.late_starts;
  ended_texts += other.ended_texts;
  tested_drafts += other.tested_drafts;
  block_drafts += other.block_drafts;
  banned_rows += other.banned_rows;
  phase_tokens += other.phase_tokens;
  for (int kind = 0; kind < Fault::kKinds; ++kind) faults[kind] += other.faults[kind];
  return *this;
}

std::string Tally::Describe() const {
  std::string text = absl::StrCat(
      steps, " steps, ", tokens, " tokens in ", batches, " batches, ", replayed_tokens, " tokens replayed, ",
      evicted_sequences, " sequences evicted, ", history_required, " histories asked for, ", superseded,
      " superseded, ", overloaded, " overloaded, ", missed_deadlines, " missed deadlines, ", silent_streams,
      " silent streams left, ", drained_streams, " drained streams, ", lost_messages, " lost messages, ", late_requests,
      " late requests, ", repeated_answers, " repeated answers, ", forks, " forks, ", accepted_drafts,
      " accepted drafts, ", scored_tokens, " tokens scored, ", rewinds, " rewinds, ", repetitions, " repetitions, ",
      mask_uploads, " masks uploaded or released, ", checkpoints, " checkpoints, ", zombie_tokens,
      " tokens of zombies, ", rank_tokens, " tokens of ranks, ", kept_answers, " kept answers, ", brought_answers,
      " answers brought, ", freed_sequences, " sequences freed, ", missing_shards, " rows without all shards, ",
      compact_rows, " compact rows, ", required_rows, " required (", lost_required, " unheard, ", repeated_required,
      " told twice), ", marked_texts, " texts marked, ", bounded_texts, " bounded, ", policy_changes,
      " policies read, ", bad_policies, " bad ones, ", late_starts, " late starts, ", ended_texts, " texts ended, ",
      tested_drafts, " drafts accepted by tests, ", block_drafts, " in blocks, ", banned_rows, " rows with bans, ",
      phase_tokens, " steps in phases; faults:");
  for (int kind = 0; kind < Fault::kKinds; ++kind) {
    absl::StrAppend(&text, kind == 0 ? " " : ", ", faults[kind], " ", NameOf(static_cast<Fault::Kind>(kind)));
  }
  return text;
}

}  // namespace sortition::simulation
