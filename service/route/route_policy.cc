// Names of policies and reasons.
#include "service/route/route_policy.h"

#include "absl/strings/str_cat.h"

namespace sortition::service {
namespace {

constexpr std::string_view kPinned = "pinned:";

}  // namespace

absl::StatusOr<RoutePolicy> RoutePolicy::Parse(std::string_view text) {
  if (text == "auto") return RoutePolicy{};
  if (text.starts_with(kPinned) && text.size() > kPinned.size()) {
    return RoutePolicy{std::string(text.substr(kPinned.size()))};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::string_view(text.data(), text.size()), "\" is neither auto nor pinned:DEVICE"));
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
  return policy.pinned.empty() ? "auto" : std::string(kPinned) + policy.pinned;
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
  }
  __builtin_unreachable();
}

}  // namespace sortition::service
