// The page that the metrics port shows to people.
#pragma once

#include <string_view>

namespace sortition::monitoring {

// HTML that reads /metrics again and again and shows what it says. Static.
std::string_view StatusPage();

}  // namespace sortition::monitoring
