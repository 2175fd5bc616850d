// The client of the sampling service, for inference workers.
//
// It sends rows of logits and returns tokens. It keeps one stream, tries several targets, reconnects, replays
// histories, repeats steps that got lost, and samples in process while no target can be reached. Tokens and log
// probabilities do not depend on any of this (docs/client.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sortition/batch.h"
#include "sortition/options.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

class ClientCore;
class Connector;
struct DeviceRows;
struct SequenceRecord;

// Thread-safe. No method blocks for longer than a copy. Its destruction tells the service to forget the sequence. It
// must outlive its steps, and may outlive the client.
//
// The handle advances by exactly one token with each result that is a token, even if messages are lost or repeated.
// Only the caller's rewrites change it otherwise. Rewrites reach the service with the next step. While a step is in
// flight they are refused with FAILED_PRECONDITION.
class Sequence {
 public:
  Sequence(std::shared_ptr<ClientCore> core, std::shared_ptr<SequenceRecord> record);
  ~Sequence();
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  const std::string& request_id() const;
  uint32_t vocabulary_size() const;
  // The seed in use. Keep it secret: seed and logits together determine the text.
  uint64_t seed() const;
  // Returns the changes by the policy of the service's operator: parameters that it has set or taken away, the name of
  // the key that marks the text. Empty without a policy.
  v1::PolicyEffect policy() const;
  // True if some option looks at the history, so that the service and this handle keep it.
  bool stateful() const;
  // Number of tokens in prompt and output so far: the position of the next token.
  uint32_t position() const;
  // The tokens of prompt and output; empty if the sequence is not stateful.
  std::vector<uint32_t> tokens() const;

  // Number of times that the text was cut or scored. It is the same on all ranks of a text (ClientOptions::shard).
  uint32_t turns() const;

  // Returns the state that rewinds have left, for SequenceOptions::rewound.
  Rewound rewound() const;

  // Rewrites by the caller, between steps. OUT_OF_RANGE if a token is not below the live vocabulary, or if there is
  // nothing to replace or cut. A cut into the prompt, or by more than the service keeps, costs a replay.
  absl::Status ReplaceLast(uint32_t token);
  absl::Status Append(std::span<const uint32_t> tokens);
  absl::Status Truncate(uint32_t position);

 private:
  friend class ClientCore;

  const std::shared_ptr<ClientCore> core_;
  const std::shared_ptr<SequenceRecord> record_;
};

// Thread-safe: any thread may open sequences and step batches, and several batches may be in flight at once, as long as
// no sequence is in two of them. Owns its connections and threads.
class Client {
 public:
  // Blocks until a target or the fallback has welcomed a stream. After each target has failed twice, returns
  // UNAVAILABLE, or the last one's code (UNAUTHENTICATED, ...) and message. INVALID_ARGUMENT if an option is out of
  // range.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options);
  // Connects through `connector`, which starts every stream, the fallback's too. For tests.
  static absl::StatusOr<std::unique_ptr<Client>> ConnectWith(ClientOptions options,
                                                             std::shared_ptr<Connector> connector);

  // Ends pending steps and opens with STEP_CANCELLED and blocks until every callback has returned. Must not be called
  // from a callback.
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

  // Does the same without blocking. `done` is called exactly once: on a client's thread, or on a thread that is in
  // Step. It must not block and may step again. The rows' memory and the sequences must live until then. If the batch
  // itself is invalid, the status says so and `done` is not called.
  using StepDone = absl::AnyInvocable<void(std::vector<RowResult>)>;
  absl::Status StepAsync(const Batch& batch, const StepOptions& options, StepDone done);

  // Does the same, and blocks as Step does until `done` has returned or `goes_on` returns false. Calls `goes_on` on
  // this thread, without locks, every 50 ms. Returns whether `done` has returned; otherwise it is still called later.
  absl::StatusOr<bool> StepWhile(const Batch& batch, const StepOptions& options, StepDone done,
                                 absl::FunctionRef<bool()> goes_on);

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

  // Registers memory of a device, which CudaRows makes, for rows, until the last reference to the returned object
  // is dropped. The caller keeps one until the rows' steps are over. A row's logits are then an address within this
  // memory, and the work that writes them must be done when the row is stepped. Where the stream shares the memory with
  // a device of its server, such rows are named in messages and do not pass through the host; otherwise the client
  // reads them to the host first. Later streams share the memory again where they can. ALREADY_EXISTS if some of these
  // addresses are registered. Blocks for a round trip.
  class DeviceMemory {
   public:
    virtual ~DeviceMemory() = default;
    // Returns OK if the stream in use shares the memory. Otherwise the reason why its rows are read to the host: the
    // server's refusal (ErrorOf), FAILED_PRECONDITION if the stream or its server shares no such memory, UNAVAILABLE
    // while there is no stream or its server has not answered. May change with every stream. Thread-safe; does not
    // block.
    virtual absl::Status sharing() const = 0;
    // Returns true if the device states such rows in compact form for the stream in use (docs/rows.md): then only first
    // tokens leave the device, and a row only if the server needs more. Thread-safe; does not block.
    virtual bool IsStated(uint32_t vocabulary_size, uint32_t element_bytes) const = 0;
  };
  absl::StatusOr<std::shared_ptr<const DeviceMemory>> ShareDevice(DeviceRows rows);

  // Returns how rows travel now.
  TransportInUse transport_in_use() const;

  // Returns the fields that servers have ignored since the client began (ClientOptions::ignore_unknown_fields), sorted,
  // each once. They are paths with the numbers of unknown fields: "open.parameters.#99". A report comes before the
  // answer to the message that had the field.
  std::vector<std::string> ignored_fields() const;

  const std::string& worker_session() const;
  // True if rows are sampled in this process now.
  bool in_process() const;

 private:
  explicit Client(std::shared_ptr<ClientCore> core);
  const std::shared_ptr<ClientCore> core_;
};

}  // namespace sortition::client
