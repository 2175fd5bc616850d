// Spans by opentelemetry-cpp. Its queue drops spans silently, so waiting spans are counted here, before the queue.
#include "service/log/step_traces.h"

#include <opentelemetry/exporters/otlp/otlp_grpc_exporter_factory.h>
#include <opentelemetry/exporters/otlp/otlp_grpc_exporter_options.h>
#include <opentelemetry/sdk/common/global_log_handler.h>
#include <opentelemetry/sdk/trace/batch_span_processor_factory.h>
#include <opentelemetry/sdk/trace/batch_span_processor_options.h>
#include <opentelemetry/sdk/trace/exporter.h>
#include <opentelemetry/sdk/trace/tracer_provider.h>
#include <opentelemetry/sdk/trace/tracer_provider_factory.h>
#include <opentelemetry/trace/propagation/http_trace_context.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "service/version.h"

namespace sortition::server {
namespace {

namespace common = opentelemetry::common;
namespace nostd = opentelemetry::nostd;
namespace sdk = opentelemetry::sdk;
namespace trace = opentelemetry::trace;
using service::Counter;

// The spans between their end and their way to the collector. Thread-safe.
class WaitingSpans {
 public:
  WaitingSpans(uint32_t most, service::Observer* observer) : most_(most), observer_(*observer) {}

  // Returns true if `count` spans may wait; otherwise they are lost.
  bool Admit(uint32_t count) {
    if (waiting_.fetch_add(count) + count <= most_) return true;
    waiting_.fetch_sub(count);
    observer_.Count(Counter::kSpansLost, count);
    return false;
  }
  void Leave(Counter outcome, uint32_t count) {
    waiting_.fetch_sub(count);
    observer_.Count(outcome, count);
  }

  // Spans that the collector has not taken after `timeout` are lost.
  void Close(absl::Duration timeout) {
    last_ = (std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout));
  }
  bool IsLate() const { return std::chrono::steady_clock::now() > last_.load(); }

 private:
  const uint32_t most_;
  service::Observer& observer_;
  std::atomic<uint32_t> waiting_ = 0;
  std::atomic<std::chrono::steady_clock::time_point> last_ = std::chrono::steady_clock::time_point::max();
};

// Counts the spans of another exporter.
class CountingExporter final : public sdk::trace::SpanExporter {
 public:
  CountingExporter(std::unique_ptr<sdk::trace::SpanExporter> exporter, WaitingSpans* waiting)
      : exporter_(std::move(exporter)), waiting_(*waiting) {}

  std::unique_ptr<sdk::trace::Recordable> MakeRecordable() noexcept override { return exporter_->MakeRecordable(); }

  sdk::common::ExportResult Export(
      const nostd::span<std::unique_ptr<sdk::trace::Recordable>>& spans) noexcept override {
    const auto count = static_cast<uint32_t>(spans.size());
    const auto result = waiting_.IsLate() ? sdk::common::ExportResult::kFailure : exporter_->Export(spans);
    const bool taken = result == sdk::common::ExportResult::kSuccess;
    waiting_.Leave(taken ? Counter::kSpansExported : Counter::kSpansLost, count);
    return result;
  }
  bool ForceFlush(std::chrono::microseconds timeout) noexcept override { return exporter_->ForceFlush(timeout); }
  bool Shutdown(std::chrono::microseconds timeout) noexcept override { return exporter_->Shutdown(timeout); }

 private:
  const std::unique_ptr<sdk::trace::SpanExporter> exporter_;
  WaitingSpans& waiting_;
};

// Brings the library's messages to the log: a collector that does not answer, above all.
class LibraryLog final : public sdk::common::internal_log::LogHandler {
 public:
  explicit LibraryLog(Log* log) : log_(*log) {}
  void Handle(sdk::common::internal_log::LogLevel level, const char*, int, const char* message,
              const sdk::common::AttributeMap&) noexcept override {
    constexpr size_t kMostBytes = 1024;
    const bool fails = level <= sdk::common::internal_log::LogLevel::Warning;
    log_.Write(fails ? LogLevel::kWarning : LogLevel::kDebug, "traces",
               {{"message", std::string_view(message == nullptr ? "" : message).substr(0, kMostBytes)}});
  }

 private:
  Log& log_;
};

// Returns the endpoint with its scheme, or an error that names the flag.
absl::StatusOr<std::string> WithScheme(const std::string& endpoint) {
  absl::string_view address = endpoint;
  const bool has_scheme = absl::ConsumePrefix(&address, "http://") || absl::ConsumePrefix(&address, "https://");
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos || colon == 0 || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port == 0 || port > 65535 || absl::StrContains(address, '/')) {
    return absl::InvalidArgumentError(
        absl::StrCat("--otlp_endpoint: \"", endpoint, "\" is not HOST:PORT, http://HOST:PORT or https://HOST:PORT"));
  }
  return has_scheme ? endpoint : absl::StrCat("http://", endpoint);
}

nostd::string_view View(std::string_view text) { return {text.data(), text.size()}; }

class OtlpTraces final : public StepTraces {
 public:
  OtlpTraces(const TraceSettings& settings, std::string endpoint, const service::Clock* clock,
             service::Observer* observer)
      : timeout_(settings.timeout), clock_(*clock), waiting_(settings.most_waiting, observer) {
    opentelemetry::exporter::otlp::OtlpGrpcExporterOptions to;
    to.use_ssl_credentials = absl::StartsWith(endpoint, "https://");
    to.endpoint = std::move(endpoint);
    to.timeout = absl::ToChronoMilliseconds(settings.timeout);
    sdk::trace::BatchSpanProcessorOptions batches;
    batches.max_queue_size = settings.most_waiting;
    batches.max_export_batch_size = std::min<size_t>(batches.max_export_batch_size, settings.most_waiting);
    batches.schedule_delay_millis = absl::ToChronoMilliseconds(settings.delay);
    const std::string version(service::Version());
    provider_ = sdk::trace::TracerProviderFactory::Create(
        sdk::trace::BatchSpanProcessorFactory::Create(
            std::make_unique<CountingExporter>(opentelemetry::exporter::otlp::OtlpGrpcExporterFactory::Create(to),
                                               &waiting_),
            batches),
        sdk::resource::Resource::Create({{"service.name", "sortition"}, {"service.version", version}}));
    tracer_ = provider_->GetTracer("sortition", version);
  }

  ~OtlpTraces() override {
    waiting_.Close(timeout_);
    provider_->Shutdown();
  }

  void Add(const service::NotedStep& step) override {
    const bool was_early = step.ready > step.arrived;
    const auto count = static_cast<uint32_t>(2 + 2 * step.runs.size() + (was_early ? 1 : 0));
    if (!waiting_.Admit(count)) return;
    const Times times(clock_.Now());
    const auto whole = Begin("step", ParentOf(step), trace::SpanKind::kServer, step.arrived, times);
    whole->SetAttribute("sortition.worker_session", View(step.worker_session));
    whole->SetAttribute("sortition.batch_id", step.batch_id);
    whole->SetAttribute("sortition.rows", step.rows);
    whole->SetAttribute("sortition.refused_rows", step.refused_rows);
    if (step.runs_left_out != 0) whole->SetAttribute("sortition.batches_left_out", step.runs_left_out);
    if (!step.refused_for.empty()) whole->SetAttribute("error.type", View(step.refused_for));
    if (!step.refused_for.empty() && step.refused_rows == step.rows) {
      whole->SetStatus(trace::StatusCode::kError, View(step.refused_for));
    }
    if (step.options) {
      whole->SetAttribute("gen_ai.request.temperature", double{step.options->temperature});
      whole->SetAttribute("gen_ai.request.top_p", double{step.options->top_p});
      // A step has no other names for options that are off.
      if (step.options->top_k != 0) whole->SetAttribute("gen_ai.request.top_k", double(step.options->top_k));
    }
    const trace::SpanContext parent = whole->GetContext();
    absl::Time computed = step.ready;
    if (was_early) {
      End(Begin("ready", parent, trace::SpanKind::kInternal, step.arrived, times), step.ready, times);
    }
    for (const service::BatchRun& run : step.runs) {
      End(Begin("queue", parent, trace::SpanKind::kInternal, run.queued, times), run.started, times);
      const auto device = Begin("device", parent, trace::SpanKind::kInternal, run.started, times);
      device->SetAttribute("sortition.device", View(run.device));
      device->SetAttribute("sortition.rows", run.rows);
      End(device, run.ended, times);
      computed = std::max(computed, run.ended);
    }
    End(Begin("answer", parent, trace::SpanKind::kInternal, computed, times), step.answered, times);
    End(whole, step.answered, times);
  }

 private:
  // The clocks of spans and of the service at one moment.
  struct Times {
    explicit Times(absl::Time at) : now(at) {}
    absl::Time now;
    std::chrono::steady_clock::time_point steady = std::chrono::steady_clock::now();
    std::chrono::system_clock::time_point system = std::chrono::system_clock::now();

    common::SteadyTimestamp Steady(absl::Time time) const {
      return common::SteadyTimestamp(steady - absl::ToChronoNanoseconds(now - time));
    }
    common::SystemTimestamp System(absl::Time time) const {
      return common::SystemTimestamp(system - absl::ToChronoNanoseconds(now - time));
    }
  };
  using Span = nostd::shared_ptr<trace::Span>;

  // The trace context has been checked (service/wire/trace.h).
  static trace::SpanContext ParentOf(const service::NotedStep& step) {
    namespace form = trace::propagation;
    constexpr size_t kTraceAt = form::kVersionSize + 1;
    constexpr size_t kSpanAt = kTraceAt + form::kTraceIdSize + 1;
    return {form::HttpTraceContext::TraceIdFromHex(View(step.traceparent.substr(kTraceAt, form::kTraceIdSize))),
            form::HttpTraceContext::SpanIdFromHex(View(step.traceparent.substr(kSpanAt, form::kSpanIdSize))),
            trace::TraceFlags(trace::TraceFlags::kIsSampled), true,
            trace::TraceState::FromHeader(View(step.tracestate))};
  }

  Span Begin(const char* name, const trace::SpanContext& parent, trace::SpanKind kind, absl::Time at,
             const Times& times) {
    trace::StartSpanOptions options;
    options.parent = parent;
    options.kind = kind;
    options.start_system_time = times.System(at);
    options.start_steady_time = times.Steady(at);
    return tracer_->StartSpan(name, options);
  }

  static void End(const Span& span, absl::Time at, const Times& times) {
    trace::EndSpanOptions options;
    options.end_steady_time = times.Steady(at);
    span->End(options);
  }

  const absl::Duration timeout_;
  const service::Clock& clock_;
  WaitingSpans waiting_;
  std::unique_ptr<sdk::trace::TracerProvider> provider_;
  nostd::shared_ptr<trace::Tracer> tracer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StepTraces>> StepTraces::Start(const TraceSettings& settings,
                                                              const service::Clock* clock, service::Observer* observer,
                                                              Log* log) {
  absl::StatusOr<std::string> endpoint = WithScheme(settings.endpoint);
  if (!endpoint.ok()) return endpoint.status();
  sdk::common::internal_log::GlobalLogHandler::SetLogHandler(
      nostd::shared_ptr<sdk::common::internal_log::LogHandler>(new LibraryLog(log)));
  return std::make_unique<OtlpTraces>(settings, *std::move(endpoint), clock, observer);
}

}  // namespace sortition::server
