// State of the devices, and the choice among them.
#include "service/route/router.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "kernels/check.h"

namespace sortition::service {

Router::Router(std::vector<devices::Device*> devices, const RoutePolicy& policy) : policy_(policy) {
  for (devices::Device* device : devices) {
    Entry entry;
    entry.device = device;
    entries_.push_back(std::move(entry));
  }
  SORTITION_CHECK(std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) { return IsEligible(entry); }));
}

bool Router::CanTake(const devices::DeviceDescription& device, const Needs& needs) {
  return needs.vocabulary <= device.max_vocabulary && (needs.features & ~device.features) == 0;
}

bool Router::IsAble(const Entry& entry, const Needs& needs) const {
  return entry.health.serves() && !entry.health.backs_off() && CanTake(entry.device->description(), needs) &&
         IsEligible(entry);
}

kernels::Features Router::Lacking(kernels::Features features) const {
  kernels::Features fewest = features;
  for (const Entry& entry : entries_) {
    const kernels::Features lacking = features & ~entry.device->description().features;
    if (IsEligible(entry) && std::popcount(lacking) < std::popcount(fewest)) fewest = lacking;
  }
  return fewest;
}

uint32_t Router::widest_vocabulary() const {
  uint32_t widest = 0;
  for (const Entry& entry : entries_) {
    if (IsEligible(entry)) widest = std::max(widest, entry.device->description().max_vocabulary);
  }
  return widest;
}

bool Router::OtherCanServe(const devices::Device* device, const Needs& needs) const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const Entry& entry) { return entry.device != device && IsAble(entry, needs); });
}

bool Router::AllHave(kernels::Features features) const {
  return std::all_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return !entry.health.serves() || (features & ~entry.device->description().features) == 0;
  });
}

bool Router::StaysInMemory(const BatchSummary& batch) const {
  return batch.memory != devices::kHostMemory && std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
           return IsThere(entry, batch) && IsAble(entry, batch.needs());
         });
}

Work Router::WorkOf(const Entry& entry, const BatchSummary& batch) {
  return {batch.rows, batch.bytes, !IsThere(entry, batch)};
}

double Router::SecondsUntilDone(const Entry& entry, const BatchSummary& batch, absl::Time now) {
  const double seconds = entry.costs.Seconds(WorkOf(entry, batch), now);
  if (entry.in_flight.empty()) return seconds;
  // A device that is late with its current batches is expected to be as late again.
  const double worked = absl::ToDoubleSeconds(now - entry.worked_since);
  return std::abs(entry.expected - worked) + seconds;
}

double Router::SecondsToDrain(const BatchSummary& batch, absl::Time now) const {
  double rate = 0;  // such batches per second
  const bool stays = StaysInMemory(batch);
  for (const Entry& entry : entries_) {
    if (!IsAble(entry, batch.needs()) || (stays && !IsThere(entry, batch))) continue;
    const Work work = WorkOf(entry, batch);
    const double launches = std::ceil(double(work.rows) / entry.device->description().max_batch_rows);
    const double launch = entry.costs.Seconds({0, 0, false}, now);
    rate += 1 / (entry.costs.Seconds(work, now) + (launches - 1) * launch);
  }
  return 1 / rate;
}

Router::Choice Router::ChooseFastest(const std::vector<Entry*>& able, const BatchSummary& batch, absl::Time now) const {
  const Entry* best = nullptr;
  double least = 0;
  for (const Entry* entry : able) {
    const double seconds = SecondsUntilDone(*entry, batch, now);
    // If times are equal, prefers a device that can start at once.
    if (best != nullptr && (seconds > least || (seconds == least && (HasRoom(*best) || !HasRoom(*entry))))) continue;
    best = entry;
    least = seconds;
  }
  if (!HasRoom(*best)) return {};
  return {best->device, RouteReason::kFastest};
}

Router::Choice Router::Choose(const BatchSummary& batch, absl::Time now) {
  able_.clear();
  const bool stays = StaysInMemory(batch);
  for (Entry& entry : entries_) {
    if (IsAble(entry, batch.needs()) && (!stays || IsThere(entry, batch))) able_.push_back(&entry);
  }
  if (able_.empty()) return {};
  if (able_.size() > 1) return ChooseFastest(able_, batch, now);
  const Entry& only = *able_.front();
  if (!HasRoom(only)) return {};
  if (!policy_.pinned.empty()) return {only.device, RouteReason::kPinned};
  if (stays) return {only.device, RouteReason::kMemory};
  return {only.device, AllHave(batch.features) ? RouteReason::kOnly : RouteReason::kFeatures};
}

void Router::Started(const devices::Device* device, const BatchSummary& batch, absl::Time now) {
  Entry& entry = Find(device);
  InFlight in_flight = {WorkOf(entry, batch), 0};
  in_flight.expected = entry.costs.Seconds(in_flight.work, now);
  if (entry.in_flight.empty()) entry.worked_since = now;
  entry.expected += in_flight.expected;
  entry.in_flight.push_back(in_flight);
}

void Router::Finished(const devices::Device* device, const BatchSummary& batch, bool is_measured, absl::Time now) {
  Entry& entry = Find(device);
  const Work work = WorkOf(entry, batch);
  const auto ended = std::find_if(entry.in_flight.begin(), entry.in_flight.end(), [&](const InFlight& in_flight) {
    return in_flight.work.rows == work.rows && in_flight.work.bytes == work.bytes;
  });
  SORTITION_CHECK(ended != entry.in_flight.end());
  // Batches that overlap share the device's time: each is charged from the end of the one before it.
  if (is_measured) entry.costs.Observe(work, now - entry.worked_since, now);
  entry.busy += now - entry.worked_since;
  entry.worked_since = now;
  entry.in_flight.erase(ended);
  entry.expected = 0;
  for (const InFlight& in_flight : entry.in_flight) entry.expected += in_flight.expected;
}

std::vector<absl::Duration> Router::BusyTimes(absl::Time now) const {
  std::vector<absl::Duration> times;
  times.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    times.push_back(entry.busy + (entry.in_flight.empty() ? absl::ZeroDuration() : now - entry.worked_since));
  }
  return times;
}

void Router::EndBackoffs(absl::Time now) {
  for (Entry& entry : entries_) entry.health.EndBackoff(now);
}

std::vector<devices::Device*> Router::DueForSelfTest(absl::Time now) const {
  std::vector<devices::Device*> due;
  for (const Entry& entry : entries_) {
    if (entry.health.IsDue(now) && entry.in_flight.empty()) due.push_back(entry.device);
  }
  return due;
}

std::vector<DeviceStatus> Router::Statuses() const {
  std::vector<DeviceStatus> statuses;
  for (const Entry& entry : entries_) {
    statuses.push_back({entry.device, entry.health.state(), entry.health.reason(), entry.costs.costs()});
  }
  return statuses;
}

const Router::Entry& Router::Find(const devices::Device* device) const {
  for (const Entry& entry : entries_) {
    if (entry.device == device) return entry;
  }
  CheckFailed("a device of this router", __FILE__, __LINE__);
}

Router::Entry& Router::Find(const devices::Device* device) {
  return const_cast<Entry&>(std::as_const(*this).Find(device));
}

}  // namespace sortition::service
