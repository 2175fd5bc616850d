// Counters and histograms of the service's reports.
#include "monitoring/metrics.h"

#include <string>
#include <utility>

#include "kernels/check.h"
#include "monitoring/catalogue.h"
#include "service/net/frame_meter.h"
#include "service/wire/refused_fields.h"

namespace sortition::monitoring {
namespace {

using prometheus::Histogram;
using prometheus::Registry;

prometheus::Family<prometheus::Counter>& Counters(Registry& registry, const MetricName& metric) {
  return prometheus::BuildCounter().Name(metric.name).Help(metric.help).Register(registry);
}

prometheus::Family<prometheus::Gauge>& Gauges(Registry& registry, const MetricName& metric) {
  return prometheus::BuildGauge().Name(metric.name).Help(metric.help).Register(registry);
}

prometheus::Family<Histogram>& Histograms(Registry& registry, const MetricName& metric) {
  return prometheus::BuildHistogram().Name(metric.name).Help(metric.help).Register(registry);
}

prometheus::Counter& Counter(Registry& registry, const MetricName& metric) {
  return Counters(registry, metric).Add({});
}

// Families of one name are one, with the first help.
prometheus::Labels LabelsOf(const std::string& label, const std::string& value) {
  return label.empty() ? prometheus::Labels() : prometheus::Labels{{label, value}};
}

// Returns bounds that begin with `first`, each `factor` times the one before.
Histogram::BucketBoundaries Geometric(double first, double factor, int count) {
  Histogram::BucketBoundaries bounds;
  for (double bound = first; count > 0; --count, bound *= factor) bounds.push_back(bound);
  return bounds;
}

// 32 µs to 8.4 s.
const Histogram::BucketBoundaries kSecondsBounds = Geometric(32e-6, 2, 19);
// 1 to 4096 rows.
const Histogram::BucketBoundaries kRowsBounds = Geometric(1, 2, 13);

constexpr const char* kStreamEnds[] = {"by client", "drained", "abandoned"};

const char* TransportLabel(service::TransportType transport) {
  switch (transport) {
    case service::TransportType::kTcp:
      return "tcp";
    case service::TransportType::kUnix:
      return "unix";
    case service::TransportType::kRing:
      return "ring";
  }
  SORTITION_CHECK(!"a transport");
  return "";
}

uint64_t Whole(const prometheus::Counter& counter) { return static_cast<uint64_t>(counter.Value()); }

}  // namespace

PrometheusObserver::PrometheusObserver(const std::vector<devices::DeviceDescription>& devices)
    : registry_(std::make_shared<Registry>()),
      steps_(Counter(*registry_, kSteps)),
      rows_(Counter(*registry_, kRows)),
      payload_bytes_(Counter(*registry_, kPayloadBytes)),
      step_latency_(Histograms(*registry_, kStepLatency).Add({}, kSecondsBounds)),
      ready_wait_(Histograms(*registry_, kReadyWait).Add({}, kSecondsBounds)),
      queue_wait_(Histograms(*registry_, kQueueWait).Add({}, kSecondsBounds)),
      late_by_machine_(Histograms(*registry_, kControlLate).Add({{"cause", "machine"}}, kSecondsBounds)),
      late_by_threads_(Histograms(*registry_, kControlLate).Add({{"cause", "threads"}}, kSecondsBounds)),
      refused_fields_(Counters(*registry_, kRefusedFields)) {
#define COUNTER(id, name, label, value, help) \
  counters_.push_back(&Counters(*registry_, {name, help}).Add(LabelsOf(label, value)));
#define GAUGE(id, name, label, value, help) \
  gauges_.push_back(&Gauges(*registry_, {name, help}).Add(LabelsOf(label, value)));
#include "service/metrics.inc"
  auto& errors = Counters(*registry_, kErrors);
  for (const service::Reason reason : service::kAllReasons) {
    errors_[reason] = &errors.Add({{"reason", std::string(service::ReasonName(reason))}});
    refused_pairs_.try_emplace(reason, service::RefusedFields().size());
  }
  auto& phases = Counters(*registry_, kPhaseTokens);
  for (size_t i = 0; i < phase_tokens_.size(); ++i) {
    phase_tokens_[i] = &phases.Add({{"phase", std::to_string(i + 1)}});
  }
  auto& compact = Counters(*registry_, kCompactRows);
  compact_decided_ = &compact.Add({{"outcome", "decided"}});
  for (size_t i = 0; i < compact_required_.size(); ++i) {
    compact_required_[i] = &compact.Add({{"outcome", service::kRequiredNames[i]}});
  }
  auto& ended = Counters(*registry_, kConnectionsEnded);
  for (size_t i = 1; i < server::kFrameExcesses; ++i) {
    const std::string excess(server::FrameExcessName(static_cast<server::FrameExcess>(i)));
    connections_ended_[excess] = &ended.Add({{"excess", excess}});
  }
  AddDevices(devices);
  AddTransports();
}

void PrometheusObserver::AddDevices(const std::vector<devices::DeviceDescription>& devices) {
  auto& info = Gauges(*registry_, kDeviceInfo);
  auto& slots = Gauges(*registry_, kDeviceSlots);
  auto& given_batches = Gauges(*registry_, kDeviceBatches);
  auto& given_rows = Gauges(*registry_, kDeviceRows);
  auto& batches = Counters(*registry_, kBatches);
  auto& failures = Counters(*registry_, kDeviceFailures);
  auto& rows = Histograms(*registry_, kBatchRows);
  auto& kernel_seconds = Histograms(*registry_, kKernelTime);
  auto& rerun = Counters(*registry_, kRerunRows);
  auto& rechecked = Counters(*registry_, kRecheckedRows);
  auto& routed = Counters(*registry_, kRoutedBatches);
  for (const devices::DeviceDescription& device : devices) {
    const prometheus::Labels label = {{"device", device.name}};
    info.Add({{"device", device.name}, {"kind", device.kind}, {"hardware", device.hardware}}).Set(1);
    slots.Add(label).Set(device.batches_in_flight);
    DeviceMetrics metrics{batches.Add(label),
                          failures.Add(label),
                          given_batches.Add(label),
                          given_rows.Add(label),
                          rows.Add(label, kRowsBounds),
                          kernel_seconds.Add(label, kSecondsBounds),
                          rerun.Add(label),
                          rechecked.Add({{"device", device.name}, {"result", "right"}}),
                          rechecked.Add({{"device", device.name}, {"result", "wrong"}}),
                          {}};
    for (const service::RouteReason reason : service::kAllRouteReasons) {
      metrics.routed[reason] =
          &routed.Add({{"device", device.name}, {"reason", std::string(service::RouteReasonName(reason))}});
    }
    devices_.emplace(device.name, std::move(metrics));
  }
}

void PrometheusObserver::AddTransports() {
  auto& streams = Gauges(*registry_, kStreams);
  auto& opened = Counters(*registry_, kStreamsOpened);
  auto& ended = Counters(*registry_, kStreamsEnded);
  auto& received_messages = Counters(*registry_, kReceivedMessages);
  auto& received_bytes = Counters(*registry_, kReceivedBytes);
  auto& sent_messages = Counters(*registry_, kSentMessages);
  auto& sent_bytes = Counters(*registry_, kSentBytes);
  for (const service::TransportType transport : service::kAllTransports) {
    const prometheus::Labels label = {{"transport", TransportLabel(transport)}};
    TransportMetrics metrics{streams.Add(label),           opened.Add(label),         {},
                             received_messages.Add(label), received_bytes.Add(label), sent_messages.Add(label),
                             sent_bytes.Add(label)};
    for (const char* how : kStreamEnds) {
      metrics.ended[how] = &ended.Add({{"transport", TransportLabel(transport)}, {"how", how}});
    }
    transports_.emplace(transport, std::move(metrics));
  }
}

PrometheusObserver::DeviceMetrics& PrometheusObserver::Device(std::string_view name) {
  const auto it = devices_.find(name);
  SORTITION_CHECK(it != devices_.end());
  return it->second;
}

void PrometheusObserver::Count(service::Counter counter, uint64_t count) {
  counters_[static_cast<size_t>(counter)]->Increment(static_cast<double>(count));
}

void PrometheusObserver::Set(service::Gauge gauge, double value) { gauges_[static_cast<size_t>(gauge)]->Set(value); }

void PrometheusObserver::StepReceived(uint32_t rows, uint64_t payload_bytes) {
  steps_.Increment();
  rows_.Increment(rows);
  payload_bytes_.Increment(static_cast<double>(payload_bytes));
}

void PrometheusObserver::StepReady(absl::Duration waited) { ready_wait_.Observe(absl::ToDoubleSeconds(waited)); }

void PrometheusObserver::CompactRows(const service::CompactRowCounts& counts) {
  if (counts.decided > 0) compact_decided_->Increment(counts.decided);
  for (size_t i = 0; i < counts.required.size(); ++i) {
    if (counts.required[i] > 0) compact_required_[i]->Increment(counts.required[i]);
  }
}

void PrometheusObserver::StepAnswered(absl::Duration latency) { step_latency_.Observe(absl::ToDoubleSeconds(latency)); }

void PrometheusObserver::PhaseTokens(uint32_t phase, uint32_t count) {
  SORTITION_CHECK(phase >= 1 && phase <= phase_tokens_.size());
  phase_tokens_[phase - 1]->Increment(count);
}

void PrometheusObserver::Refused(service::Reason reason, std::string_view field, uint32_t count) {
  errors_.at(reason)->Increment(count);
  RefusedPair(reason, service::FindRefusedField(field)).Increment(count);
}

prometheus::Counter& PrometheusObserver::RefusedPair(service::Reason reason, size_t field) {
  std::atomic<prometheus::Counter*>& pair = refused_pairs_.at(reason)[field];
  prometheus::Counter* counter = pair.load(std::memory_order_acquire);
  if (counter == nullptr) {
    // Threads that come here together get the same counter.
    counter = &refused_fields_.Add(
        {{"reason", std::string(service::ReasonName(reason))}, {"field", service::RefusedFields()[field]}});
    pair.store(counter, std::memory_order_release);
  }
  return *counter;
}

void PrometheusObserver::BatchStarted(std::string_view device, uint32_t rows, service::RouteReason reason) {
  DeviceMetrics& metrics = Device(device);
  metrics.given_batches.Increment();
  metrics.given_rows.Increment(rows);
  metrics.routed.at(reason)->Increment();
}

void PrometheusObserver::BatchDone(std::string_view device, uint32_t rows, absl::Duration queue_wait,
                                   absl::Duration kernel_time) {
  DeviceMetrics& metrics = Device(device);
  metrics.given_batches.Decrement();
  metrics.given_rows.Decrement(rows);
  metrics.batches.Increment();
  metrics.rows.Observe(rows);
  metrics.kernel_seconds.Observe(absl::ToDoubleSeconds(kernel_time));
  queue_wait_.Observe(absl::ToDoubleSeconds(queue_wait));
}

void PrometheusObserver::BatchFailed(std::string_view device) { Device(device).failures.Increment(); }

void PrometheusObserver::RowsRerun(std::string_view device, uint32_t rows) {
  Device(device).rerun_rows.Increment(rows);
}

void PrometheusObserver::RowsRechecked(std::string_view device, uint32_t right, uint32_t wrong) {
  Device(device).right_rows.Increment(right);
  Device(device).wrong_rows.Increment(wrong);
}

void PrometheusObserver::StreamOpened(service::TransportType transport) {
  TransportMetrics& metrics = transports_.at(transport);
  metrics.streams.Increment();
  metrics.opened.Increment();
}

void PrometheusObserver::StreamEnded(service::TransportType transport, std::string_view how) {
  TransportMetrics& metrics = transports_.at(transport);
  const auto it = metrics.ended.find(how);
  SORTITION_CHECK(it != metrics.ended.end());
  metrics.streams.Decrement();
  it->second->Increment();
}

void PrometheusObserver::ConnectionsEnded(std::string_view excess, uint32_t count) {
  const auto it = connections_ended_.find(excess);
  SORTITION_CHECK(it != connections_ended_.end());
  it->second->Increment(count);
}

void PrometheusObserver::MessageReceived(service::TransportType transport, uint64_t bytes) {
  TransportMetrics& metrics = transports_.at(transport);
  metrics.received_messages.Increment();
  metrics.received_bytes.Increment(static_cast<double>(bytes));
}

void PrometheusObserver::MessageSent(service::TransportType transport, uint64_t bytes) {
  TransportMetrics& metrics = transports_.at(transport);
  metrics.sent_messages.Increment();
  metrics.sent_bytes.Increment(static_cast<double>(bytes));
}

void PrometheusObserver::ControlWoken(absl::Duration machine, absl::Duration threads) {
  late_by_machine_.Observe(absl::ToDoubleSeconds(machine));
  late_by_threads_.Observe(absl::ToDoubleSeconds(threads));
}

service::Observer::Totals PrometheusObserver::totals() const {
  Totals totals{.steps = Whole(steps_),
                .rows = Whole(rows_),
                .tokens = Whole(*counters_[static_cast<size_t>(service::Counter::kTokens)])};
  for (const prometheus::Counter* counter : compact_required_) totals.rows_required += Whole(*counter);
  totals.compact_rows = Whole(*compact_decided_) + totals.rows_required;
  for (const auto& [reason, counter] : errors_) {
    totals.errors += Whole(*counter);
    if (service::IsFailure(reason)) totals.failures += Whole(*counter);
  }
  for (const auto& [name, device] : devices_) totals.batches += Whole(device.batches);
  return totals;
}

}  // namespace sortition::monitoring
