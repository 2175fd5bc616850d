// Load reports by ORCA (Open Request Cost Aggregation), for balancers that weigh replicas by their load: in the
// trailers of sampling calls, and out of band as xds.service.orca.v3.OpenRcaService.
//
// A balancer's weight of a replica is rps_fractional / (application_utilization + eps / rps_fractional). It places
// streams, which last. With a rate in place of rps_fractional, a fuller replica with many small streams would get more
// streams. So rps_fractional is always kRequests, eps is the number of failed rows among kRequests rows, and the weight
// falls with the utilization alone. Rates are among the named metrics.
//
// application_utilization is the share of the busier of processors and devices, plus the queue's share of the bounds by
// which steps are refused (service/batch/admission.h). So it is at most 1 while nothing waits, and about 2 when steps
// are refused. The reported value is at least kLeastUtilization, so idle replicas weigh the same.
#pragma once

#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "service/calls/call_queue.h"
#include "service/calls/interval_watch.h"
#include "service/engine.h"
#include "service/net/authorization.h"
#include "service/process/config.h"
#include "xds/service/orca/v3/orca.grpc.pb.h"

namespace sortition::server {

// Readings of a server at one time. All but `queue_share` are totals since the start.
struct LoadSample {
  absl::Time at;
  absl::Duration processor_time;             // of all processors
  std::vector<absl::Duration> device_times;  // of each device with a batch
  uint64_t rows = 0;                         // received
  uint64_t failures = 0;                     // rows and calls that the server has failed
  double queue_share = 0;                    // QueueShare
};

// Load over the last samples.
struct Load {
  double processors = 0;  // busy share of the processors
  double device = 0;      // busy share of the busiest device
  double queue_share = 0;
  double rows_per_second = 0;
  double failed_share = 0;  // share of the rows, 0 to 1
};

// The last samples. Not thread-safe.
class LoadWindow {
 public:
  static constexpr size_t kSamples = 11;

  // `processors`: at least 1.
  explicit LoadWindow(uint32_t processors) : processors_(processors) {}

  // Takes a sample, later than the one before it.
  void Add(LoadSample sample);
  // Returns the load between the oldest sample and the newest. All 0 with fewer than two.
  Load Read() const;

 private:
  const uint32_t processors_;
  std::array<LoadSample, kSamples> samples_;
  size_t next_ = 0;
  size_t count_ = 0;
};

// Thread-safe; never blocks for long.
class LoadReports {
 public:
  // A window has kSamples of them: rates are over a second.
  static constexpr absl::Duration kPeriod = absl::Milliseconds(100);
  static constexpr double kRequests = 100;
  static constexpr double kLeastUtilization = 0.05;
  using Report = xds::data::orca::v3::OrcaLoadReport;

  // `authorization` and `engine` are not owned and outlive this; `streams` returns the number of open streams.
  LoadReports(const Config& config, const Authorization* authorization, service::Engine* engine,
              std::function<uint32_t()> streams);

  void Register(grpc::ServerBuilder* builder) { builder->RegisterService(&service_); }
  // Takes the first sample. Called when the server has been started.
  void Start(CallQueue* queue);
  // Takes a sample if one is due, and sends reports to the calls whose interval has passed. Called by one thread.
  void Tick(absl::Time now);

  // Adds the newest report to the trailers of a call that has not ended. For callers that are authorised.
  void AddTo(grpc::ServerContextBase* call) const;

 private:
  using Request = xds::service::orca::v3::OrcaLoadReportRequest;

  void TakeSample(absl::Time now);
  Report MakeReport(const Load& load) const;
  std::variant<grpc::Status, std::unique_ptr<Watch<Report>>> Begin(const grpc::ServerContext& call,
                                                                   const Request& request);

  const Authorization& authorization_;
  service::Engine& engine_;
  const std::function<uint32_t()> streams_;
  LoadWindow window_;                          // used by the thread that calls Tick
  absl::Time sampled_ = absl::InfinitePast();  // likewise
  mutable absl::Mutex mutex_;
  Report report_ ABSL_GUARDED_BY(mutex_);        // the newest
  std::string encoded_ ABSL_GUARDED_BY(mutex_);  // report_ as bytes
  Watchers watchers_;
  xds::service::orca::v3::OpenRcaService::AsyncService service_;
  WatchMethod<Request, Report> watch_;
};

}  // namespace sortition::server
