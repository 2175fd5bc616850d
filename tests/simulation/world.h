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
  kForgottenRewrite,  // a client that does not say that it overrode a token
  kShiftedPrompt,     // a replay that takes one token of the output for prompt
  kOtherChoice,       // a replay with the wrong choice index
  kLostCheckpoint,    // a client that forgets its samplers' state with its stream
  kCrossedShards,     // a rank that confuses which shard of its message belongs to which row
  kForgottenAnswer,   // a rank that does not bring its answer to the next server
  kLeftState,         // a service that answers a close and keeps the sequence
  kForgottenKey,      // a client that does not name the operator's key of a text that it opens again
  kOtherTest,         // a client that lets a block of drafts be tested one by one
  kForgottenBan,      // a client that draws a phrase that was taken back once more
};
inline constexpr const char* kPlantNames[] = {
    "none",           "swapped-rows",     "forgotten-rewrite", "shifted-prompt", "other-choice", "lost-checkpoint",
    "crossed-shards", "forgotten-answer", "left-state",        "forgotten-key",  "other-test",   "forgotten-ban"};

// A process with its own streams: a worker, or one of several ranks that together are a worker.
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
  // Returns the replica that a target of the rank's client names.
  uint32_t ReplicaOf(uint32_t rank, size_t target) const;
  client::ClientOptions ClientOf(uint32_t rank) const;
  // Returns the tenant of a rank. Ranks of one worker would read the same file at different times: they have another
  // tenant, which has no policy.
  const char* TenantOf(uint32_t rank) const { return ranks[rank].count == 1 ? "simulation" : "ranks"; }

  const uint64_t seed;
  const Plant plant;
  uint32_t replicas;
  uint32_t workers;
  std::vector<Rank> ranks;  // of all workers
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
  uint64_t steps = 0;   // of the timeline: a message sent or arrived, a batch done, a timer, a fault
  uint64_t tokens = 0;  // drawn, and each compared
  uint64_t batches = 0;
  uint64_t replayed_tokens = 0;  // sent again because a replica did not have them
  uint64_t evicted_sequences = 0;
  uint64_t missed_deadlines = 0;
  uint64_t silent_streams = 0;  // left by their worker unprompted
  uint64_t drained_streams = 0;
  uint64_t lost_messages = 0;
  uint64_t late_requests = 0;  // reached a replica after their worker had left the stream
  uint64_t repeated_answers = 0;
  uint64_t superseded = 0;  // steps and opens of owners that had lost their sequence
  uint64_t overloaded = 0;
  uint64_t history_required = 0;
  uint64_t forks = 0;  // whose parent's history the replica shared
  uint64_t accepted_drafts = 0;
  uint64_t scored_tokens = 0;
  uint64_t rewinds = 0;
  uint64_t repetitions = 0;
  uint64_t mask_uploads = 0;   // and releases
  uint64_t checkpoints = 0;    // that came with an answer
  uint64_t zombie_tokens = 0;  // drawn by processes that had been replaced
  uint64_t rank_tokens = 0;    // tokens drawn from rows in shards; every rank counts each
  uint64_t kept_answers = 0;   // asked for again by a rank that had lost its own
  uint64_t brought_answers = 0;
  uint64_t freed_sequences = 0;  // by their closes
  uint64_t missing_shards = 0;   // rows refused because some had not come in time
  uint64_t compact_rows = 0;
  uint64_t required_rows = 0;  // of these: ROW_REQUIRED
  uint64_t lost_required = 0;  // ROW_REQUIREDs that did not reach their worker
  uint64_t repeated_required = 0;
  uint64_t marked_texts = 0;    // by a key of the operator
  uint64_t bounded_texts = 0;   // whose parameters the operator's policy has changed
  uint64_t policy_changes = 0;  // files that replicas have read while they ran
  uint64_t bad_policies = 0;    // files that they could not use
  uint64_t late_starts = 0;     // of replicas that had to wait for a usable file
  uint64_t ended_texts = 0;     // by a policy that would change their tokens
  uint64_t tested_drafts = 0;   // accepted by rejection
  uint64_t block_drafts = 0;    // accepted in blocks
  uint64_t banned_rows = 0;     // whose caller banned tokens
  uint64_t phase_tokens = 0;    // steps that end within a phase
  uint64_t faults[16] = {};     // by kind

  Tally& operator+=(const Tally& other);
  std::string Describe() const;
};

}  // namespace sortition::simulation
