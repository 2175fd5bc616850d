// Effect of each report of the service on the metrics.
#include "monitoring/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "service/wire/refused_fields.h"

namespace sortition::monitoring::metrics_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MetricsTest : public ::testing::Test {
 protected:
  std::string Text() const { return prometheus::TextSerializer().Serialize(observer_.registry()->Collect()); }

  PrometheusObserver observer_{{{.name = "cpu0", .kind = "cpu", .hardware = "a", .batches_in_flight = 4},
                                {.name = "cpu1", .kind = "cpu", .hardware = "b"}}};
};

TEST_F(MetricsTest, StepsRowsAndTokens) {
  observer_.StepReceived(3, 4096);
  observer_.StepReceived(1, 1000);
  observer_.Count(service::Counter::kTokens, 2);
  observer_.StepAnswered(absl::Milliseconds(250));
  observer_.StepReady(absl::Milliseconds(125));
  observer_.CompactRows({.decided = 5, .required = {1, 0, 0, 2}});
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("\nsortition_steps_total 2\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_rows_total 4\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_compact_rows_total{outcome=\"decided\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_compact_rows_total{outcome=\"tokens\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_compact_rows_total{outcome=\"row\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_payload_bytes_total 5096\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_tokens_total 2\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_step_latency_seconds_count 1\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_step_latency_seconds_sum 0.25\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_ready_wait_seconds_sum 0.125\n"));
}

TEST_F(MetricsTest, BatchesCountAtTheirDevice) {
  observer_.BatchStarted("cpu1", 5, service::RouteReason::kOnly);
  observer_.BatchStarted("cpu1", 3, service::RouteReason::kOnly);
  EXPECT_THAT(Text(), HasSubstr("\nsortition_device_rows{device=\"cpu1\"} 8\n"));
  observer_.BatchDone("cpu1", 5, absl::Milliseconds(500), absl::Milliseconds(125));
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("\nsortition_device_batches{device=\"cpu0\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_device_batches{device=\"cpu1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_device_rows{device=\"cpu1\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_batches_total{device=\"cpu0\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_batches_total{device=\"cpu1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_batch_rows_sum{device=\"cpu1\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_kernel_seconds_sum{device=\"cpu1\"} 0.125\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_queue_wait_seconds_sum 0.5\n"));
}

TEST_F(MetricsTest, DevicesAndTheirFailures) {
  observer_.BatchFailed("cpu0");
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("\nsortition_device_info{device=\"cpu0\",hardware=\"a\",kind=\"cpu\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_device_batch_slots{device=\"cpu0\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_device_failures_total{device=\"cpu0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_device_failures_total{device=\"cpu1\"} 0\n"));
}

TEST_F(MetricsTest, RoutesAndChecksCountAtTheirDevice) {
  observer_.BatchStarted("cpu1", 1, service::RouteReason::kOnly);
  observer_.RowsRerun("cpu0", 7);
  observer_.RowsRechecked("cpu0", 5, 1);
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("\nsortition_routed_batches_total{device=\"cpu1\",reason=\"only\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_routed_batches_total{device=\"cpu0\",reason=\"only\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_rerun_rows_total{device=\"cpu0\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_rechecked_rows_total{device=\"cpu0\",result=\"right\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_rechecked_rows_total{device=\"cpu0\",result=\"wrong\"} 1\n"));
}

TEST_F(MetricsTest, StreamsAndMessagesCountByTransport) {
  observer_.StreamOpened(service::TransportType::kUnix);
  observer_.StreamOpened(service::TransportType::kUnix);
  observer_.StreamEnded(service::TransportType::kUnix, "drained");
  observer_.MessageReceived(service::TransportType::kUnix, 1000);
  observer_.MessageReceived(service::TransportType::kTcp, 7);
  observer_.MessageSent(service::TransportType::kTcp, 24);
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("\nsortition_streams{transport=\"unix\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_streams{transport=\"tcp\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_streams_opened_total{transport=\"unix\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_streams_ended_total{how=\"drained\",transport=\"unix\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_received_messages_total{transport=\"tcp\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_received_bytes_total{transport=\"unix\"} 1000\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_sent_messages_total{transport=\"tcp\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_sent_bytes_total{transport=\"tcp\"} 24\n"));
}

TEST_F(MetricsTest, LatenessOfTheControlByCause) {
  observer_.ControlWoken(absl::Milliseconds(250), absl::Milliseconds(125));
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("\nsortition_control_late_seconds_sum{cause=\"machine\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_control_late_seconds_sum{cause=\"threads\"} 0.125\n"));
}

// Returns the line of a series in the text.
std::string Line(std::string name, const std::string& label, const std::string& value, int count) {
  if (!label.empty()) name += "{" + label + "=\"" + value + "\"}";
  return "\n" + name + " " + std::to_string(count) + "\n";
}

TEST_F(MetricsTest, EverySeriesMovesByItsName) {
  int count = 0;
#define COUNTER(id, name, label, value, help)                  \
  EXPECT_THAT(Text(), HasSubstr(Line(name, label, value, 0))); \
  observer_.Count(service::Counter::k##id, ++count);
#define GAUGE(id, name, label, value, help) observer_.Set(service::Gauge::k##id, ++count);
#include "service/metrics.inc"
  const std::string text = Text();
  count = 0;
#define COUNTER(id, name, label, value, help) EXPECT_THAT(text, HasSubstr(Line(name, label, value, ++count)));
#define GAUGE(id, name, label, value, help) EXPECT_THAT(text, HasSubstr(Line(name, label, value, ++count)));
#include "service/metrics.inc"
}

TEST_F(MetricsTest, RefusalsCountByReason) {
  observer_.Refused(service::Reason::kLogitNan, "step.rows[1].logits", 2);
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("\nsortition_errors_total{reason=\"LOGIT_NAN\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_errors_total{reason=\"OVERLOADED\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_refused_fields_total{field=\"logits\",reason=\"LOGIT_NAN\"} 2\n"));
}

TEST_F(MetricsTest, FieldsOfRefusalsCountByReason) {
  EXPECT_THAT(Text(), Not(HasSubstr("\nsortition_refused_fields_total")));
  observer_.Refused(service::Reason::kOutOfRange, "open.parameters.temperature", 1);
  observer_.Refused(service::Reason::kMissingField, "open.parameters.temperature", 3);
  observer_.Refused(service::Reason::kOutOfRange, "rows[7].parameters.temperature", 1);
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("\nsortition_refused_fields_total{field=\"temperature\",reason=\"OUT_OF_RANGE\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_refused_fields_total{field=\"temperature\",reason=\"MISSING_FIELD\"} 3\n"));
}

TEST_F(MetricsTest, ThreadsShareThePairOfReasonAndField) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      for (const std::string& field : service::RefusedFields()) {
        observer_.Refused(service::Reason::kOutOfRange, field, 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(Text(), HasSubstr("\nsortition_refused_fields_total{field=\"top_p\",reason=\"OUT_OF_RANGE\"} 4\n"));
}

TEST_F(MetricsTest, HostileFieldsAddNoSeries) {
  observer_.Refused(service::Reason::kUnknownField, "unknown", 1);
  const auto lines = [this] {
    const std::string text = Text();
    return std::count(text.begin(), text.end(), '\n');
  };
  const auto before = lines();
  for (const char* field : {"\"} 1\nforged 1\n{x=\"", "no_such_field", "<b>", "\xff"}) {
    observer_.Refused(service::Reason::kUnknownField, field, 1);
  }
  EXPECT_EQ(lines(), before);
  EXPECT_THAT(Text(), HasSubstr("\nsortition_refused_fields_total{field=\"other\",reason=\"UNKNOWN_FIELD\"} 5\n"));
}

TEST_F(MetricsTest, PhasesCountByNumber) {
  observer_.PhaseTokens(1, 3);
  observer_.PhaseTokens(8, 2);
  const std::string text = Text();
  EXPECT_THAT(text, HasSubstr("\nsortition_phase_tokens_total{phase=\"1\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_phase_tokens_total{phase=\"2\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("\nsortition_phase_tokens_total{phase=\"8\"} 2\n"));
}

TEST_F(MetricsTest, TotalsAreSumsOverLabels) {
  observer_.StepReceived(3, 0);
  observer_.Count(service::Counter::kTokens, 3);
  observer_.Refused(service::Reason::kLogitNan, "step.rows[1].logits", 2);
  observer_.Refused(service::Reason::kOverloaded, "step", 1);
  for (const char* device : {"cpu0", "cpu1"}) {
    observer_.BatchStarted(device, 1, service::RouteReason::kOnly);
    observer_.BatchDone(device, 1, {}, {});
  }
  const service::Observer::Totals totals = observer_.totals();
  EXPECT_EQ(totals.failures, 1u);
  EXPECT_EQ(totals.steps, 1u);
  EXPECT_EQ(totals.rows, 3u);
  EXPECT_EQ(totals.tokens, 3u);
  EXPECT_EQ(totals.errors, 3u);
  EXPECT_EQ(totals.batches, 2u);
}

// A name that no label was made for is a broken invariant of the service.
TEST_F(MetricsTest, UnknownDevicesAndEndsAbort) {
  EXPECT_DEATH(observer_.BatchDone("gpu9", 1, {}, {}), "broken invariant");
  EXPECT_DEATH(observer_.StreamEnded(service::TransportType::kTcp, "bored"), "broken invariant");
}

}  // namespace
}  // namespace sortition::monitoring::metrics_test
