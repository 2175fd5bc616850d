// The ranges of sampling options as one table, for code that takes options from outside.
#pragma once

#include <optional>
#include <string>

#include "kernels/law/parameters.h"

namespace sortition::law {

// An option whose value is out of range.
struct OutOfRange {
  const char* option;  // member of SamplingParameters, e.g. "mirostat_tau"
  const char* field;   // field of the contract's SamplingParameters, e.g. "mirostat.tau"
  std::string limit;   // what is accepted, e.g. "0 or 0.01..100" or "(0, 20]"
  std::string value;   // what was given
};

// Returns the first option, in the order of the members, whose value Compile does not accept. NaN is out of every
// range. Combinations and `order` are not looked at. Pure; thread-safe.
std::optional<OutOfRange> FindOutOfRange(const SamplingParameters& parameters);

}  // namespace sortition::law
