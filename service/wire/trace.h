// Validates the W3C trace context of a step (https://www.w3.org/TR/trace-context/).
#pragma once

#include <optional>
#include <string_view>

#include "service/refusal.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Refuses a trace context that is not of the recommendation's form, by field. Thread-safe.
std::optional<Refusal> CheckTrace(const v1::TraceContext& trace);

// Returns true if the caller records this trace (bit 0 of the flags). `trace` has passed CheckTrace.
bool IsSampled(const v1::TraceContext& trace);

// Returns the 32 digits of the trace id within a traceparent that has passed CheckTrace.
std::string_view TraceIdOf(std::string_view traceparent);

}  // namespace sortition::service
