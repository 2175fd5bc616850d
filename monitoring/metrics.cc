// Definitions of the metrics.
#include "monitoring/metrics.h"

#include <grpcpp/version_info.h>

#include <utility>

#include "kernels/check.h"
#include "kernels/law/version.h"
#include "service/version.h"

namespace sortition::monitoring {
namespace {

using prometheus::Histogram;
using prometheus::Registry;

prometheus::Family<prometheus::Counter>& Counters(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

prometheus::Family<Histogram>& Histograms(Registry& registry, const char* name, const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

prometheus::Counter& Counter(Registry& registry, const char* name, const char* help) {
  return Counters(registry, name, help).Add({});
}

// From `first` on, each bound `factor` times the one before.
Histogram::BucketBoundaries Geometric(double first, double factor, int count) {
  Histogram::BucketBoundaries bounds;
  for (double bound = first; count > 0; --count, bound *= factor) bounds.push_back(bound);
  return bounds;
}

// 32 µs to 8.4 s.
const Histogram::BucketBoundaries kSeconds = Geometric(32e-6, 2, 19);
// 1 to 4096 rows.
const Histogram::BucketBoundaries kRows = Geometric(1, 2, 13);

constexpr const char* kEvictionCauses[] = {"count", "bytes", "idle"};

prometheus::MetricFamily Gauge(const char* name, const char* help, double value,
                               std::vector<prometheus::ClientMetric::Label> labels = {}) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = value;
  return {name, help, prometheus::MetricType::Gauge, {std::move(metric)}};
}

// 1 for the state that the device is in.
prometheus::MetricFamily DeviceStates(const std::vector<service::DeviceStatus>& statuses) {
  prometheus::MetricFamily family{"sortition_device_state",
                                  "1 for the state that a device is in, 0 for the others.",
                                  prometheus::MetricType::Gauge,
                                  {}};
  for (const service::DeviceStatus& status : statuses) {
    for (const service::DeviceState state : service::kAllDeviceStates) {
      prometheus::ClientMetric metric;
      metric.label = {{"device", status.device->description().name},
                      {"state", std::string(service::DeviceStateName(state))}};
      metric.gauge.value = status.state == state ? 1 : 0;
      family.metric.push_back(std::move(metric));
    }
  }
  return family;
}

uint64_t Whole(const prometheus::Counter& counter) { return static_cast<uint64_t>(counter.Value()); }

}  // namespace

PrometheusObserver::PrometheusObserver(const std::vector<std::string>& devices)
    : registry_(std::make_shared<Registry>()),
      steps_(Counter(*registry_, "sortition_steps_total", "Step messages received.")),
      rows_(Counter(*registry_, "sortition_rows_total", "Rows of the steps received.")),
      tokens_(Counter(*registry_, "sortition_tokens_total", "Rows answered with a token.")),
      payload_bytes_(Counter(*registry_, "sortition_payload_bytes_total", "Bulk bytes received: logits and masks.")),
      replays_(
          Counter(*registry_, "sortition_replays_total", "Histories sent again because the server did not have them.")),
      replayed_tokens_(Counter(*registry_, "sortition_replayed_tokens_total", "Tokens of the histories sent again.")),
      step_latency_(Histograms(*registry_, "sortition_step_latency_seconds",
                               "Time from a step's arrival to the answer of its last row.")
                        .Add({}, kSeconds)),
      queue_wait_(Histograms(*registry_, "sortition_queue_wait_seconds",
                             "Time that a batch's oldest row had waited for a device.")
                      .Add({}, kSeconds)) {
  auto& errors =
      Counters(*registry_, "sortition_errors_total", "Rows, sequences, messages and calls refused, by reason.");
  for (const service::Reason reason : service::kAllReasons) {
    errors_[reason] = &errors.Add({{"reason", std::string(service::ReasonName(reason))}});
  }
  auto& evictions = Counters(*registry_, "sortition_evictions_total",
                             "Idle sequences forgotten, by the bound they were forgotten for.");
  for (const char* cause : kEvictionCauses) evictions_[cause] = &evictions.Add({{"cause", cause}});

  auto& batches = Counters(*registry_, "sortition_batches_total", "Batches that a device has finished.");
  auto& batch_rows = Histograms(*registry_, "sortition_batch_rows", "Rows of the batches that a device has finished.");
  auto& kernel_seconds = Histograms(*registry_, "sortition_kernel_seconds", "Time that a device spent on a batch.");
  auto& routed =
      Counters(*registry_, "sortition_routed_batches_total", "Batches given to a device, by why to that one.");
  auto& rerun = Counters(*registry_, "sortition_rerun_rows_total",
                         "Rows of batches that failed on the device and went to another.");
  auto& rechecked = Counters(*registry_, "sortition_rechecked_rows_total",
                             "Live rows whose answer was compared with the reference, by how that went.");
  for (const std::string& device : devices) {
    const prometheus::Labels label = {{"device", device}};
    DeviceMetrics metrics{batches.Add(label),
                          batch_rows.Add(label, kRows),
                          kernel_seconds.Add(label, kSeconds),
                          {},
                          rerun.Add(label),
                          rechecked.Add({{"device", device}, {"result", "right"}}),
                          rechecked.Add({{"device", device}, {"result", "wrong"}})};
    for (const service::RouteReason reason : service::kAllRouteReasons) {
      metrics.routed[reason] =
          &routed.Add({{"device", device}, {"reason", std::string(service::RouteReasonName(reason))}});
    }
    devices_.emplace(device, std::move(metrics));
  }
}

void PrometheusObserver::StepReceived(uint32_t rows, uint64_t payload_bytes) {
  steps_.Increment();
  rows_.Increment(rows);
  payload_bytes_.Increment(static_cast<double>(payload_bytes));
}

void PrometheusObserver::StepAnswered(absl::Duration latency) { step_latency_.Observe(absl::ToDoubleSeconds(latency)); }

void PrometheusObserver::TokensDrawn(uint32_t count) { tokens_.Increment(count); }

void PrometheusObserver::Refused(service::Reason reason, uint32_t count) { errors_.at(reason)->Increment(count); }

PrometheusObserver::DeviceMetrics& PrometheusObserver::OfDevice(std::string_view device) {
  const auto it = devices_.find(device);
  SORTITION_CHECK(it != devices_.end());
  return it->second;
}

void PrometheusObserver::BatchDone(std::string_view device, uint32_t rows, absl::Duration queue_wait,
                                   absl::Duration kernel_time) {
  DeviceMetrics& metrics = OfDevice(device);
  metrics.batches.Increment();
  metrics.rows.Observe(rows);
  metrics.kernel_seconds.Observe(absl::ToDoubleSeconds(kernel_time));
  queue_wait_.Observe(absl::ToDoubleSeconds(queue_wait));
}

void PrometheusObserver::BatchRouted(std::string_view device, service::RouteReason reason) {
  OfDevice(device).routed.at(reason)->Increment();
}

void PrometheusObserver::RowsRerun(std::string_view device, uint32_t rows) {
  OfDevice(device).rerun_rows.Increment(rows);
}

void PrometheusObserver::RowsRechecked(std::string_view device, uint32_t right, uint32_t wrong) {
  OfDevice(device).right_rows.Increment(right);
  OfDevice(device).wrong_rows.Increment(wrong);
}

void PrometheusObserver::SequencesEvicted(std::string_view cause, uint32_t count) {
  const auto it = evictions_.find(cause);
  SORTITION_CHECK(it != evictions_.end());
  it->second->Increment(count);
}

void PrometheusObserver::HistoryReplayed(uint32_t tokens) {
  replays_.Increment();
  replayed_tokens_.Increment(tokens);
}

service::Observer::Totals PrometheusObserver::totals() const {
  Totals totals{.steps = Whole(steps_), .rows = Whole(rows_), .tokens = Whole(tokens_)};
  for (const auto& [reason, counter] : errors_) totals.errors += Whole(*counter);
  for (const auto& [name, device] : devices_) totals.batches += Whole(device.batches);
  return totals;
}

LiveMetrics::LiveMetrics(service::Engine* engine, std::function<uint32_t()> streams)
    : engine_(*engine), streams_(std::move(streams)) {}

std::vector<prometheus::MetricFamily> LiveMetrics::Collect() const {
  return {
      Gauge("sortition_live_sequences", "Sequences whose state is held.", engine_.sequences().live_sequences()),
      Gauge("sortition_state_bytes", "Memory of sequence state.",
            static_cast<double>(engine_.sequences().state_bytes())),
      Gauge("sortition_queued_rows", "Rows that wait for a device.", engine_.batcher().queued_rows()),
      DeviceStates(engine_.batcher().device_statuses()),
      Gauge("sortition_streams", "Sampling streams that are open.", streams_()),
      Gauge("sortition_build_info", "Always 1; the labels are the versions of this build.", 1,
            {{"version", std::string(service::Version())},
             {"law_version", std::to_string(law::kLawVersion)},
             {"grpc_version", GRPC_CPP_VERSION_STRING}}),
  };
}

}  // namespace sortition::monitoring
