// Collects the service's reports as Prometheus metrics.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "devices/device.h"
#include "service/limits.h"
#include "service/observer.h"

namespace sortition::monitoring {

// Every label value exists from the start, at 0, except pairs of reason and field. Thread-safe. A call costs a few
// atomic additions, and a briefly held lock if it feeds a histogram.
class PrometheusObserver final : public service::Observer {
 public:
  // `devices`: all devices that will report.
  explicit PrometheusObserver(const std::vector<devices::DeviceDescription>& devices);

  std::shared_ptr<prometheus::Registry> registry() const { return registry_; }

  void Count(service::Counter counter, uint64_t count) override;
  void Set(service::Gauge gauge, double value) override;
  void StepReceived(uint32_t rows, uint64_t payload_bytes) override;
  void StepReady(absl::Duration waited) override;
  void CompactRows(const service::CompactRowCounts& counts) override;
  void StepAnswered(absl::Duration latency) override;
  void PhaseTokens(uint32_t phase, uint32_t count) override;
  void Refused(service::Reason reason, std::string_view field, uint32_t count) override;
  void BatchStarted(std::string_view device, uint32_t rows, service::RouteReason reason) override;
  void BatchDone(std::string_view device, uint32_t rows, absl::Duration queue_wait,
                 absl::Duration kernel_time) override;
  void BatchFailed(std::string_view device) override;
  void RowsRerun(std::string_view device, uint32_t rows) override;
  void RowsRechecked(std::string_view device, uint32_t right, uint32_t wrong) override;
  void StreamOpened(service::TransportType transport) override;
  void StreamEnded(service::TransportType transport, std::string_view how) override;
  void ConnectionsEnded(std::string_view excess, uint32_t count) override;
  void MessageReceived(service::TransportType transport, uint64_t bytes) override;
  void MessageSent(service::TransportType transport, uint64_t bytes) override;
  void ControlWoken(absl::Duration machine, absl::Duration threads) override;
  Totals totals() const override;

 private:
  struct DeviceMetrics {
    prometheus::Counter& batches;
    prometheus::Counter& failures;
    prometheus::Gauge& given_batches;
    prometheus::Gauge& given_rows;
    prometheus::Histogram& rows;
    prometheus::Histogram& kernel_seconds;
    prometheus::Counter& rerun_rows;
    prometheus::Counter& right_rows;
    prometheus::Counter& wrong_rows;
    std::map<service::RouteReason, prometheus::Counter*> routed;
  };
  struct TransportMetrics {
    prometheus::Gauge& streams;
    prometheus::Counter& opened;
    std::map<std::string, prometheus::Counter*, std::less<>> ended;
    prometheus::Counter& received_messages;
    prometheus::Counter& received_bytes;
    prometheus::Counter& sent_messages;
    prometheus::Counter& sent_bytes;
  };

  void AddDevices(const std::vector<devices::DeviceDescription>& devices);
  void AddTransports();
  // Returns the counter of a pair of reason and field, and makes it if there is none.
  prometheus::Counter& RefusedPair(service::Reason reason, size_t field);
  // Returns the metrics of a device, which is one of the constructor's.
  DeviceMetrics& Device(std::string_view name);

  const std::shared_ptr<prometheus::Registry> registry_;
  std::vector<prometheus::Counter*> counters_;  // by service::Counter
  std::vector<prometheus::Gauge*> gauges_;      // by service::Gauge
  prometheus::Counter& steps_;
  prometheus::Counter& rows_;
  prometheus::Counter& payload_bytes_;
  prometheus::Histogram& step_latency_;
  prometheus::Histogram& ready_wait_;
  prometheus::Histogram& queue_wait_;
  prometheus::Histogram& late_by_machine_;
  prometheus::Histogram& late_by_threads_;
  prometheus::Counter* compact_decided_ = nullptr;
  std::array<prometheus::Counter*, std::tuple_size_v<decltype(service::CompactRowCounts::required)>> compact_required_ =
      {};
  std::map<service::Reason, prometheus::Counter*> errors_;
  prometheus::Family<prometheus::Counter>& refused_fields_;
  // By reason, then as RefusedFields; null until a pair is refused.
  std::map<service::Reason, std::vector<std::atomic<prometheus::Counter*>>> refused_pairs_;
  std::array<prometheus::Counter*, service::kMaxPhases> phase_tokens_ = {};
  std::map<std::string, prometheus::Counter*, std::less<>> connections_ended_;
  std::map<std::string, DeviceMetrics, std::less<>> devices_;
  std::map<service::TransportType, TransportMetrics> transports_;
};

}  // namespace sortition::monitoring
