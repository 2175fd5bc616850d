// Cost of a step whose rows come in shards of four ranks, compared with one client with the whole rows.
#pragma once

#include <cstdint>
#include <string>

#include "client/bench/report.h"

namespace sortition::bench {

// Adds ranks_uds_16 and ranks_shm_16. `target` is the server's Unix socket. The ranks' clients are threads of this
// process, so they share one core like the single client: the difference is messages, threads and merging.
void MeasureRanks(const std::string& target, uint32_t rounds, Report* report);

}  // namespace sortition::bench
