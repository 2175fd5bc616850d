// Calls that watch something once an interval: the interval's range, their number, and their messages.
#pragma once

#include <google/protobuf/duration.pb.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/time/time.h"
#include "service/calls/call_queue.h"
#include "service/limits.h"
#include "service/refusal.h"

namespace sortition::server {

// Returns the interval in `field`, 1 s if it is null. Refuses an interval outside of 100 ms to 60 s.
std::variant<absl::Duration, service::Refusal> ParseInterval(const google::protobuf::Duration* interval,
                                                             const char* field);

// Bounds the calls of one method that watch at once. Thread-safe.
class Watchers {
 public:
  explicit Watchers(const service::Limits& limits) : most_(service::Bounds(limits).max_watchers()) {}

  // Counts a call until the value is destroyed. Returns OVERLOADED, which names max_watchers, if that number of calls
  // is reached. The value must not outlive this.
  class Place {
   public:
    explicit Place(std::atomic<uint32_t>* count) : count_(count) {}
    Place(Place&& other) noexcept : count_(std::exchange(other.count_, nullptr)) {}
    Place& operator=(Place&&) = delete;
    ~Place() {
      if (count_ != nullptr) count_->fetch_sub(1);
    }

   private:
    std::atomic<uint32_t>* count_;
  };
  std::variant<Place, service::Refusal> Enter();

 private:
  const service::Bound most_;
  std::atomic<uint32_t> count_ = 0;
};

// Sends what `read` returns at once, and then once an interval.
template <typename Response>
class IntervalWatch final : public Watch<Response> {
 public:
  IntervalWatch(Watchers::Place place, absl::Duration interval, std::function<Response()> read)
      : place_(std::move(place)), interval_(interval), read_(std::move(read)) {}

  std::optional<Response> Next(absl::Time now) override {
    if (now - last_ < interval_) return std::nullopt;
    last_ = now;
    return read_();
  }

 private:
  const Watchers::Place place_;
  const absl::Duration interval_;
  const std::function<Response()> read_;
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace sortition::server
