// Runs the steps of a stream: judges a step message, makes a plan of each row, has its sequence grant it, and gives the
// rows to the batcher, or to the shard assembler if they come in shards.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "service/batch/batcher.h"
#include "service/client_accounts.h"
#include "service/engine.h"
#include "service/memory/region_table.h"
#include "service/refusal.h"
#include "service/sequence/granted_row.h"
#include "service/stream/shard_assembler.h"
#include "service/stream/step_message.h"
#include "service/stream/stream_context.h"
#include "service/stream/stream_sequences.h"
#include "service/stream/uploaded_masks.h"

namespace sortition::service {

// Not thread-safe: for the session's thread.
class StepRunner {
 public:
  // `engine`, `account`, `sequences`, `masks` and `shards` are not owned and outlive the runner.
  StepRunner(Engine* engine, std::shared_ptr<StreamContext> stream, ClientAccount* account,
             const StreamSequences* sequences, const UploadedMasks* masks, ShardAssembler* shards)
      : engine_(*engine),
        stream_(std::move(stream)),
        account_(*account),
        sequences_(*sequences),
        masks_(*masks),
        shards_(*shards) {}

  // Takes a step message. Each of its rows, or the message as a whole, is answered once through the stream, maybe
  // before this returns. `memory` has the regions that the step may name; null if the stream has none. `thread`: the
  // caller's.
  void OnStep(Frame frame, const MemoryConnection* memory, Submitter thread);

 private:
  // Checks what all rows share, and sets the message's shape. `*ready` is set if the logits are not there yet.
  std::optional<Refusal> Judge(uint64_t received_bytes, const MemoryConnection* memory, StepMessage* message,
                               std::optional<SharedReadyWord>* ready);
  // Plans and grants row `index`. Returns false if it does not run: then its answer is appended to `*now`.
  bool BeginRow(StepMessage* message, uint32_t index, RewriteAllowance* rewrites, GrantedRow* granted,
                StepAnswers* now);
  void RunWhole(const std::shared_ptr<StepMessage>& message, std::optional<SharedReadyWord> ready, Submitter thread);
  void RunShards(const std::shared_ptr<StepMessage>& message);
  // Finds the packed masks of the row's positions.
  std::optional<Refusal> FindMasks(const StepMessage& message, RowPlan* plan, std::vector<RowMaskBits>* masks) const;
  std::optional<Refusal> OpenCheckpoint(const v1::StepRow& row, const SequenceSpec& spec, RowPlan* plan) const;

  Engine& engine_;
  const std::shared_ptr<StreamContext> stream_;
  ClientAccount& account_;
  const StreamSequences& sequences_;
  const UploadedMasks& masks_;
  ShardAssembler& shards_;
};

}  // namespace sortition::service
