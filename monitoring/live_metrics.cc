// Reading of the engine and of /proc/self.
#include "monitoring/live_metrics.h"

#include <grpcpp/version_info.h>
#include <prometheus/metric_family.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/check.h"
#include "kernels/law/version.h"
#include "monitoring/catalogue.h"
#include "service/net/credentials.h"
#include "service/version.h"

namespace sortition::monitoring {
namespace {

using Labels = std::vector<prometheus::ClientMetric::Label>;

prometheus::ClientMetric Reading(double value, Labels labels = {}) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = value;
  return metric;
}

prometheus::MetricFamily Gauge(const MetricName& metric, double value, Labels labels = {}) {
  return {metric.name, metric.help, prometheus::MetricType::Gauge, {Reading(value, std::move(labels))}};
}

prometheus::MetricFamily LimitGauges(const service::Limits& limits) {
  prometheus::MetricFamily family{kLimit.name, kLimit.help, prometheus::MetricType::Gauge, {}};
  for (const service::LimitDescription& limit : service::DescribeLimits(limits)) {
    family.metric.push_back(Reading(static_cast<double>(limit.value),
                                    {{"name", std::string(limit.name)}, {"unit", std::string(limit.unit)}}));
  }
  return family;
}

prometheus::MetricFamily DeviceStates(const std::vector<service::DeviceStatus>& statuses,
                                      const std::vector<service::MissingDevice>& missing_devices) {
  prometheus::MetricFamily family{kDeviceState.name, kDeviceState.help, prometheus::MetricType::Gauge, {}};
  const auto add = [&](const std::string& device, std::string_view in) {
    const auto add_state = [&](std::string_view state) {
      family.metric.push_back(Reading(state == in ? 1 : 0, {{"device", device}, {"state", std::string(state)}}));
    };
    for (const service::DeviceState state : service::kAllDeviceStates) add_state(service::DeviceStateName(state));
    add_state(service::kMissingState);
  };
  for (const service::DeviceStatus& status : statuses) {
    add(status.device->description().name, service::DeviceStateName(status.state));
  }
  for (const service::MissingDevice& device : missing_devices) add(device.name, service::kMissingState);
  return family;
}

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

prometheus::MetricFamily ProcessCpu() {
  rusage usage;
  SORTITION_CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  prometheus::ClientMetric metric;
  metric.counter.value = Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
  return {kProcessCpu.name, kProcessCpu.help, prometheus::MetricType::Counter, {metric}};
}

// Returns 0 if /proc does not have the value.
double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  double total_pages = 0;
  double resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double OpenDescriptors() {
  std::error_code error;
  double count = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end; it.increment(error)) {
    ++count;
  }
  return count;
}

double MaxDescriptors() {
  rlimit limit;
  SORTITION_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  return static_cast<double>(limit.rlim_cur);
}

// Empty without TLS, and while the file cannot be read.
prometheus::MetricFamily CertificateEnds(const std::string& certificate) {
  prometheus::MetricFamily family{kCertificateEnd.name, kCertificateEnd.help, prometheus::MetricType::Gauge, {}};
  if (certificate.empty()) return family;
  if (const auto end = server::CertificateEnd(certificate)) {
    family.metric.push_back(Reading(absl::ToDoubleSeconds(*end - absl::UnixEpoch())));
  }
  return family;
}

}  // namespace

LiveMetrics::LiveMetrics(service::Engine* engine, std::function<bool()> draining, std::string certificate)
    : engine_(*engine),
      draining_(std::move(draining)),
      certificate_(std::move(certificate)),
      started_(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch())) {}

std::vector<prometheus::MetricFamily> LiveMetrics::Collect() const {
  const service::MemoryUse memory = engine_.regions().use();
  return {
      Gauge(kQueuedRows, engine_.batcher().queued_rows()),
      Gauge(kQueueSeconds, engine_.batcher().queue_seconds()),
      Gauge(kLiveSequences, engine_.sequences().live_sequences()),
      Gauge(kStateBytes, static_cast<double>(engine_.sequences().state_bytes())),
      Gauge(kMemoryConnections, memory.connections),
      Gauge(kMemoryRegions, memory.regions),
      Gauge(kMemoryBytes, static_cast<double>(memory.bytes)),
      LimitGauges(engine_.limits()),
      DeviceStates(engine_.batcher().keeper().statuses(), engine_.missing_devices()),
      CertificateEnds(certificate_),
      Gauge(kDraining, draining_() ? 1 : 0),
      Gauge(kBuildInfo, 1,
            {{"version", std::string(service::Version())},
             {"law_version", std::to_string(law::kLawVersion)},
             {"grpc_version", GRPC_CPP_VERSION_STRING}}),
      ProcessCpu(),
      Gauge(kProcessMemory, ResidentBytes()),
      Gauge(kProcessDescriptors, OpenDescriptors()),
      Gauge(kProcessMaxDescriptors, MaxDescriptors()),
      Gauge(kProcessStart, started_),
  };
}

}  // namespace sortition::monitoring
