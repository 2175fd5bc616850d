// The version of this build, from the root CMakeLists.txt.
#pragma once

#include <string_view>

namespace sortition::service {

std::string_view Version();

}  // namespace sortition::service
