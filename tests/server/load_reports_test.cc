// Load reports: their numbers, in trailers, and out of band.
#include "service/calls/load_reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "tests/server/client_list_file.h"
#include "tests/server/http2_client.h"
#include "tests/server/raw_http2.h"
#include "tests/server/status_details_decoder.h"
#include "tests/server/test_server.h"
#include "tests/server/test_stream.h"

namespace sortition::server::load_reports_test {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using Report = xds::data::orca::v3::OrcaLoadReport;
using Request = xds::service::orca::v3::OrcaLoadReportRequest;
using Stub = xds::service::orca::v3::OpenRcaService::Stub;

constexpr char kTrailer[] = "endpoint-load-metrics-bin";

LoadSample SampleAt(int tenths, int busy_tenths) {
  return {.at = absl::UnixEpoch() + tenths * absl::Milliseconds(100),
          .processor_time = busy_tenths * absl::Milliseconds(100),
          .device_times = {absl::ZeroDuration(), busy_tenths * absl::Milliseconds(50)},
          .rows = uint64_t(busy_tenths) * 10,
          .failures = uint64_t(busy_tenths) * 2,
          .queue_share = 0.25};
}

TEST(LoadWindowTest, SharesAndRatesBetweenFirstAndLast) {
  LoadWindow window(4);
  EXPECT_EQ(window.Read().processors, 0);
  window.Add(SampleAt(0, 0));
  EXPECT_EQ(window.Read().rows_per_second, 0) << "one sample tells no rate";
  window.Add(SampleAt(2, 1));
  window.Add(SampleAt(5, 5));
  const Load load = window.Read();
  EXPECT_DOUBLE_EQ(load.processors, 0.25) << "half a second of four processors' two";
  EXPECT_DOUBLE_EQ(load.device, 0.5) << "of the busier one";
  EXPECT_DOUBLE_EQ(load.queue_share, 0.25);
  EXPECT_DOUBLE_EQ(load.rows_per_second, 100);
  EXPECT_DOUBLE_EQ(load.failed_share, 0.2);
}

TEST(LoadWindowTest, OldSamplesLeave) {
  LoadWindow window(1);
  for (int i = 0; i <= 10; ++i) window.Add(SampleAt(i, i));
  EXPECT_DOUBLE_EQ(window.Read().processors, 1);
  for (int i = 11; i <= 15; ++i) window.Add(SampleAt(i, 10));
  EXPECT_DOUBLE_EQ(window.Read().processors, 0.5);
  for (int i = 16; i <= 20; ++i) window.Add(SampleAt(i, 10));
  EXPECT_DOUBLE_EQ(window.Read().processors, 0);
  EXPECT_DOUBLE_EQ(window.Read().failed_share, 0) << "no rows, no share";
}

TEST(LoadWindowTest, ClockReadingsThatDisagreeStayWithinOne) {
  LoadWindow window(1);
  window.Add(SampleAt(0, 0));
  window.Add(SampleAt(1, 5));
  EXPECT_DOUBLE_EQ(window.Read().processors, 1);
}

TEST(IntervalWatchTest, FirstAtOnceThenOnceAnInterval) {
  service::Limits limits;
  limits.max_watchers = 1;
  Watchers watchers(limits);
  IntervalWatch<int> watch(std::get<Watchers::Place>(watchers.Enter("a")), absl::Milliseconds(250), [] { return 7; });
  const absl::Time start = absl::UnixEpoch();
  EXPECT_LE(watch.due(), start);
  EXPECT_EQ(watch.Next(start), 7);
  EXPECT_EQ(watch.due(), start + absl::Milliseconds(250));
  EXPECT_EQ(watch.Next(start + absl::Milliseconds(249)), std::nullopt);
  EXPECT_EQ(watch.Next(start + absl::Milliseconds(250)), 7);
  EXPECT_EQ(watch.Next(start + absl::Milliseconds(499)), std::nullopt);
}

TEST(IntervalWatchTest, PlaceIsFreeWhenItIsLeft) {
  service::Limits limits;
  limits.max_watchers = 1;
  Watchers watchers(limits);
  {
    const auto place = watchers.Enter("a");
    ASSERT_TRUE(std::holds_alternative<Watchers::Place>(place));
    EXPECT_EQ(std::get<service::Refusal>(watchers.Enter("b")).limit, "max_watchers 1");
  }
  EXPECT_TRUE(std::holds_alternative<Watchers::Place>(watchers.Enter("a")));
}

TEST(IntervalWatchTest, OneConnectionLeavesPlacesToOthers) {
  service::Limits limits;
  limits.connection_watchers = 2;
  Watchers watchers(limits);
  const auto first = watchers.Enter("a");
  std::optional second = watchers.Enter("a");
  EXPECT_EQ(std::get<service::Refusal>(watchers.Enter("a")).limit, "connection_watchers 2");
  EXPECT_TRUE(std::holds_alternative<Watchers::Place>(watchers.Enter("b")));
  second.reset();
  EXPECT_TRUE(std::holds_alternative<Watchers::Place>(watchers.Enter("a")));
}

Config Reporting() {
  Config config = TestConfig();
  config.load_reports = true;
  config.limits.max_watchers = 1;
  return config;
}

// Calls `method` of the sampling service with one message, or none, and waits for the end. Returns the report in the
// trailers; nothing if there is none. gRPC's own client keeps reports to itself.
std::optional<Report> ReportOfCall(TestServer& server, const std::string& method, const std::string& message,
                                   const std::string& token = "") {
  Http2Client client(server.target());
  client.Call(1, "/sortition.v1.SamplingService/" + method,
              token.empty() ? "" : Http2Header("authorization", "Bearer " + token));
  if (!message.empty()) {
    std::string bytes(1, '\0');
    for (const uint32_t shift : {24u, 16u, 8u, 0u}) bytes.push_back(static_cast<char>(message.size() >> shift & 0xff));
    bytes.append(message);
    EXPECT_EQ(client.SendData(1, bytes), bytes.size());
  }
  client.HalfClose(1);
  while (!client.ended(1)) {
    if (!client.Receive(20'000)) break;
  }
  EXPECT_THAT(client.headers(), HasSubstr("grpc-status"));
  const size_t at = client.headers().find(kTrailer);
  if (at == std::string::npos) return std::nullopt;
  std::string_view value = std::string_view(client.headers()).substr(at + sizeof(kTrailer) - 1);
  // HPACK's form of a number: seven bits; 127 and more take further bytes.
  size_t size = static_cast<uint8_t>(value[0]);
  value.remove_prefix(1);
  if (size == 127) {
    for (uint32_t shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(value[0]);
      value.remove_prefix(1);
      size += size_t{byte & 0x7fu} << shift;
      if (byte < 128) break;
    }
  }
  EXPECT_EQ(value[0], '\0') << "the mark of binary values";
  Report report;
  EXPECT_TRUE(report.ParseFromArray(value.data() + 1, static_cast<int>(size) - 1));
  return report;
}

std::optional<Report> ReportOfSample(TestServer& server, const std::string& token = "", bool refused = false) {
  v1::SampleRequest request;
  request.set_dtype(v1::DTYPE_F32);
  request.set_vocabulary_size(refused ? 3 : 2);
  request.set_logits(std::string(8, '\0'));
  request.add_rows();
  return ReportOfCall(server, "Sample", request.SerializeAsString(), token);
}

void ExpectWhole(const std::optional<Report>& report) {
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->rps_fractional(), LoadReports::kRequests);
  EXPECT_THAT(report->eps(), AllOf(Ge(0), Le(LoadReports::kRequests)));
  EXPECT_THAT(report->cpu_utilization(), AllOf(Ge(0), Le(1)));
  EXPECT_GE(report->application_utilization(), LoadReports::kLeastUtilization);
  for (const auto& [name, share] : report->utilization()) EXPECT_THAT(share, AllOf(Ge(0), Le(1))) << name;
  EXPECT_EQ(report->utilization_size(), 2);
  EXPECT_EQ(report->named_metrics_size(), 2);
}

TEST(LoadReportsTest, UnaryCallsEndWithOne) {
  TestServer server(Reporting());
  ExpectWhole(ReportOfSample(server));
}

TEST(LoadReportsTest, RefusedCallsEndWithOne) {
  TestServer server(Reporting());
  ExpectWhole(ReportOfSample(server, "", /*refused=*/true));
}

TEST(LoadReportsTest, StreamsEndWithOne) {
  TestServer server(Reporting());
  ExpectWhole(ReportOfCall(server, "Stream", ""));
}

TEST(LoadReportsTest, StrangersGetNone) {
  const ClientListFile list("worker sample " + Sha256("secret") + "\n");
  Config config = Reporting();
  config.clients = list.path();
  TestServer server(config);
  ExpectWhole(ReportOfSample(server, "secret"));
  EXPECT_EQ(ReportOfSample(server, "guess"), std::nullopt);
  EXPECT_EQ(ReportOfCall(server, "Stream", ""), std::nullopt);
  grpc::ClientContext context;
  context.set_deadline(CallDeadline());
  const auto watch = Stub(server.Connect()).StreamCoreMetrics(&context, {});
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST(LoadReportsTest, OffThereIsNoTrailerAndNoService) {
  TestServer server;
  EXPECT_EQ(ReportOfSample(server), std::nullopt);
  EXPECT_EQ(ReportOfCall(server, "Stream", ""), std::nullopt);
  grpc::ClientContext context;
  context.set_deadline(CallDeadline());
  const auto watch = Stub(server.Connect()).StreamCoreMetrics(&context, {});
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

// A call out of band.
class Watching {
 public:
  Watching(TestServer& server, const Request& request) : stub_(server.Connect()) {
    context_.set_deadline(CallDeadline());
    watch_ = stub_.StreamCoreMetrics(&context_, request);
  }
  bool Read(Report* report) { return watch_->Read(report); }
  grpc::Status Finish() { return watch_->Finish(); }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  Stub stub_;
  std::unique_ptr<grpc::ClientReader<Report>> watch_;
};

Request Every(int64_t seconds, int32_t nanos) {
  Request request;
  request.mutable_report_interval()->set_seconds(seconds);
  request.mutable_report_interval()->set_nanos(nanos);
  return request;
}

TEST(LoadReportsTest, OutOfBandFollowsTheLoad) {
  TestServer server(Reporting());
  Watching watching(server, Every(0, 100'000'000));
  Report report;
  ASSERT_TRUE(watching.Read(&report));
  ExpectWhole(report);
  EXPECT_EQ(report.utilization().at("sortition.device"), 0);
  server.device().Hold();
  TestStream stream(server.Connect());
  stream.Greet();
  // More than the device takes at once.
  const uint64_t steps = server.device().description().batches_in_flight + 4;
  for (uint64_t step = 1; step <= steps; ++step) {
    const std::string request_id = "r" + std::to_string(step);
    stream.OpenSequence(request_id);
    ASSERT_TRUE(stream.SendStep(request_id, step));
  }
  do {
    ASSERT_TRUE(watching.Read(&report));
  } while (report.utilization().at("sortition.device") < 1 || report.utilization().at("sortition.queue") == 0);
  EXPECT_GT(report.application_utilization(), 1);
  EXPECT_EQ(report.named_metrics().at("sortition.streams"), 1);
  server.device().Release();
  do {
    ASSERT_TRUE(watching.Read(&report));
  } while (report.utilization().at("sortition.device") > 0 || report.utilization().at("sortition.queue") > 0);
  EXPECT_LT(report.application_utilization(), 1);
  watching.Cancel();
}

TEST(LoadReportsTest, HostileIntervalsAreRefusedByName) {
  TestServer server(Reporting());
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  const Request hostile[] = {Every(0, 0),      Every(0, 99'999'999),      Every(-1, 0), Every(60, 1), Every(kMost, 0),
                             Every(kLeast, 0), Every(kMost, 999'999'999), Every(0, -1)};
  for (const Request& request : hostile) {
    Watching watching(server, request);
    Report report;
    EXPECT_FALSE(watching.Read(&report)) << request.ShortDebugString();
    const DecodedDetails details = DecodeStatusDetails(watching.Finish().error_details());
    EXPECT_EQ(details.reason, "OUT_OF_RANGE") << request.ShortDebugString();
    EXPECT_EQ(details.metadata.at("field"), "report_interval");
    EXPECT_EQ(details.metadata.at("limit"), "100ms..1m");
  }
}

TEST(LoadReportsTest, NamesOfCostsAreRefusedByName) {
  TestServer server(Reporting());
  Request request;
  request.add_request_cost_names("tokens");
  Watching watching(server, request);
  const DecodedDetails details = DecodeStatusDetails(watching.Finish().error_details());
  EXPECT_EQ(details.reason, "NOT_IMPLEMENTED");
  EXPECT_EQ(details.metadata.at("field"), "request_cost_names");
}

TEST(LoadReportsTest, UnknownFieldsAreRefused) {
  TestServer server(Reporting());
  std::string response;
  // Field 9, varint 1.
  const grpc::Status status =
      CallRaw(*server.Connect(), "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics", "\x48\x01", &response);
  EXPECT_EQ(DecodeStatusDetails(status.error_details()).reason, "UNKNOWN_FIELD");
}

TEST(LoadReportsTest, WatchersAreBounded) {
  TestServer server(Reporting());
  Watching first(server, {});
  Report report;
  ASSERT_TRUE(first.Read(&report));
  Watching second(server, {});
  EXPECT_FALSE(second.Read(&report));
  const DecodedDetails details = DecodeStatusDetails(second.Finish().error_details());
  EXPECT_EQ(details.reason, "OVERLOADED");
  EXPECT_EQ(details.metadata.at("limit"), "max_watchers 1");
  first.Cancel();
  EXPECT_FALSE(first.Finish().ok());
  // The place is free a moment after its client has gone.
  EXPECT_TRUE(Eventually([&] { return Watching(server, {}).Read(&report); }));
}

TEST(LoadReportsTest, StopEndsWatchers) {
  TestServer server(Reporting());
  Watching watching(server, Every(60, 0));
  Report report;
  ASSERT_TRUE(watching.Read(&report));
  server.server().Stop();
  EXPECT_FALSE(watching.Finish().ok());
}

}  // namespace
}  // namespace sortition::server::load_reports_test
