// Whether a step may join the queue.
//
// Time: a step is refused where what goes before it would keep it waiting for longer than max_queue_time, or past its
// own deadline, by the costs that the router has measured. What goes before it is what its stream has waiting, and as
// much of each other that takes its share: a stream that has little waiting is taken however long others' queues are. A
// step that nothing goes before is always taken.
//
// Memory: whoever is in the queue leaves a ninth of what is left of it to who is not, streams within their tenant
// and tenants among all; so there is room for one more client, though not for all of its rows.
#pragma once

#include <optional>
#include <vector>

#include "service/batch/batcher.h"
#include "service/batch/row_queue.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/route/device_keeper.h"

namespace sortition::service {

// OVERLOADED with retry advice, or nothing if the rows, all of one step, may join. O(kinds of rows that wait).
std::optional<Refusal> WhyNotAdmitted(const Limits& limits, const RowQueue& queue, const DeviceKeeper& keeper,
                                      const PendingStep& step, const std::vector<QueuedRow>& rows, absl::Time now);

}  // namespace sortition::service
