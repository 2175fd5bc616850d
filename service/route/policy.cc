// Names of policies and reasons.
#include "service/route/policy.h"

#include "absl/strings/str_cat.h"

namespace sortition::service {

absl::StatusOr<RoutePolicy> RoutePolicy::Parse(std::string_view text) {
  constexpr std::string_view kPrefix = "pinned:";
  const absl::string_view view(text.data(), text.size());
  if (text == "auto") return RoutePolicy{Kind::kAuto, ""};
  if (text == "round-robin") return RoutePolicy{Kind::kRoundRobin, ""};
  if (text == "random") return RoutePolicy{Kind::kRandom, ""};
  if (text.starts_with(kPrefix) && text.size() > kPrefix.size()) {
    return RoutePolicy{Kind::kPinned, std::string(text.substr(kPrefix.size()))};
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", view, "\" is none of auto, round-robin, random, pinned:DEVICE"));
}

bool AbslParseFlag(absl::string_view text, RoutePolicy* policy, std::string* error) {
  absl::StatusOr<RoutePolicy> parsed = RoutePolicy::Parse(std::string_view(text.data(), text.size()));
  if (parsed.ok()) {
    *policy = *std::move(parsed);
  } else {
    *error = std::string(parsed.status().message());
  }
  return error->empty();
}

std::string AbslUnparseFlag(const RoutePolicy& policy) {
  switch (policy.kind) {
    case RoutePolicy::Kind::kAuto:
      return "auto";
    case RoutePolicy::Kind::kRoundRobin:
      return "round-robin";
    case RoutePolicy::Kind::kRandom:
      return "random";
    case RoutePolicy::Kind::kPinned:
      return "pinned:" + policy.device;
  }
  __builtin_unreachable();
}

std::string_view RouteReasonName(RouteReason reason) {
  switch (reason) {
    case RouteReason::kFastest:
      return "fastest";
    case RouteReason::kOnly:
      return "only";
    case RouteReason::kFeatures:
      return "features";
    case RouteReason::kMemory:
      return "memory";
    case RouteReason::kPinned:
      return "pinned";
    case RouteReason::kTurn:
      return "turn";
    case RouteReason::kRandom:
      return "random";
  }
  __builtin_unreachable();
}

}  // namespace sortition::service
