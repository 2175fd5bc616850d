// Decides whether a step may join the queue.
//
// Time: a step is refused if its rows would wait longer than max_queue_time, or past the step's deadline, by the costs
// that the router has measured. The wait counts the rows that the step's own stream has in the queue, and each other
// stream's share meanwhile. So a stream with few waiting rows is admitted however long the queues of others are, and a
// step with no rows ahead of it always is.
//
// Memory: a tenant may use at most 8/9 of the space that other tenants leave, and a stream 8/9 of the space that its
// tenant's other streams leave. So a newcomer always finds room, though maybe not for all of its rows.
#pragma once

#include <optional>
#include <vector>

#include "service/batch/batcher.h"
#include "service/batch/row_queue.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/route/device_keeper.h"

namespace sortition::service {

// Returns OVERLOADED with retry advice, or nothing if the rows, all of one step, may join. O(kinds of waiting rows).
std::optional<Refusal> WhyNotAdmitted(const Limits& limits, const RowQueue& queue, const DeviceKeeper& keeper,
                                      const PendingStep& step, const std::vector<QueuedRow>& rows, absl::Time now);

// Returns the larger used part of two bounds: waiting rows against max_queued_rows, and, if max_queue_time is set, the
// time to serve one kind's waiting rows against that. 0 if nothing waits; above 1 if a new last row would be refused.
double QueueShare(const Limits& limits, const RowQueue& queue, const DeviceKeeper& keeper, absl::Time now);

}  // namespace sortition::service
