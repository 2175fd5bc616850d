// Properties of a world that its seed decides before any fault: its members, their bounds and their speed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "service/limits.h"
#include "sortition/options.h"

namespace sortition::simulation {

// A defect put into the world on purpose, to prove that a run would find it.
enum class Plant {
  kNone,
  kSwappedRows,       // a device answers the rows of a batch in another order
  kForgottenRewrite,  // a client overrides a token and does not say so
  kShiftedPrompt,     // a replay declares one output token as prompt
  kOtherChoice,       // a replay has the wrong choice index
  kLostCheckpoint,    // a client loses its samplers' state with its stream
  kCrossedShards,     // a rank swaps the shards of two rows in its message
  kForgottenAnswer,   // a rank does not bring its answer to the next server
  kLeftState,         // a service answers a close and keeps the sequence
  kForgottenKey,      // a client opens a text again without the operator's key
  kOtherTest,         // a client has a block of drafts tested one by one
  kForgottenBan,      // a client may draw a phrase again that was taken back
};
inline constexpr const char* kPlantNames[] = {
    "none",           "swapped-rows",     "forgotten-rewrite", "shifted-prompt", "other-choice", "lost-checkpoint",
    "crossed-shards", "forgotten-answer", "left-state",        "forgotten-key",  "other-test",   "forgotten-ban"};

// A process with its own streams: a worker, or one of the ranks that form a worker.
struct Rank {
  uint32_t worker = 0;
  uint32_t index = 0;
  uint32_t count = 1;
  bool in_step = false;  // takes the next step of a text when all ranks have the answer of the last
};

struct World {
  World(uint64_t seed, Plant plant);

  // "worker 1", or "worker 1 rank 0".
  std::string NameOf(uint32_t rank) const;
  // Returns the replica of a target of the rank's client.
  uint32_t ReplicaOf(uint32_t rank, size_t target) const;
  client::ClientOptions ClientOf(uint32_t rank) const;
  // Returns the tenant of a rank. Ranks of one worker would read the same file at different times: they have another
  // tenant, which has no policy.
  const char* TenantOf(uint32_t rank) const { return ranks[rank].count == 1 ? "simulation" : "ranks"; }

  const uint64_t seed;
  const Plant plant;
  uint32_t replicas;
  uint32_t workers;
  std::vector<Rank> ranks;  // all workers'
  bool has_ranks = false;   // some worker has several ranks
  uint32_t sequences;       // of each worker
  service::Limits limits;
  client::ClientOptions client;  // of a worker that is one process
  absl::Duration max_latency;    // of a message, one way
  absl::Duration max_service;    // of a batch
  absl::Duration max_thought;    // of a worker, between two batches
  absl::Duration drain_grace;    // of a stream that has reached its age
  absl::Duration fault_horizon;
  absl::Duration policy_look;  // between two looks of a replica at the file of policies
};

// Events of one run, or of many.
struct Tally {
  uint64_t steps = 0;   // timeline events: message sent or arrived, batch done, timer, fault
  uint64_t tokens = 0;  // drawn; each was compared
  uint64_t batches = 0;
  uint64_t replayed_tokens = 0;  // sent again because a replica did not have them
  uint64_t evicted_sequences = 0;
  uint64_t missed_deadlines = 0;
  uint64_t silent_streams = 0;  // the worker left them by itself
  uint64_t drained_streams = 0;
  uint64_t lost_messages = 0;
  uint64_t late_requests = 0;  // reached a replica after their worker had left the stream
  uint64_t repeated_answers = 0;
  uint64_t superseded = 0;  // steps and opens by owners that had lost their sequence
  uint64_t overloaded = 0;
  uint64_t history_required = 0;
  uint64_t forks = 0;  // forks that share the parent's history on the replica
  uint64_t accepted_drafts = 0;
  uint64_t scored_tokens = 0;
  uint64_t rewinds = 0;
  uint64_t repetitions = 0;
  uint64_t mask_uploads = 0;   // uploads and releases
  uint64_t checkpoints = 0;    // received with an answer
  uint64_t zombie_tokens = 0;  // drawn by processes that had been replaced
  uint64_t rank_tokens = 0;    // tokens drawn from rows in shards; every rank counts each
  uint64_t kept_answers = 0;   // repeated for a rank that had lost its answer
  uint64_t brought_answers = 0;
  uint64_t freed_sequences = 0;  // freed by their closes
  uint64_t missing_shards = 0;   // rows refused because shards came too late
  uint64_t compact_rows = 0;
  uint64_t required_rows = 0;  // answers ROW_REQUIRED among the above
  uint64_t lost_required = 0;  // ROW_REQUIREDs that did not reach their worker
  uint64_t repeated_required = 0;
  uint64_t marked_texts = 0;    // marked by an operator's key
  uint64_t bounded_texts = 0;   // parameters changed by the operator's policy
  uint64_t policy_changes = 0;  // files that running replicas have read
  uint64_t bad_policies = 0;    // unusable files that running replicas have read
  uint64_t late_starts = 0;     // replicas that had to wait for a usable file
  uint64_t ended_texts = 0;     // ended by a policy that would change their tokens
  uint64_t tested_drafts = 0;   // accepted by rejection
  uint64_t block_drafts = 0;    // accepted in blocks
  uint64_t banned_rows = 0;     // rows with the caller's banned tokens
  uint64_t phase_tokens = 0;    // steps that end within a phase
  uint64_t faults[16] = {};     // by kind

  Tally& operator+=(const Tally& other);
  std::string Describe() const;
};

}  // namespace sortition::simulation
