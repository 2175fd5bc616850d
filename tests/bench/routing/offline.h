// The best assignment that hindsight finds.
#pragma once

#include "tests/bench/routing/scenario.h"

namespace sortition::bench {

// Until the last batch is done under the best assignment found by local search from several starts, in seconds: every
// cost and every slow-down is known beforehand. Batches of a device run in their order.
double OfflineMakespan(const Scenario& scenario);

}  // namespace sortition::bench
