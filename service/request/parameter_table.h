// Every sampling parameter of the contract: range, default, scope, and whether this server builds it. The information
// service publishes the list.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/features.h"

namespace sortition::service {

struct ParameterDescription {
  std::string_view name;  // field of SamplingParameters, or of StepRow if is_per_step
  std::string_view range;
  std::string_view default_value;  // also the off value, if there is one
  std::string_view description;    // effect, unit and origin
  bool implemented;
  bool is_per_step = false;
};

std::span<const ParameterDescription> Parameters();

// Returns the options, verify modes and tasks that need one of these features, by their names in the contract.
std::vector<std::string_view> NamesOf(kernels::Features features);

// Returns the message of a refusal for features that no device of the server has.
std::string DevicesLack(kernels::Features features);

}  // namespace sortition::service
