// Every metric of the service: names, units and labels in one place. Base units, bounded labels, never a request id.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "service/engine.h"
#include "service/observer.h"

namespace sortition::monitoring {

// What the service reports, as Prometheus metrics. Every label value exists from the start, at 0. Thread-safe; a call
// costs a few atomic additions and, where it feeds a histogram, a lock that is never held for long.
class PrometheusObserver final : public service::Observer {
 public:
  // `devices`: names of all devices that will report.
  explicit PrometheusObserver(const std::vector<std::string>& devices);

  std::shared_ptr<prometheus::Registry> registry() const { return registry_; }

  void StepReceived(uint32_t rows, uint64_t payload_bytes) override;
  void StepAnswered(absl::Duration latency) override;
  void TokensDrawn(uint32_t count) override;
  void Refused(service::Reason reason, uint32_t count) override;
  void BatchDone(std::string_view device, uint32_t rows, absl::Duration queue_wait,
                 absl::Duration kernel_time) override;
  void BatchRouted(std::string_view device, service::RouteReason reason) override;
  void RowsRerun(std::string_view device, uint32_t rows) override;
  void RowsRechecked(std::string_view device, uint32_t right, uint32_t wrong) override;
  void SequencesEvicted(std::string_view cause, uint32_t count) override;
  void HistoryReplayed(uint32_t tokens) override;
  Totals totals() const override;

 private:
  struct DeviceMetrics {
    prometheus::Counter& batches;
    prometheus::Histogram& rows;
    prometheus::Histogram& kernel_seconds;
    std::map<service::RouteReason, prometheus::Counter*> routed;
    prometheus::Counter& rerun_rows;
    prometheus::Counter& right_rows;
    prometheus::Counter& wrong_rows;
  };

  // Of a device that reports; another is a broken invariant.
  DeviceMetrics& OfDevice(std::string_view device);

  const std::shared_ptr<prometheus::Registry> registry_;
  prometheus::Counter& steps_;
  prometheus::Counter& rows_;
  prometheus::Counter& tokens_;
  prometheus::Counter& payload_bytes_;
  prometheus::Counter& replays_;
  prometheus::Counter& replayed_tokens_;
  prometheus::Histogram& step_latency_;
  prometheus::Histogram& queue_wait_;
  std::map<service::Reason, prometheus::Counter*> errors_;
  std::map<std::string, prometheus::Counter*, std::less<>> evictions_;
  std::map<std::string, DeviceMetrics, std::less<>> devices_;
};

// What is true at the moment of a scrape, and the build's versions. Thread-safe.
class LiveMetrics final : public prometheus::Collectable {
 public:
  // `engine` is not owned and outlives this, as does what `streams` refers to.
  LiveMetrics(service::Engine* engine, std::function<uint32_t()> streams);
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  service::Engine& engine_;
  const std::function<uint32_t()> streams_;
};

}  // namespace sortition::monitoring
