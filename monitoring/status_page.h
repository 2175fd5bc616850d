// The page that the metrics port shows to people.
#pragma once

#include <string_view>

namespace sortition::monitoring {

// HTML that reads /metrics periodically and shows its values. A static string.
std::string_view StatusPage();

}  // namespace sortition::monitoring
