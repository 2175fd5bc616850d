// Every named maximum of the service, from one list (limits.inc). InformationService publishes them, and refusals name
// the one that was exceeded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "kernels/row.h"

namespace sortition::service {

// Values that an operator can set.
struct Limits {
#define LIMIT(type, name, initial, least, most, unit, text) type name = initial;
#include "service/limits.inc"
};

#define FIXED_LIMIT(type, constant, name, fixed, unit, text) inline constexpr type constant = fixed;
#include "service/limits.inc"

// The highest max_step_positions: a row has up to 6 parts.
inline constexpr uint32_t kMostStepPositions = kMaxMessageParts / 8;
// The highest max_listed_tokens: an entry is a part.
inline constexpr uint32_t kMostListedTokens = kMaxMessageParts / 2;

// A limit with its value.
struct Bound {
  std::string_view name;
  uint64_t value = 0;
  // Returns the text for Error.limit: the name and the value, such as "max_draft_tokens 64".
  std::string Text() const;
};

// Has a function for each limit, which returns its bound: `Bounds(limits).max_streams()`, `Bounds::max_draft_tokens()`.
// Refers to `limits`.
class Bounds {
 public:
  explicit Bounds(const Limits& limits) : limits_(limits) {}

#define LIMIT(type, name, initial, least, most, unit, text) \
  Bound name() const { return {#name, ValueOf(limits_.name)}; }
#define FIXED_LIMIT(type, constant, name, fixed, unit, text) \
  static constexpr Bound name() { return {#name, constant}; }
#include "service/limits.inc"

 private:
  static uint64_t ValueOf(uint64_t value) { return value; }
  static uint64_t ValueOf(absl::Duration value) { return static_cast<uint64_t>(absl::ToInt64Milliseconds(value)); }

  const Limits& limits_;
};

struct LimitDescription {
  std::string_view name;
  uint64_t value;
  std::string_view unit;  // "bytes", "rows", "tokens", "milliseconds", ...
  std::string_view description;
};

// Lists all limits, for people and clients.
std::vector<LimitDescription> DescribeLimits(const Limits& limits);

}  // namespace sortition::service
