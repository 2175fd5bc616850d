// Runs the steps of a stream: judges a step message, makes a plan of each row, has its sequence grant it, and gives the
// rows to the batcher, or to the shard assembler if they come in shards. A step that asks for much work is done in
// pieces, so that a thread that serves several streams can turn to another one in between.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "service/batch/batcher.h"
#include "service/client_accounts.h"
#include "service/engine.h"
#include "service/memory/region_table.h"
#include "service/refusal.h"
#include "service/sequence/granted_row.h"
#include "service/stream/shard_assembler.h"
#include "service/stream/step_in_flight.h"
#include "service/stream/step_message.h"
#include "service/stream/stream_context.h"
#include "service/stream/stream_sequences.h"
#include "service/stream/uploaded_masks.h"
#include "service/text/cost.h"

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
  ~StepRunner() { AbortPieces(); }
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

  // Takes a step message. Each of its rows, or the message as a whole, is answered once through the stream, maybe
  // before this returns. `memory` has the regions that the step may name; null if the stream has none. It outlives the
  // step's pieces. `thread`: the caller's.
  void OnStep(Frame frame, const MemoryConnection* memory, Submitter thread);

  // True after OnStep while the step is not judged, or rows have not begun, or compact ones not run. The caller then
  // calls only TakePiece until it is false.
  bool has_pieces() const { return pieces_.has_value(); }
  void TakePiece();

 private:
  // A step that is judged, whose rows begin in turn, and whose compact rows then run in turn.
  struct StepInPieces {
    StepInPieces(std::shared_ptr<StepMessage> step, const MemoryConnection* regions, Submitter from);

    std::shared_ptr<StepMessage> message;
    const MemoryConnection* memory;
    Submitter thread;
    bool judged = false;
    std::optional<SharedReadyWord> ready;            // set if the logits are not there yet
    absl::flat_hash_set<absl::string_view> twice;    // sequences that several rows name; mostly empty
    std::shared_ptr<StepInFlight> whole;             // rows for a device; null if the rows come in shards
    std::vector<std::unique_ptr<SequenceRow>> runs;  // compact rows, or those in shards by the row's index
    StepAnswers now;
    StepAnswers repeated;                              // answers that exist already, of this piece
    bool has_answered = false;                         // with some of them
    absl::flat_hash_map<uint32_t, RowMaskBits> masks;  // copies of the step's rows of masks
    Bill bill;
    uint32_t begun = 0;  // rows
    bool submitted = false;
    size_t run = 0;  // compact rows
  };

  // Checks what all rows share, and sets the message's shape.
  std::optional<Refusal> Judge(StepInPieces* step);
  // Judges the step. Returns false if it ends with that: it was refused, or its rows are those of another shard.
  bool Begin(StepInPieces* step);
  // Returns false if the piece has ended before all of it is done.
  bool BeginRows(StepInPieces* step);
  bool RunCompactRows(StepInPieces* step);
  // Sends the piece's answers that exist already.
  static void AnswerRepeated(StepInPieces* step);
  // Gives the whole rows to the batcher, once. If it refuses them, they and the compact ones are refused: with the
  // message as a whole if no row of it has been answered.
  void Submit(StepInPieces* step);
  // Ends a step whose stream has been closed meanwhile.
  void AbortPieces();

  // Plans and grants row `index`, and charges the bill. Returns false if it does not run: then its answer is appended
  // to `step->now`.
  bool BeginRow(StepInPieces* step, uint32_t index, GrantedRow* granted);
  void AddWhole(StepInPieces* step, GrantedRow row);
  // Finds the packed masks of the row's positions.
  std::optional<Refusal> FindMasks(StepInPieces* step, const RowPlan& plan, std::vector<RowMaskBits>* masks) const;
  std::optional<Refusal> OpenCheckpoint(const v1::StepRow& row, const SequenceSpec& spec, RowPlan* plan) const;

  Engine& engine_;
  const std::shared_ptr<StreamContext> stream_;
  ClientAccount& account_;
  const StreamSequences& sequences_;
  const UploadedMasks& masks_;
  ShardAssembler& shards_;
  std::optional<StepInPieces> pieces_;
};

}  // namespace sortition::service
