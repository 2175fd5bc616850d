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

std::variant<Watchers::Place, service::Refusal> Watchers::Enter() {
  if (count_.fetch_add(1) < most_.value) return Place(&count_);
  count_.fetch_sub(1);
  return service::Refusal{service::Reason::kOverloaded, "watcher", most_.Text(), "too many calls of this method watch",
                          absl::Seconds(1)};
}

}  // namespace sortition::server
