// Descriptions of the limits.
#include "service/limits.h"

#include "absl/strings/str_cat.h"

namespace sortition::service {

std::string Bound::Text() const { return absl::StrCat(std::string(name), " ", value); }

std::vector<LimitDescription> DescribeLimits(const Limits& limits) {
  const Bounds bounds(limits);
  return {
#define LIMIT(type, name, initial, unit, description) {#name, bounds.name().value, unit, description},
#define FIXED_LIMIT(type, constant, name, fixed, unit, description) {#name, Bounds::name().value, unit, description},
#include "service/limits.inc"
#undef LIMIT
#undef FIXED_LIMIT
  };
}

}  // namespace sortition::service
