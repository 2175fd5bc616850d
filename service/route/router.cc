// Books of devices, and the choice among them.
#include "service/route/router.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/check.h"

namespace sortition::service {

Router::Router(std::vector<devices::Device*> devices, const RoutePolicy& policy, uint64_t random_seed)
    : policy_(policy), random_(random_seed) {
  SORTITION_CHECK(!devices.empty());
  for (devices::Device* device : devices) {
    Book book;
    book.device = device;
    books_.push_back(std::move(book));
  }
  SORTITION_CHECK(policy_.kind != RoutePolicy::Kind::kPinned ||
                  std::any_of(books_.begin(), books_.end(),
                              [&](const Book& book) { return book.device->description().name == policy_.device; }));
}

bool Router::CanTake(const devices::DeviceDescription& device, const Needs& needs) {
  return needs.vocabulary <= device.max_vocabulary && (needs.features & ~device.features) == 0;
}

bool Router::IsAble(const Book& book, const Needs& needs) const {
  const devices::DeviceDescription& description = book.device->description();
  return book.health.serves() && !book.health.rests() && CanTake(description, needs) &&
         (policy_.kind != RoutePolicy::Kind::kPinned || description.name == policy_.device);
}

bool Router::OtherCanServe(const devices::Device* device, const Needs& needs) const {
  return std::any_of(books_.begin(), books_.end(),
                     [&](const Book& book) { return book.device != device && IsAble(book, needs); });
}

bool Router::AllHave(kernels::Features features) const {
  return std::all_of(books_.begin(), books_.end(), [&](const Book& book) {
    return !book.health.serves() || (features & ~book.device->description().features) == 0;
  });
}

bool Router::StaysInMemory(const Batch& batch) const {
  return policy_.kind == RoutePolicy::Kind::kAuto && batch.memory != devices::kHostMemory &&
         std::any_of(books_.begin(), books_.end(),
                     [&](const Book& book) { return IsThere(book, batch) && IsAble(book, batch.needs()); });
}

Work Router::WorkOf(const Book& book, const Batch& batch) { return {batch.rows, batch.bytes, !IsThere(book, batch)}; }

double Router::SecondsUntilDone(const Book& book, const Batch& batch, absl::Time now) {
  const double seconds = book.costs.Seconds(WorkOf(book, batch), now);
  if (book.in_flight.empty()) return seconds;
  // A device that is late with what it has is expected to be as late again.
  const double worked = absl::ToDoubleSeconds(now - book.worked_since);
  return std::abs(book.expected - worked) + seconds;
}

double Router::SecondsToDrain(const Batch& batch, absl::Time now) const {
  double rate = 0;  // of such batches, a second
  const bool stays = StaysInMemory(batch);
  for (const Book& book : books_) {
    if (!IsAble(book, batch.needs()) || (stays && !IsThere(book, batch))) continue;
    const Work work = WorkOf(book, batch);
    const double launches = std::ceil(double(work.rows) / book.device->description().max_batch_rows);
    const double launch = book.costs.Seconds({0, 0, false}, now);
    rate += 1 / (book.costs.Seconds(work, now) + (launches - 1) * launch);
  }
  return 1 / rate;
}

Router::Choice Router::ChooseFastest(const std::vector<Book*>& able, const Batch& batch, absl::Time now) const {
  const Book* best = nullptr;
  double least = 0;
  for (const Book* book : able) {
    const double seconds = SecondsUntilDone(*book, batch, now);
    // Of equals one that can start at once.
    if (best != nullptr && (seconds > least || (seconds == least && (HasRoom(*best) || !HasRoom(*book))))) continue;
    best = book;
    least = seconds;
  }
  if (!HasRoom(*best)) return {};
  return {best->device, RouteReason::kFastest};
}

Router::Choice Router::Choose(const Batch& batch, absl::Time now) {
  able_.clear();
  const bool stays = StaysInMemory(batch);
  for (Book& book : books_) {
    if (IsAble(book, batch.needs()) && (!stays || IsThere(book, batch))) able_.push_back(&book);
  }
  if (able_.empty()) return {};
  if (policy_.kind == RoutePolicy::Kind::kAuto && able_.size() > 1) return ChooseFastest(able_, batch, now);
  std::erase_if(able_, [](const Book* book) { return !HasRoom(*book); });
  if (able_.empty()) return {};
  switch (policy_.kind) {
    case RoutePolicy::Kind::kAuto:
      if (stays) return {able_.front()->device, RouteReason::kMemory};
      return {able_.front()->device, AllHave(batch.features) ? RouteReason::kOnly : RouteReason::kFeatures};
    case RoutePolicy::Kind::kPinned:
      return {able_.front()->device, RouteReason::kPinned};
    case RoutePolicy::Kind::kRandom:
      return {able_[random_() % able_.size()]->device, RouteReason::kRandom};
    case RoutePolicy::Kind::kRoundRobin:
      break;
  }
  // The first with room from the one whose turn it is.
  const Book* next = *std::min_element(able_.begin(), able_.end(), [&](const Book* a, const Book* b) {
    const size_t count = books_.size();
    return (size_t(a - books_.data()) + count - turn_) % count < (size_t(b - books_.data()) + count - turn_) % count;
  });
  return {next->device, RouteReason::kTurn};
}

void Router::Started(const devices::Device* device, const Batch& batch, absl::Time now) {
  Book& book = Find(device);
  InFlight in_flight = {WorkOf(book, batch), 0};
  in_flight.expected = book.costs.Seconds(in_flight.work, now);
  if (book.in_flight.empty()) book.worked_since = now;
  book.expected += in_flight.expected;
  book.in_flight.push_back(in_flight);
  turn_ = (size_t(&book - books_.data()) + 1) % books_.size();
}

void Router::Finished(const devices::Device* device, const Batch& batch, bool is_measured, absl::Time now) {
  Book& book = Find(device);
  const Work work = WorkOf(book, batch);
  const auto ended = std::find_if(book.in_flight.begin(), book.in_flight.end(), [&](const InFlight& in_flight) {
    return in_flight.work.rows == work.rows && in_flight.work.bytes == work.bytes;
  });
  SORTITION_CHECK(ended != book.in_flight.end());
  // Batches that overlap share the time: each is charged with what passed since the one before it ended.
  if (is_measured) book.costs.Observe(work, now - book.worked_since, now);
  book.worked_since = now;
  book.in_flight.erase(ended);
  book.expected = 0;
  for (const InFlight& in_flight : book.in_flight) book.expected += in_flight.expected;
}

void Router::EndRests(absl::Time now) {
  for (Book& book : books_) book.health.EndRest(now);
}

std::vector<devices::Device*> Router::DueForSelfTest(absl::Time now) const {
  std::vector<devices::Device*> due;
  for (const Book& book : books_) {
    if (book.health.IsDue(now) && book.in_flight.empty()) due.push_back(book.device);
  }
  return due;
}

std::vector<DeviceStatus> Router::Statuses() const {
  std::vector<DeviceStatus> statuses;
  for (const Book& book : books_) {
    statuses.push_back({book.device, book.health.state(), book.health.reason(), book.costs.costs()});
  }
  return statuses;
}

Router::Book& Router::Find(const devices::Device* device) {
  for (Book& book : books_) {
    if (book.device == device) return book;
  }
  CheckFailed("a device of this router", __FILE__, __LINE__);
}

}  // namespace sortition::service
