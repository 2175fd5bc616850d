// Names of the contract's fields as labels of a metric: a closed list, which no client's text can join.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace sortition::service {

// Returns the labels, about a hundred: the fields of SamplingParameters, and of the messages that open sequences, step
// and sample; then "other" and "none". Constant.
std::span<const std::string> RefusedFields();

// Returns the index among RefusedFields of a refusal's field: the last name within the path that is among them.
// "step.rows[3].parameters.dry.multiplier" is "dry". A path without such a name is "other", an empty one "none".
size_t FindRefusedField(std::string_view path);

}  // namespace sortition::service
