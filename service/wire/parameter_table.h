// The options of kernels/law/options.inc as the information service publishes them, and the names of features.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/features.h"

namespace sortition::service {

struct ParameterDescription {
  std::string_view name;  // field of SamplingParameters, or of StepRow if is_per_step
  std::string range;
  std::string default_value;     // also the off value, if there is one
  std::string_view description;  // effect, unit and origin
  bool in_phases = false;        // a phase may replace it
  bool is_per_step = false;
  bool is_answer = false;  // only asks for more in the answer
};

// Returns every option, in the order of the table.
const std::vector<ParameterDescription>& Parameters();

// Returns the option of this name; null if there is none.
const ParameterDescription* FindParameter(std::string_view name);

// Returns the options, verify modes and tasks that need one of these features, by their names in the contract.
std::vector<std::string_view> NamesOf(kernels::Features features);

// Returns the message of a refusal for features that no device of the server has.
std::string DevicesLack(kernels::Features features);

}  // namespace sortition::service
