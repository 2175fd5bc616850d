// Reads a server's metrics page.
#pragma once

#include <cstdint>
#include <string>

namespace sortition::bench {

// Returns a loopback port that is free at the moment.
uint16_t FreePort();

// Returns the sum of all series of this name, over all labels, on the page of the server that listens on this loopback
// port. Aborts if the page cannot be read or has no such series. Blocks.
double ReadMetric(uint16_t port, const std::string& name);

}  // namespace sortition::bench
