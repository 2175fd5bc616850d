// Descriptions of the limits.
#include "service/limits.h"

#include "absl/strings/str_cat.h"

namespace sortition::service {

std::string Bound::Text() const { return absl::StrCat(std::string(name), " ", value); }

std::vector<LimitDescription> DescribeLimits(const Limits& limits) {
  const Bounds bounds(limits);
  return {
#define LIMIT(type, name, initial, least, most, unit, text) {#name, bounds.name().value, unit, text},
#define FIXED_LIMIT(type, constant, name, fixed, unit, text) {#name, Bounds::name().value, unit, text},
#include "service/limits.inc"
  };
}

}  // namespace sortition::service
