// A server's page of metrics, as text over plain HTTP.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sortition::bench {

// Returns the page at http://HOST:PORT/metrics. `address` is HOST:PORT, or [IPV6]:PORT. Blocks, each read and write for
// at most `timeout`. The error is INVALID_ARGUMENT for another form of address, otherwise UNAVAILABLE.
absl::StatusOr<std::string> ReadMetricsPage(const std::string& address, absl::Duration timeout);

// Returns the sum of a metric's values over its labels. NOT_FOUND if the page does not have it.
absl::StatusOr<double> FindMetric(absl::string_view page, absl::string_view name);

// Returns a metric's values by the value of their one label, `label`. Empty if the page does not have it.
std::map<std::string, double> MetricsBy(absl::string_view page, absl::string_view name, absl::string_view label);

}  // namespace sortition::bench
