// The client of the sampling service, for inference workers.
//
// It sends rows of logits and returns tokens. It keeps one stream, tries several targets, reconnects, replays
// histories, repeats steps that got lost, and samples in process while no target can be reached. Tokens and log
// probabilities do not depend on any of this (docs/client.md).
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
  // Blocks until a target or the fallback has welcomed a stream. After each target has failed twice, returns
  // UNAVAILABLE, or the code with which the last one refused (UNAUTHENTICATED, ...), with the last one's message.
  // INVALID_ARGUMENT if an option is out of range.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options);
  // Returns a client without targets, which samples all rows in this process.
  static absl::StatusOr<std::unique_ptr<Client>> InProcess(ClientOptions options = {});
  // Connects through `connector`, which starts every stream, the fallback's too. For tests.
  static absl::StatusOr<std::unique_ptr<Client>> ConnectWith(ClientOptions options,
                                                             std::shared_ptr<Connector> connector);

  // Ends what is pending with STEP_CANCELLED and blocks until every callback has returned. Must not be called from a
  // callback.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Makes a sequence known to the service. Blocks for a round trip, at most ClientOptions::default_timeout.
  // ALREADY_EXISTS if the client has a sequence with this request id; otherwise the service's own refusal, typed
  // (ErrorOf).
  absl::StatusOr<std::unique_ptr<Sequence>> Open(SequenceOptions options);

  // Opens a sequence that continues the first `position` tokens of `parent` (absent: all of them). The parent must have
  // no step in flight. `options` has everything but the prompt, which is the parent's up to `position`. The service
  // shares the history where it has it; otherwise the client sends it. Fails as Open, and with OUT_OF_RANGE if the
  // parent has fewer tokens, FAILED_PRECONDITION if it has a step in flight, INVALID_ARGUMENT if an option of the child
  // looks at a history that the parent does not keep, or if the parent belongs to another client.
  absl::StatusOr<std::unique_ptr<Sequence>> Fork(const Sequence& parent, SequenceOptions options,
                                                 std::optional<uint32_t> position = std::nullopt);

  // Draws one token for each row and advances the rows' sequences. Blocks until every row has a result; a row fails
  // alone. Results are in the rows' order. The client uses the rows' memory until the call returns. INVALID_ARGUMENT if
  // the batch itself is invalid; then nothing has happened.
  absl::StatusOr<std::vector<RowResult>> Step(const Batch& batch, const StepOptions& options = {});

  // Does the same without blocking. `done` is called exactly once: on a thread of the client's or, over a ring and
  // in process, on a thread that is in Step. It must not block and may step again. The rows' memory and the sequences
  // must live until then. If the batch itself is invalid, the status says so and `done` is not called.
  using StepDone = absl::AnyInvocable<void(std::vector<RowResult>)>;
  absl::Status StepAsync(const Batch& batch, const StepOptions& options, StepDone done);

  // Allocates memory for rows that need no copy, and for words that say when rows are written (Batch::ready). It is
  // shared with the server where the stream in use does that (`shared`); otherwise it is memory of this process. Its
  // rows are stepped like any others, and stay valid when the stream ends. Rows in memory of a stream that has ended
  // are copied; to avoid this, allocate anew when transport_in_use changes. `bytes` is at least 1. RESOURCE_EXHAUSTED
  // if the server gives no more. Blocks for a round trip.
  struct RowMemory {
    std::shared_ptr<std::byte> data;  // aligned to a page
    uint64_t bytes = 0;
    bool shared = false;
  };
  absl::StatusOr<RowMemory> AllocateRows(uint64_t bytes);

  // Registers memory of a device for rows, until the last reference to the returned object is dropped. The caller keeps
  // one until the rows' steps are over. A row's logits are then an address within this memory, and the work that writes
  // them must be done when the row is stepped. Where the stream shares the memory with a device of its server, such
  // rows are named in messages and do not pass through the host; otherwise the client reads them to the host first.
  // Later streams share the memory again where they can. ALREADY_EXISTS if some of these addresses are registered.
  // Blocks for a round trip.
  class DeviceMemory {
   public:
    virtual ~DeviceMemory() = default;
    // Returns OK if the stream in use shares the memory. Otherwise the reason why its rows are read to the host: the
    // server's refusal (ErrorOf), FAILED_PRECONDITION if the stream or its server shares no such memory, UNAVAILABLE
    // while there is no stream or its server has not answered. May change with every stream. Thread-safe; does not
    // block.
    virtual absl::Status sharing() const = 0;
  };
  absl::StatusOr<std::shared_ptr<const DeviceMemory>> ShareDevice(DeviceRows rows);

  // Returns how rows travel now.
  TransportInUse transport_in_use() const;

  const std::string& worker_session() const;
  // True if rows are sampled in this process now.
  bool in_process() const;

 private:
  explicit Client(std::shared_ptr<ClientCore> core);
  const std::shared_ptr<ClientCore> core_;
};

}  // namespace sortition::client
