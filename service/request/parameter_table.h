// Every sampling parameter of the contract: range, default, scope, and whether this server builds it. One list feeds
// validation of what is not built, the information service and the documentation.
#pragma once

#include <span>
#include <string_view>

namespace sortition::service {

struct ParameterDescription {
  std::string_view name;  // field of SamplingParameters, or of StepRow if is_per_step
  std::string_view range;
  std::string_view default_value;  // the off value, where there is one
  std::string_view description;    // what it does, its unit and where it comes from
  bool implemented;
  bool is_per_step = false;
};

std::span<const ParameterDescription> Parameters();

}  // namespace sortition::service
