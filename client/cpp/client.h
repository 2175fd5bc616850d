// The client of the sampling service, for inference workers.
//
// Rows of logits go in, tokens come out, and everything between is the client's business: one stream, several targets,
// reconnecting, replaying histories, sending again what got lost, and going on in process when nobody can be reached.
// Tokens and log probabilities do not depend on any of it (docs/client.md).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/batch.h"
#include "client/cpp/device_rows.h"
#include "client/cpp/options.h"
#include "client/cpp/sequence.h"

namespace sortition::client {

class ClientCore;
class Connector;

// Thread-safe: any thread may open sequences and step batches, and several batches may be in flight at once, as long as
// no sequence is in two of them. Owns its connections and threads.
class Client {
 public:
  // Blocks until some target (or the fallback) has welcomed a stream. Once each has been tried twice in vain,
  // UNAVAILABLE, or the code with which the last one refused (UNAUTHENTICATED, ...); its words in any case.
  // INVALID_ARGUMENT if an option is out of range.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options);
  // A client without targets: everything is sampled in this process.
  static absl::StatusOr<std::unique_ptr<Client>> InProcess(ClientOptions options = {});
  // Connects with streams of another kind, for tests. `connector` starts them all, the fallback's too.
  static absl::StatusOr<std::unique_ptr<Client>> ConnectWith(ClientOptions options,
                                                             std::shared_ptr<Connector> connector);

  // Ends what is pending with STEP_CANCELLED and blocks until every callback has returned. Not to be called from a
  // callback.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Makes a sequence known to the service; blocks for a round trip, at most ClientOptions::default_timeout.
  // ALREADY_EXISTS if the client has a sequence of this request id; otherwise the service's own refusal, typed
  // (ErrorOf).
  absl::StatusOr<std::unique_ptr<Sequence>> Open(SequenceOptions options);

  // Opens a sequence that goes on from the first `position` tokens of `parent` (absent: from all), which has no step in
  // flight. `options` names everything but the prompt; the prompt is what `position` leaves of the parent's. The
  // service shares the history where it has it, and gets it sent where not. Otherwise as Open; OUT_OF_RANGE if the
  // parent has fewer tokens, FAILED_PRECONDITION if it has a step in flight, INVALID_ARGUMENT if an option of the child
  // looks at a history that the parent does not keep, or if the parent is another client's.
  absl::StatusOr<std::unique_ptr<Sequence>> Fork(const Sequence& parent, SequenceOptions options,
                                                 std::optional<uint32_t> position = std::nullopt);

  // Draws one token for each row and advances the rows' sequences. Blocks until every row has a token or an error; a
  // row fails alone. Results are in the rows' order. The rows' memory is the caller's again when the call returns, and
  // not before. The status is INVALID_ARGUMENT if the batch as such makes no sense; nothing has happened then.
  absl::StatusOr<std::vector<RowResult>> Step(const Batch& batch, const StepOptions& options = {});

  // The same without blocking. `done` is called exactly once, on a thread of the client's, or, over a ring, on one that
  // is in Step; it must not block and may
  // step again. The rows' memory and the sequences must live until then. If the batch makes no sense the status says so
  // and `done` is not called.
  using StepDone = absl::AnyInvocable<void(std::vector<RowResult>)>;
  absl::Status StepAsync(const Batch& batch, const StepOptions& options, StepDone done);

  // Memory for rows that do not have to be copied, and for words that say when they are there (Batch::ready): shared
  // with the server where the stream in use does that
  // (`row_memory.shared`), the process's own otherwise. Its rows are stepped like any others, whatever becomes of the
  // stream; those of a stream that has ended are copied again, so a worker that minds allocates anew when
  // transport_in_use changes. `bytes` at least 1. RESOURCE_EXHAUSTED if the server has no more to give. Blocks for a
  // round trip.
  struct RowMemory {
    std::shared_ptr<std::byte> data;  // at a whole page
    uint64_t bytes = 0;
    bool shared = false;
  };
  absl::StatusOr<RowMemory> AllocateRows(uint64_t bytes);

  // Memory of a device, in which rows may lie from now on until the last reference to what is returned goes, which is
  // not before their steps are over: a row's logits are then an address within it, and the work that writes them is
  // done when the row is stepped. Where a stream shares the memory with a device of its server's, such rows are only
  // named, and nothing of them passes through the host; elsewhere they are read to the host first. Streams that follow
  // share the memory by themselves where they can. ALREADY_EXISTS if other rows are at some of these addresses. Blocks
  // for a round trip.
  class DeviceMemory {
   public:
    virtual ~DeviceMemory() = default;
    // OK if the stream in use shares the memory, otherwise why its rows are read to the host: the server's refusal
    // (ErrorOf), FAILED_PRECONDITION where that stream or its server shares no such memory, UNAVAILABLE while there is
    // no stream or its server has not answered. May change with every stream. Thread-safe; asks nobody.
    virtual absl::Status sharing() const = 0;
  };
  absl::StatusOr<std::shared_ptr<const DeviceMemory>> ShareDevice(DeviceRows rows);

  // How rows travel now.
  TransportInUse transport_in_use() const;

  const std::string& worker_session() const;
  // Whether rows are sampled in this process now.
  bool in_process() const;

 private:
  explicit Client(std::shared_ptr<ClientCore> core);
  const std::shared_ptr<ClientCore> core_;
};

}  // namespace sortition::client
