// What a server's metrics page says.
#pragma once

#include <cstdint>
#include <string>

namespace sortition::bench {

// A loopback port that nobody uses at the moment.
uint16_t FreePort();

// The sum of all series of this name, whatever their labels, on the page of the server that listens on this loopback
// port. Aborts if it cannot be read or has none. Blocks.
double ReadMetric(uint16_t port, const std::string& name);

}  // namespace sortition::bench
