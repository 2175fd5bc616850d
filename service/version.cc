// The build's version.
#include "service/version.h"

namespace sortition::service {

std::string_view Version() { return SORTITION_VERSION; }

}  // namespace sortition::service
