// Range and number of calls that watch.
#include "service/calls/interval_watch.h"

#include "absl/strings/str_cat.h"

namespace sortition::server {
namespace {

constexpr absl::Duration kShortest = absl::Milliseconds(100);
constexpr absl::Duration kLongest = absl::Seconds(60);
constexpr absl::Duration kDefault = absl::Seconds(1);

}  // namespace

std::variant<absl::Duration, service::Refusal> ParseInterval(const google::protobuf::Duration* interval,
                                                             const char* field) {
  if (interval == nullptr) return kDefault;
  const absl::Duration value = absl::Seconds(interval->seconds()) + absl::Nanoseconds(interval->nanos());
  if (value >= kShortest && value <= kLongest) return value;
  return service::Refusal{service::Reason::kOutOfRange, field,
                          absl::StrCat(absl::FormatDuration(kShortest), "..", absl::FormatDuration(kLongest)),
                          absl::StrCat(absl::FormatDuration(value), " is out of range")};
}

std::variant<Watchers::Place, service::Refusal> Watchers::Enter(const std::string& peer) {
  absl::MutexLock lock(&mutex_);
  const auto found = of_peer_.find(peer);
  const bool is_full = count_ >= most_.value;
  if (is_full || (found != of_peer_.end() && found->second >= most_of_connection_.value)) {
    return service::Refusal{service::Reason::kOverloaded, "watcher", (is_full ? most_ : most_of_connection_).Text(),
                            "too many calls of this method watch", absl::Seconds(1)};
  }
  ++count_;
  ++of_peer_[peer];
  return Place(this, peer);
}

void Watchers::Leave(const std::string& peer) {
  absl::MutexLock lock(&mutex_);
  --count_;
  const auto found = of_peer_.find(peer);
  if (--found->second == 0) of_peer_.erase(found);
}

}  // namespace sortition::server
