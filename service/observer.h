// Events that the service reports to its metrics: once a batch, step or message, never once a token, so that reporting
// stays cheap.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/time/time.h"
#include "service/refusal.h"
#include "service/route/route_policy.h"

namespace sortition::service {

// The transport of a stream's messages.
enum class TransportType : uint8_t { kTcp, kUnix, kRing };
inline constexpr TransportType kAllTransports[] = {TransportType::kTcp, TransportType::kUnix, TransportType::kRing};

// Outcomes of compact rows.
struct CompactRowCounts {
  uint32_t decided = 0;                   // answered, or refused as the whole row would be
  std::array<uint32_t, 4> required = {};  // ROW_REQUIRED, by kernels::RowRequiredReason
};
inline constexpr const char* kRequiredNames[] = {"tokens", "cut", "sums", "row"};

// The series of metrics.inc.
enum class Counter : uint8_t {
#define COUNTER(id, name, label, value, help) k##id,
#include "service/metrics.inc"
};
enum class Gauge : uint8_t {
#define GAUGE(id, name, label, value, help) k##id,
#include "service/metrics.inc"
};

// Files that the server follows, by the flag that names them; a certificate, its key and authorities are one.
enum class FollowedFile : uint8_t { kClients, kPolicies, kReceiptKey, kTls };
inline constexpr const char* kFollowedFileNames[] = {"clients", "policies", "receipt_key", "tls_certificate"};
inline constexpr Gauge kFollowedFileGauges[] = {Gauge::kClientsFailing, Gauge::kPoliciesFailing,
                                                Gauge::kReceiptKeyFailing, Gauge::kTlsFailing};

// Thread-safe; never blocks for long.
class Observer {
 public:
  // Totals since start.
  struct Totals {
    uint64_t steps = 0;
    uint64_t rows = 0;
    uint64_t tokens = 0;
    uint64_t errors = 0;
    uint64_t failures = 0;  // among these: the server's (IsFailure)
    uint64_t batches = 0;
    uint64_t compact_rows = 0;
    uint64_t rows_required = 0;  // among these: ROW_REQUIRED
  };

  virtual ~Observer() = default;

  // Moves a metric of metrics.inc.
  virtual void Count(Counter counter, uint64_t count) = 0;
  virtual void Set(Gauge gauge, double value) = 0;

  // A step message of `rows` rows and `payload_bytes` bulk bytes has arrived.
  virtual void StepReceived(uint32_t rows, uint64_t payload_bytes) = 0;
  // The logits of a step sent early were complete `waited` after the step's arrival.
  virtual void StepReady(absl::Duration waited) = 0;
  // Compact rows of a step have run.
  virtual void CompactRows(const CompactRowCounts& counts) = 0;
  // The last row of a step was answered, `latency` after its arrival, or after its logits were complete.
  virtual void StepAnswered(absl::Duration latency) = 0;
  // `count` rows, whose last token was drawn in this phase of their sequence, 1 to kMaxPhases. Called for phases alone.
  virtual void PhaseTokens(uint32_t phase, uint32_t count) = 0;
  // `count` rows, sequences, messages or calls were refused. `field` is the refusal's.
  virtual void Refused(Reason reason, std::string_view field, uint32_t count) = 0;
  // A device got a batch, chosen for this reason. BatchDone follows when it has finished.
  virtual void BatchStarted(std::string_view device, uint32_t rows, RouteReason reason) = 0;
  // A device has finished a batch. When it started, its oldest row had waited `queue_wait`.
  virtual void BatchDone(std::string_view device, uint32_t rows, absl::Duration queue_wait,
                         absl::Duration kernel_time) = 0;
  // A device failed a batch; its answers are not used.
  virtual void BatchFailed(std::string_view device) = 0;
  // Rows of a batch that failed on `device` went to another device.
  virtual void RowsRerun(std::string_view device, uint32_t rows) = 0;
  // Live rows of `device` were compared with the reference.
  virtual void RowsRechecked(std::string_view device, uint32_t right, uint32_t wrong) = 0;
  // A sampling stream was admitted, or has ended ("by client", "drained" or "abandoned").
  virtual void StreamOpened(TransportType transport) = 0;
  virtual void StreamEnded(TransportType transport, std::string_view how) = 0;
  // The server ended `count` connections that sent frames no honest client sends (FrameExcessName).
  virtual void ConnectionsEnded(std::string_view excess, uint32_t count) = 0;
  // A message of `bytes` was received or sent over a stream. The bytes of gRPC's framing and of TLS do not count.
  virtual void MessageReceived(TransportType transport, uint64_t bytes) = 0;
  virtual void MessageSent(TransportType transport, uint64_t bytes) = 0;
  // The control of a core (hiccups.h) woke up late by these two times.
  virtual void ControlWoken(absl::Duration machine, absl::Duration threads) = 0;

  virtual Totals totals() const = 0;
};

// Observes nothing.
class NullObserver : public Observer {
 public:
  void Count(Counter, uint64_t) override {}
  void Set(Gauge, double) override {}
  void StepReceived(uint32_t, uint64_t) override {}
  void StepReady(absl::Duration) override {}
  void CompactRows(const CompactRowCounts&) override {}
  void StepAnswered(absl::Duration) override {}
  void PhaseTokens(uint32_t, uint32_t) override {}
  void Refused(Reason, std::string_view, uint32_t) override {}
  void BatchStarted(std::string_view, uint32_t, RouteReason) override {}
  void BatchDone(std::string_view, uint32_t, absl::Duration, absl::Duration) override {}
  void BatchFailed(std::string_view) override {}
  void RowsRerun(std::string_view, uint32_t) override {}
  void RowsRechecked(std::string_view, uint32_t, uint32_t) override {}
  void StreamOpened(TransportType) override {}
  void StreamEnded(TransportType, std::string_view) override {}
  void ConnectionsEnded(std::string_view, uint32_t) override {}
  void MessageReceived(TransportType, uint64_t) override {}
  void MessageSent(TransportType, uint64_t) override {}
  void ControlWoken(absl::Duration, absl::Duration) override {}
  Totals totals() const override { return {}; }
};

}  // namespace sortition::service
