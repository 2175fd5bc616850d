// Sampling in the caller's process, as a client's fallback or as its only way. Needs the library sortition_in_process.
#pragma once

#include <cstdint>

#include "sortition/options.h"

namespace sortition::client {

// Returns the value for ClientOptions::in_process. Rows are sampled with the tokens that a server would give, on the
// threads of callers in Client::Step and on threads that begin when they are first needed. At most `threads` of them
// work at once for a client; 0 = one for each hardware thread.
InProcess InProcessEngine(uint32_t threads = 0);

}  // namespace sortition::client
