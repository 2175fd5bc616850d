// Calls that watch something once an interval: the interval's range, their number, and their messages.
#pragma once

#include <google/protobuf/duration.pb.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
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
  explicit Watchers(const service::Limits& limits)
      : most_(service::Bounds(limits).max_watchers()),
        most_of_connection_(service::Bounds(limits).connection_watchers()) {}

  // Counts a call of `peer`, which names its connection, until the value is destroyed. Returns OVERLOADED, which names
  // max_watchers or connection_watchers, if that number of calls is reached. The value must not outlive this.
  class Place {
   public:
    Place(Watchers* watchers, std::string peer) : watchers_(watchers), peer_(std::move(peer)) {}
    Place(Place&& other) noexcept : watchers_(std::exchange(other.watchers_, nullptr)), peer_(std::move(other.peer_)) {}
    Place& operator=(Place&&) = delete;
    ~Place() {
      if (watchers_ != nullptr) watchers_->Leave(peer_);
    }

   private:
    Watchers* watchers_;
    std::string peer_;
  };
  std::variant<Place, service::Refusal> Enter(const std::string& peer);

 private:
  void Leave(const std::string& peer);

  const service::Bound most_;
  const service::Bound most_of_connection_;
  absl::Mutex mutex_;
  uint32_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, uint32_t> of_peer_ ABSL_GUARDED_BY(mutex_);  // none is 0
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
  absl::Time due() const override { return last_ + interval_; }

 private:
  const Watchers::Place place_;
  const absl::Duration interval_;
  const std::function<Response()> read_;
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace sortition::server
