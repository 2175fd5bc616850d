// The operator's policy for the choice of devices.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sortition::service {

struct RoutePolicy {
  std::string pinned;  // the one device that gets batches; empty: each goes where it is expected to be done first

  // Parses "auto" or "pinned:NAME". INVALID_ARGUMENT for anything else.
  static absl::StatusOr<RoutePolicy> Parse(std::string_view text);
};

// For flags.
bool AbslParseFlag(absl::string_view text, RoutePolicy* policy, std::string* error);
std::string AbslUnparseFlag(const RoutePolicy& policy);

// Reason why a batch went to its device; the label of a metric.
enum class RouteReason : uint8_t {
  kFastest,   // expected to finish it first
  kOnly,      // no other serving device can take it
  kFeatures,  // as kOnly, because another serving device lacks kernels for it
  kMemory,    // the logits lie in its memory; other devices would have to read them through the host
  kPinned,
};
inline constexpr RouteReason kAllRouteReasons[] = {RouteReason::kFastest, RouteReason::kOnly, RouteReason::kFeatures,
                                                   RouteReason::kMemory, RouteReason::kPinned};
std::string_view RouteReasonName(RouteReason reason);

}  // namespace sortition::service
