// Bounds on the queue, in rows and in time.
#include "service/batch/admission.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sortition::service {
namespace {

// Shortest retry advice: a step that returns earlier would most likely be refused again.
constexpr absl::Duration kLeastAdvice = absl::Milliseconds(5);

// Returns how many of `free` rows one party may take: 8/9, so that there is always room for another.
uint64_t MostOf(uint64_t free) { return free - free / 9; }

Refusal NoRoom(std::string limit, std::string message, absl::Duration advice) {
  return {Reason::kOverloaded, "step", std::move(limit), std::move(message), std::max(advice, kLeastAdvice)};
}

std::optional<Refusal> WhyNoRows(const Limits& limits, const RowQueue& queue, const QueueOwner& owner, uint64_t count) {
  const RowQueue::OwnerRows own = queue.RowsOf(owner);
  const uint64_t others = queue.rows() - own.tenant;
  const uint64_t siblings = own.tenant - own.stream;
  const uint64_t most = limits.max_queued_rows;
  if (queue.rows() + count <= most) {
    const uint64_t most_of_tenant = MostOf(most - others);
    if (own.tenant == 0) return std::nullopt;
    if (own.tenant + count <= most_of_tenant) {
      if (own.stream == 0 || own.stream + count <= MostOf(most_of_tenant - siblings)) return std::nullopt;
    }
  }
  return NoRoom(Bounds(limits).max_queued_rows().Text(),
                absl::StrCat(queue.rows(), " rows are waiting for a device, ", own.stream, " of them this stream's"),
                absl::Milliseconds(20));
}

}  // namespace

std::optional<Refusal> WhyNotAdmitted(const Limits& limits, const RowQueue& queue, const DeviceKeeper& keeper,
                                      const PendingStep& step, const std::vector<QueuedRow>& rows, absl::Time now) {
  if (queue.rows() == 0 && rows.size() <= limits.max_queued_rows) return std::nullopt;
  if (auto refusal = WhyNoRows(limits, queue, step.owner, rows.size())) return refusal;
  // All rows of a step wait for about the same time, so its first row stands for all.
  const RowQueue::Ahead ahead = queue.AheadOf(rows.front().row, step.owner, step.priority);
  if (ahead.share == 0) return std::nullopt;
  const absl::Duration wait = absl::Seconds(ahead.share * keeper.SecondsToDrain(ahead.all, now));
  const bool by_limit = limits.max_queue_time != absl::ZeroDuration() && wait > limits.max_queue_time;
  // A step that is past its deadline already is admitted, and refused with DEADLINE_PASSED when its rows are taken.
  const bool by_deadline = step.deadline > now && wait > step.deadline - now;
  if (!by_limit && !by_deadline) return std::nullopt;
  const auto milliseconds = [](absl::Duration time) { return absl::StrCat(absl::ToInt64Milliseconds(time), " ms"); };
  return NoRoom(by_limit ? Bounds(limits).max_queue_time().Text() : "step.timeout",
                absl::StrCat("its rows would wait about ", milliseconds(wait), " for a device"),
                std::min(wait, by_limit ? limits.max_queue_time : absl::InfiniteDuration()) / 2);
}

double QueueShare(const Limits& limits, const RowQueue& queue, const DeviceKeeper& keeper, absl::Time now) {
  double share = double(queue.rows()) / limits.max_queued_rows;
  const double most_seconds = absl::ToDoubleSeconds(limits.max_queue_time);
  if (most_seconds == 0) return share;
  for (const Router::BatchSummary& open : queue.OpenBatches()) {
    // Rows that no device can take are refused at the next look.
    if (!keeper.CanServe(open.needs())) continue;
    share = std::max(share, keeper.SecondsToDrain(open, now) / most_seconds);
  }
  return share;
}

}  // namespace sortition::service
