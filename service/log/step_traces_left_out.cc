// A build without OpenTelemetry: traces are refused by name.
#include "service/log/step_traces.h"

namespace sortition::server {

absl::StatusOr<std::unique_ptr<StepTraces>> StepTraces::Start(const TraceSettings&, const service::Clock*,
                                                              service::Observer*, Log*) {
  return absl::UnimplementedError("--otlp_endpoint: this build has no OpenTelemetry (Debian's opentelemetry-cpp-dev)");
}

}  // namespace sortition::server
