// The sequences of a stream: opened, forked and closed. Histories come in pieces of about a millisecond's work, so that
// a thread that serves several streams can turn to another one in between.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "service/client_accounts.h"
#include "service/engine.h"
#include "service/refusal.h"
#include "service/sequence/granted_row.h"
#include "service/stream/partial_histories.h"
#include "service/stream/stream_context.h"
#include "service/stream/stream_memory.h"
#include "service/wire/open_request.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Not thread-safe: for the session's thread. Messages are answered through the stream, unless a method returns a
// refusal, which the caller sends.
class StreamSequences {
 public:
  // `engine` and `account` are not owned and outlive this.
  StreamSequences(Engine* engine, std::shared_ptr<StreamContext> stream, ClientAccount* account)
      : engine_(*engine),
        stream_(std::move(stream)),
        account_(*account),
        memory_(&engine->sequences(), stream_->tenant),
        partial_histories_(engine->limits(), &engine->ledger(), &memory_) {}

  // The operator's policy changes the message in place.
  std::optional<Refusal> OnOpen(Frame* frame);
  std::optional<Refusal> OnFork(Frame* frame);
  std::optional<Refusal> OnClose(const v1::CloseSequence& close);

  // True after OnOpen and OnFork while pieces are left. The caller then calls only TakePiece until it is false.
  bool has_pieces() const { return open_ != nullptr; }
  struct Refused {
    v1::StreamRequest message;  // with the fields that name it
    Refusal refusal;
  };
  std::optional<Refused> TakePiece();

  // The message was refused. Pieces of its history that follow are not looked at, since it has one answer.
  void Skip(const v1::StreamRequest& message);

  // Returns null if the stream has not opened the sequence.
  const RowSequence* Find(const std::string& request_id) const;

 private:
  // Upper bound on the tokens of one piece.
  static constexpr size_t kPieceTokens = 8192;

  using Sequences = absl::flat_hash_map<std::string, RowSequence>;
  // An open or a fork whose options are compiled.
  struct OpenInPieces {
    OpenRequest request;        // its history is the piece that was taken last
    v1::StreamRequest message;  // without options and tokens
    // The options, with the memory of the whole message, until receipts have begun; null without receipts.
    std::shared_ptr<const v1::SamplingParameters> for_receipts = nullptr;
    std::shared_ptr<ReceiptChain> receipts = nullptr;
    std::vector<uint32_t> tokens = {};  // of the message
    bool continues = false;             // in another message
    size_t taken = 0;
    uint64_t bytes = 0;                              // as accounted
    std::unique_ptr<Text::Builder> whole = nullptr;  // the history, once it is complete
  };

  // Begins to take the pieces of a message, which has been checked.
  void Begin(OpenRequest request, const Frame& frame, const v1::OpenSequence& open);
  // Begins the receipts. Returns true if this has taken a piece.
  bool TakeReceipts();
  std::optional<Refusal> TakeHistoryPiece();
  // Opens the sequence of the complete history, or does a piece of the work for it.
  std::optional<Refusal> FinishHistory();
  // Charges the work of the parameters before it is done, or refuses them.
  std::optional<Refusal> ChargeOptions(const v1::OpenSequence& open, absl::string_view path);
  // End the open or the fork.
  std::optional<Refusal> FinishOpen(std::unique_ptr<Text> state);
  std::optional<Refusal> FinishFork();
  std::variant<v1::OpenedState, Refusal> Open(std::unique_ptr<Text> state);
  // Closes the sequence, up to this epoch, in this stream and the table. Returns false if neither has it.
  std::variant<bool, Refusal> Close(const std::string& request_id, uint64_t epoch);
  // Completes a request of this message, at `path`. Refuses it if no device can run it.
  std::optional<Refusal> Prepare(const v1::OpenSequence& open, absl::string_view path, OpenRequest* request);
  void AnswerOpened(const OpenRequest& request, v1::OpenedState state);
  // Sends `*response` with the state in its field `part`, and before it messages with the first receipts if they are
  // long.
  void SendOpened(v1::OpenedState state, v1::StreamResponse* response, v1::OpenedState* part);
  void Forget(Sequences::iterator sequence);
  Ledger::Owner owner() const { return {stream_->owner.tenant, stream_->owner.stream}; }

  Engine& engine_;
  const std::shared_ptr<StreamContext> stream_;
  ClientAccount& account_;
  std::unique_ptr<OpenInPieces> open_;
  StreamMemory memory_;
  Sequences sequences_;  // by request_id
  PartialHistories partial_histories_;
};

}  // namespace sortition::service
