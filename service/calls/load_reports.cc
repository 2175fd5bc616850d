// Samples of the load, and their reports.
#include "service/calls/load_reports.h"

#include <sys/resource.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "kernels/check.h"
#include "service/calls/status_details.h"
#include "service/net/credentials.h"
#include "service/net/http2_guard.h"
#include "service/wire/strictness.h"

namespace sortition::server {

using service::Reason;
using service::Refusal;

namespace {

constexpr char kTrailer[] = "endpoint-load-metrics-bin";

absl::Duration ProcessorTime() {
  rusage usage;
  SORTITION_CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
  return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
}

double ShareOf(double part, double whole) { return whole > 0 ? std::clamp(part / whole, 0.0, 1.0) : 0; }

}  // namespace

void LoadWindow::Add(LoadSample sample) {
  samples_[next_] = std::move(sample);
  next_ = (next_ + 1) % kSamples;
  count_ = std::min(count_ + 1, kSamples);
}

Load LoadWindow::Read() const {
  if (count_ < 2) return {};
  const LoadSample& first = samples_[(next_ + kSamples - count_) % kSamples];
  const LoadSample& last = samples_[(next_ + kSamples - 1) % kSamples];
  const double seconds = absl::ToDoubleSeconds(last.at - first.at);
  Load load;
  load.processors = ShareOf(absl::ToDoubleSeconds(last.processor_time - first.processor_time), processors_ * seconds);
  for (size_t i = 0; i < last.device_times.size(); ++i) {
    const double busy = absl::ToDoubleSeconds(last.device_times[i] - first.device_times[i]);
    load.device = std::max(load.device, ShareOf(busy, seconds));
  }
  // Rows wait for milliseconds, so one sample says little.
  for (size_t i = 0; i < count_; ++i) load.queue_share += samples_[i].queue_share / double(count_);
  const double rows = double(last.rows - first.rows);
  load.rows_per_second = rows / seconds;
  load.failed_share = ShareOf(double(last.failures - first.failures), rows);
  return load;
}

LoadReports::LoadReports(const Config& config, const Authorization* authorization, service::Engine* engine,
                         std::function<uint32_t()> streams)
    : authorization_(*authorization),
      engine_(*engine),
      streams_(std::move(streams)),
      window_(std::max(1u, std::thread::hardware_concurrency())),
      watchers_(config.limits),
      watch_([this](auto... call) { service_.RequestStreamCoreMetrics(call...); },
             [this](const grpc::ServerContext& call, const Request& request) { return Begin(call, request); }) {}

void LoadReports::Start(CallQueue* queue) {
  TakeSample(engine_.clock().Now());
  watch_.Start(queue);
}

void LoadReports::TakeSample(absl::Time now) {
  sampled_ = now;
  const service::Observer::Totals totals = engine_.observer().totals();
  window_.Add({.at = now,
               .processor_time = ProcessorTime(),
               .device_times = engine_.batcher().keeper().BusyTimes(now),
               .rows = totals.rows,
               .failures = totals.failures,
               .queue_share = engine_.batcher().queue_share()});
  Report report = MakeReport(window_.Read());
  absl::MutexLock lock(&mutex_);
  report_ = std::move(report);
  encoded_ = report_.SerializeAsString();
}

LoadReports::Report LoadReports::MakeReport(const Load& load) const {
  Report report;
  report.set_cpu_utilization(load.processors);
  const double utilization = std::max(load.processors, load.device) + load.queue_share;
  report.set_application_utilization(std::max(utilization, kLeastUtilization));
  report.set_rps_fractional(kRequests);
  report.set_eps(kRequests * load.failed_share);
  auto& shares = *report.mutable_utilization();
  shares["sortition.device"] = load.device;
  shares["sortition.queue"] = std::min(load.queue_share, 1.0);
  auto& named = *report.mutable_named_metrics();
  named["sortition.rows_per_second"] = load.rows_per_second;
  named["sortition.streams"] = streams_();
  return report;
}

void LoadReports::Tick(absl::Time now) {
  if (now - sampled_ >= kPeriod) TakeSample(now);
  watch_.Tick(now);
}

void LoadReports::AddTo(grpc::ServerContextBase* call) const {
  absl::MutexLock lock(&mutex_);
  call->AddTrailingMetadata(kTrailer, encoded_);
}

std::variant<grpc::Status, std::unique_ptr<Watch<LoadReports::Report>>> LoadReports::Begin(
    const grpc::ServerContext& call, const Request& request) {
  const auto refuse = [this](const Refusal& refusal) {
    engine_.observer().Refused(refusal.reason, refusal.field, 1);
    return RefusedStatus(refusal);
  };
  const auto authorized = authorization_.Authorize(EvidenceOf(call), kAnyRole);
  if (const auto* refusal = std::get_if<Refusal>(&authorized)) return refuse(*refusal);
  Http2Guard::Instance().AddAnswer(call.peer());
  if (const auto refusal = service::FindUnknown(request, "")) return refuse(*refusal);
  const auto interval =
      ParseInterval(request.has_report_interval() ? &request.report_interval() : nullptr, "report_interval");
  if (const auto* refusal = std::get_if<Refusal>(&interval)) return refuse(*refusal);
  if (request.request_cost_names_size() != 0) {
    return refuse({Reason::kNotImplemented, "request_cost_names", "none", "this server measures no costs of requests"});
  }
  auto place = watchers_.Enter(call.peer());
  if (const auto* refusal = std::get_if<Refusal>(&place)) return refuse(*refusal);
  return std::make_unique<IntervalWatch<Report>>(std::get<Watchers::Place>(std::move(place)),
                                                 std::get<absl::Duration>(interval), [this] {
                                                   absl::MutexLock lock(&mutex_);
                                                   return report_;
                                                 });
}

}  // namespace sortition::server
