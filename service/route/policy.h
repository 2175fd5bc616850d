// How devices are chosen, as an operator says it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sortition::service {

struct RoutePolicy {
  enum class Kind {
    kAuto,        // where the batch is expected to be done first, though that device be busy
    kPinned,      // `device` alone
    kRoundRobin,  // by turns, among those with room
    kRandom,      // any of those with room; the same answers come out, which is what it is there to show
  };
  Kind kind = Kind::kAuto;
  std::string device;  // of kPinned

  // "auto", "round-robin", "random" or "pinned:NAME". INVALID_ARGUMENT for anything else.
  static absl::StatusOr<RoutePolicy> Parse(std::string_view text);
};

// For flags.
bool AbslParseFlag(absl::string_view text, RoutePolicy* policy, std::string* error);
std::string AbslUnparseFlag(const RoutePolicy& policy);

// Why a batch went where it went; the label of a metric.
enum class RouteReason : uint8_t {
  kFastest,   // expected to be done first there
  kOnly,      // no other device serves that is able to
  kFeatures,  // likewise, and another that serves has not the kernels for what the rows ask
  kMemory,    // the logits are in its memory; others would have them read to the host first
  kPinned,
  kTurn,
  kRandom,
};
inline constexpr RouteReason kAllRouteReasons[] = {RouteReason::kFastest, RouteReason::kOnly,   RouteReason::kFeatures,
                                                   RouteReason::kMemory,  RouteReason::kPinned, RouteReason::kTurn,
                                                   RouteReason::kRandom};
std::string_view RouteReasonName(RouteReason reason);

}  // namespace sortition::service
