// Validation of a step's W3C trace context (https://www.w3.org/TR/trace-context/).
#pragma once

#include <optional>

#include "service/refusal.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// What is wrong with `trace`, by field. Thread-safe.
std::optional<Refusal> CheckTrace(const v1::TraceContext& trace);

// The caller recorded this trace: bit 0 of the flags. `trace` has passed CheckTrace.
bool IsSampled(const v1::TraceContext& trace);

}  // namespace sortition::service
