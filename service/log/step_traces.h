// Spans of traced steps, sent to a collector by OTLP over gRPC.
//
// A traced step is a span, the child of the worker's. Its own children say where the time went: `ready` (the wait for
// logits of a step that was sent early), then for each batch `queue` and `device`, and `answer` (from the end of the
// last batch). No span has a token, a seed or a request id.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "service/clock.h"
#include "service/event_log.h"
#include "service/log/log.h"
#include "service/observer.h"

namespace sortition::server {

struct TraceSettings {
  std::string endpoint;  // HOST:PORT, or http:// or https:// before it; empty = no traces
  // Most spans that wait for the collector. More are lost.
  uint32_t most_waiting = 2048;
  // Time that the collector has to take one message, and to take all that waits when the server stops.
  absl::Duration timeout = absl::Seconds(2);
  // Time for which spans wait, so that several leave in one message.
  absl::Duration delay = absl::Milliseconds(500);
};

// Thread-safe.
class StepTraces {
 public:
  // Returns UNIMPLEMENTED if this build has no OpenTelemetry, and INVALID_ARGUMENT that names --otlp_endpoint if it is
  // no address. `clock` is the steps' clock; `log` gets the library's messages. These and `observer` are not owned and
  // outlive the traces. Does not wait for a connection.
  static absl::StatusOr<std::unique_ptr<StepTraces>> Start(const TraceSettings& settings, const service::Clock* clock,
                                                           service::Observer* observer, Log* log);
  // Sends the spans that wait. Blocks for at most twice the timeout.
  virtual ~StepTraces() = default;

  // Never blocks. The spans are lost, and counted, if too many wait.
  virtual void Add(const service::NotedStep& step) = 0;
};

}  // namespace sortition::server
