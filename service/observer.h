// What the service tells its metrics. Called once per batch, step or message, never per token, so that observing stays
// cheap.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/time/time.h"
#include "service/refusal.h"
#include "service/route/policy.h"

namespace sortition::service {

// How a stream's messages travel.
enum class Transport : uint8_t { kTcp, kUnix, kRing };
inline constexpr Transport kAllTransports[] = {Transport::kTcp, Transport::kUnix, Transport::kRing};

// Thread-safe; never blocks for long.
class Observer {
 public:
  // Totals since start.
  struct Totals {
    uint64_t steps = 0;
    uint64_t rows = 0;
    uint64_t tokens = 0;
    uint64_t errors = 0;
    uint64_t batches = 0;
  };

  virtual ~Observer() = default;

  // A step message of `rows` rows and `payload_bytes` bulk bytes has arrived.
  virtual void StepReceived(uint32_t rows, uint64_t payload_bytes) = 0;
  // `bytes` of a step's bulk bytes lie in memory shared with the worker; counted among its payload bytes, too.
  virtual void SharedPayload(uint64_t bytes) = 0;
  // The logits of a step that was sent early are there, `waited` after it arrived.
  virtual void StepReady(absl::Duration waited) = 0;
  // The last row of a step has been answered, `latency` after it arrived, or after its logits were there.
  virtual void StepAnswered(absl::Duration latency) = 0;
  // `count` rows were answered with a token.
  virtual void TokensDrawn(uint32_t count) = 0;
  // A row, sequence or message was refused.
  virtual void Refused(Reason reason, uint32_t count) = 0;
  // A device is given a batch, and why this one; BatchDone says when it has finished.
  virtual void BatchStarted(std::string_view device, uint32_t rows, RouteReason reason) = 0;
  // A device has finished a batch whose oldest row had waited `queue_wait` when it started.
  virtual void BatchDone(std::string_view device, uint32_t rows, absl::Duration queue_wait,
                         absl::Duration kernel_time) = 0;
  // A device failed a batch: none of its answers was used.
  virtual void BatchFailed(std::string_view device) = 0;
  // A sequence was opened, or opened again.
  virtual void SequenceOpened() = 0;
  // Rows of a batch that failed on `device` go to another.
  virtual void RowsRerun(std::string_view device, uint32_t rows) = 0;
  // Live rows of `device` were compared with the reference.
  virtual void RowsRechecked(std::string_view device, uint32_t right, uint32_t wrong) = 0;
  // `count` idle sequences were dropped: to stay within a bound ("count", "bytes", "idle", of one client: "client"), or
  // because an operator asked for it ("operator").
  virtual void SequencesEvicted(std::string_view cause, uint32_t count) = 0;
  // A sequence's history was sent again because the server did not have it.
  virtual void HistoryReplayed(uint32_t tokens) = 0;

  // A sampling stream has been admitted, and has ended ("by client", "drained" or "abandoned").
  virtual void StreamOpened(Transport transport) = 0;
  virtual void StreamEnded(Transport transport, std::string_view how) = 0;
  // A message of `bytes` came over a stream, or has left; gRPC's framing and TLS are not counted.
  virtual void MessageReceived(Transport transport, uint64_t bytes) = 0;
  virtual void MessageSent(Transport transport, uint64_t bytes) = 0;

  virtual Totals totals() const = 0;
};

// Observes nothing.
class NullObserver : public Observer {
 public:
  void StepReceived(uint32_t, uint64_t) override {}
  void SharedPayload(uint64_t) override {}
  void StepReady(absl::Duration) override {}
  void StepAnswered(absl::Duration) override {}
  void TokensDrawn(uint32_t) override {}
  void Refused(Reason, uint32_t) override {}
  void BatchStarted(std::string_view, uint32_t, RouteReason) override {}
  void BatchDone(std::string_view, uint32_t, absl::Duration, absl::Duration) override {}
  void BatchFailed(std::string_view) override {}
  void SequenceOpened() override {}
  void RowsRerun(std::string_view, uint32_t) override {}
  void RowsRechecked(std::string_view, uint32_t, uint32_t) override {}
  void SequencesEvicted(std::string_view, uint32_t) override {}
  void HistoryReplayed(uint32_t) override {}
  void StreamOpened(Transport) override {}
  void StreamEnded(Transport, std::string_view) override {}
  void MessageReceived(Transport, uint64_t) override {}
  void MessageSent(Transport, uint64_t) override {}
  Totals totals() const override { return {}; }
};

}  // namespace sortition::service
