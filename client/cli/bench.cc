// sortitionctl bench: a load of steps on a server, and its cost.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <tuple>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/bench/control.h"
#include "client/bench/load.h"
#include "client/bench/load_plot.h"
#include "client/bench/metrics_page.h"
#include "client/bench/report.h"
#include "client/cli/command.h"
#include "client/cli/sampling_flags.h"
#include "kernels/check.h"

using Texts = std::vector<std::string>;

ABSL_FLAG(Texts, target, {}, "bench: servers, by commas, with which streams begin in turn; empty = --server");
ABSL_FLAG(uint32_t, streams, 1, "bench: streams, each with one step in flight, 1 to 1024");
ABSL_FLAG(uint32_t, step_rows, 1, "bench: rows of a step, each of another text, 1 to 4096");
ABSL_FLAG(uint32_t, tokens, 1000, "bench: tokens of a text, after which another one begins in its place");
ABSL_FLAG(double, rate, 0, "bench: steps a second of all streams together (an open loop); 0 = a closed loop");
ABSL_FLAG(absl::Duration, warm_up, absl::Seconds(1), "bench: time before latency is measured, at most 1h");
ABSL_FLAG(absl::Duration, duration, absl::Seconds(10), "bench: time after the warm-up, 100ms to 24h");
ABSL_FLAG(std::string, transport, "auto", "bench: auto, grpc or ring (its target is a memory socket)");
ABSL_FLAG(uint64_t, shared_memory_bytes, uint64_t{64} << 20,
          "bench: memory that each stream shares with its server for rows; 0 = rows travel within the stream");
ABSL_FLAG(std::string, rows, "auto", "bench: form of rows: auto, full, compact or compact(COUNT)");
ABSL_FLAG(std::string, metrics, "",
          "bench: HOST:PORT of the server's metrics, from which its processor time and bytes a row are read");
ABSL_FLAG(std::string, plot, "", "bench: file for a picture (SVG) of latency and of tokens over time");
ABSL_DECLARE_FLAG(absl::Duration, interval);

namespace sortition::cli {
namespace {

using bench::Histogram;
using bench::Load;
using bench::Tally;

constexpr uint32_t kVocabulary = 128256;
constexpr absl::Duration kStopWait = absl::Seconds(1);  // of steps in flight after Ctrl-C

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// Makes Ctrl-C end the load. The second one ends the process.
void TakeInterrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted.store(true); };
  action.sa_flags = SA_RESETHAND;
  SORTITION_CHECK(sigaction(SIGINT, &action, nullptr) == 0);
}

template <typename T>
absl::Status InRange(const absl::Flag<T>& flag, T least, T most, const char* range) {
  const T value = absl::GetFlag(flag);
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag.Name(), " must be ", range));
}

absl::Status CheckFlags(const std::vector<std::string>& arguments) {
  if (arguments.size() != (WantsJson() ? 1 : 0)) {
    return absl::InvalidArgumentError("bench takes no argument, and with --json one: the file to write");
  }
  for (const absl::Status& status :
       {InRange<uint32_t>(FLAGS_streams, 1, 1024, "1 to 1024"),
        InRange<uint32_t>(FLAGS_step_rows, 1, 4096, "1 to 4096"),
        InRange<uint32_t>(FLAGS_tokens, 1, 1000000, "1 to 1000000"),
        InRange<double>(FLAGS_rate, 0, 1e6, "0 to 1000000"),
        InRange(FLAGS_warm_up, absl::ZeroDuration(), absl::Hours(1), "0 to 1h"),
        InRange(FLAGS_duration, absl::Milliseconds(100), absl::Hours(24), "100ms to 24h"),
        InRange(FLAGS_interval, absl::Milliseconds(100), absl::Seconds(60), "100ms to 60s")}) {
    if (!status.ok()) return status;
  }
  for (const std::string& path : {WantsJson() ? arguments[0] : "", absl::GetFlag(FLAGS_plot)}) {
    if (!path.empty() && !std::ofstream(path, std::ios::app)) {
      return absl::InvalidArgumentError(absl::StrCat("cannot write ", path));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<client::TransportKind> Transport() {
  const std::string name = absl::GetFlag(FLAGS_transport);
  if (name == "auto") return client::TransportKind::kAuto;
  if (name == "grpc") return client::TransportKind::kGrpc;
  if (name == "ring") return client::TransportKind::kRing;
  return absl::InvalidArgumentError(absl::StrCat("--transport: ", name, " is none of auto, grpc and ring"));
}

absl::StatusOr<bench::LoadOptions> Options() {
  bench::LoadOptions options;
  auto connection = Connection();
  if (!connection.ok()) return connection.status();
  options.connection = *std::move(connection);
  if (auto targets = absl::GetFlag(FLAGS_target); !targets.empty()) options.connection.targets = std::move(targets);
  const auto kind = Transport();
  if (!kind.ok()) return kind.status();
  options.connection.transport.kind = *kind;
  options.connection.transport.shared_memory_bytes = absl::GetFlag(FLAGS_shared_memory_bytes);
  const auto rows = client::RowFormOptions::Parse(absl::GetFlag(FLAGS_rows));
  if (!rows) return absl::InvalidArgumentError("--rows must be auto, full, compact or compact(COUNT)");
  options.connection.rows = *rows;
  const auto row = GetRowFlags();
  if (!row.ok()) return row.status();
  options.dtype = row->dtype.value_or(v1::DTYPE_BF16);
  const uint32_t vocabulary = row->vocabulary.value_or(kVocabulary);
  if (vocabulary < 1 || vocabulary > 1 << 20) return absl::InvalidArgumentError("--vocabulary must be 1 to 1048576");
  auto text = GetTextFlags(vocabulary);
  if (!text.ok()) return text.status();
  options.text = *std::move(text);
  if (!options.text.seed) options.text.seed = 1;
  options.streams = absl::GetFlag(FLAGS_streams);
  options.step_rows = absl::GetFlag(FLAGS_step_rows);
  options.text_tokens = absl::GetFlag(FLAGS_tokens);
  if (const double rate = absl::GetFlag(FLAGS_rate); rate > 0) options.rate = rate;
  options.warm_up = absl::GetFlag(FLAGS_warm_up);
  options.duration = absl::GetFlag(FLAGS_duration);
  return options;
}

// Readings at one moment of a load.
struct Reading {
  Load::Clock::time_point time;
  Tally tally;
  double client_cpu = 0;  // microseconds of processor time, as the server's
  double server_cpu = 0;
  double kernels = 0;
  double bytes_in = 0;
  double bytes_out = 0;
  std::map<std::string, double> refusals;  // the server's, by reason
  bench::Control::Lateness lateness;       // empty without a control
};

absl::Status ReadServer(Reading* reading) {
  const std::string address = absl::GetFlag(FLAGS_metrics);
  if (address.empty()) return absl::OkStatus();
  const auto page = bench::ReadMetricsPage(address, Timeout());
  if (!page.ok()) return page.status();
  for (const auto& [name, factor, value] : {std::tuple("process_cpu_seconds_total", 1e6, &reading->server_cpu),
                                            std::tuple("sortition_kernel_seconds_sum", 1e6, &reading->kernels),
                                            std::tuple("sortition_received_bytes_total", 1.0, &reading->bytes_in),
                                            std::tuple("sortition_sent_bytes_total", 1.0, &reading->bytes_out)}) {
    const auto metric = bench::FindMetric(*page, name);
    if (!metric.ok()) return metric.status();
    *value = factor * *metric;
  }
  reading->refusals = bench::MetricsBy(*page, "sortition_errors_total", "reason");
  return absl::OkStatus();
}

absl::StatusOr<Reading> Read(const Load& load, const bench::Control* control) {
  Reading reading;
  if (absl::Status status = ReadServer(&reading); !status.ok()) return status;
  timespec cpu;
  SORTITION_CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0);
  reading.client_cpu = static_cast<double>(cpu.tv_sec) * 1e6 + static_cast<double>(cpu.tv_nsec) / 1e3;
  reading.time = Load::Clock::now();
  reading.tally = load.Read();
  if (control != nullptr) reading.lateness = control->Read();
  return reading;
}

double Seconds(Load::Clock::duration time) { return std::chrono::duration<double>(time).count(); }
double Milliseconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e6; }

// Prints a line an interval to standard error, and keeps the picture's data.
class Progress {
 public:
  explicit Progress(const Load& load) : load_(load) {}

  void Line(bool warm_up) {
    const auto now = Load::Clock::now();
    Tally tally = load_.Read();
    const double seconds = Seconds(now - last_);
    const Histogram latency = tally.latency.Since(tally_.latency);
    const double tokens = static_cast<double>(tally.tokens - tally_.tokens) / seconds;
    if (intervals_.size() % 20 == 0) {
      std::fprintf(stderr, "%10s %10s %12s %10s %10s %10s %10s\n", "TIME/s", "STEPS/s", "TOKENS/s", "P50/ms", "P99/ms",
                   "MAX/ms", "REFUSED");
    }
    std::fprintf(stderr, "%10.1f %10.1f %12.1f %10.3f %10.3f %10.3f %10llu%s\n", Seconds(now - start_),
                 static_cast<double>(tally.steps - tally_.steps) / seconds, tokens,
                 Milliseconds(latency.Percentile(50)), Milliseconds(latency.Percentile(99)),
                 Milliseconds(latency.max()), static_cast<unsigned long long>(tally.refused_rows()),
                 warm_up ? "  warm-up" : "");
    intervals_.push_back({Seconds(now - start_), tokens, latency.Percentile(99)});
    last_ = now;
    tally_ = std::move(tally);
  }

  const std::vector<bench::LoadInterval>& intervals() const { return intervals_; }

 private:
  const Load& load_;
  const Load::Clock::time_point start_ = Load::Clock::now();
  Load::Clock::time_point last_ = start_;
  Tally tally_;
  std::vector<bench::LoadInterval> intervals_;
};

// Waits until `time`, an interrupt, or the end of the load if it comes earlier. Prints a line an interval.
void WaitUntil(Load::Clock::time_point time, Load* load, Progress* progress) {
  constexpr absl::Duration kLook = absl::Milliseconds(20);
  const auto interval = absl::ToChronoNanoseconds(absl::GetFlag(FLAGS_interval));
  for (auto next = Load::Clock::now() + interval; !interrupted.load();) {
    const auto now = Load::Clock::now();
    if (now >= time) return;
    if (now >= next) {
      progress->Line(time == load->measured_from());
      next += interval;
    }
    if (load->Wait(std::min(kLook, absl::FromChrono(time - now)))) return;
  }
}

// How latency is measured, in a sentence and as a part of names.
struct LatencyClock {
  std::string variant;
  std::string text;
};

std::vector<std::pair<LatencyClock, Histogram>> Latencies(const Tally& tally, bool open_loop) {
  std::vector<std::pair<LatencyClock, Histogram>> latencies;
  if (open_loop) {
    latencies = {
        {{"from_schedule", "from the moment when a step was due to its answer, waiting for the stream included"},
         tally.latency}};
  } else {
    const uint64_t p50 = tally.latency.Percentile(50);
    latencies = {{{"from_call",
                   "from the call of a step to its answer; a stalled server is sent fewer steps, so it looks "
                   "better than it is"},
                  tally.latency},
                 {{"corrected", absl::StrFormat("as from_call, with the steps added that a call every %.3f ms (p50) "
                                                "would have had waiting during longer ones",
                                                Milliseconds(p50))},
                  tally.latency.Corrected(p50)}};
  }
  if (tally.undisturbed.count() > 0) {
    const std::string all = latencies.front().first.variant;
    latencies.push_back(
        {{"undisturbed", absl::StrCat("as ", all, ", of the steps during which this machine had no hiccup")},
         tally.undisturbed});
  }
  return latencies;
}

bench::Report Results(const Reading& before, const Reading& after, const bench::LoadOptions& options) {
  bench::Report report("load", bench::MachineName());
  const Tally& tally = after.tally;
  for (const auto& [clock, latency] : Latencies(tally, options.rate.has_value())) {
    const bool is_part = clock.variant == "undisturbed";
    bench::AddPercentiles("latency", clock.variant, latency, is_part ? &tally.latency : nullptr, &report);
  }
  if (options.control != nullptr) {
    const auto measured = static_cast<double>(tally.latency.count());
    report.Add({"steps_disturbed", measured - static_cast<double>(tally.undisturbed.count()), "steps", measured});
    bench::ReportControl(
        {after.lateness.machine.Since(before.lateness.machine), after.lateness.threads.Since(before.lateness.threads)},
        &report);
  }
  const double seconds = Seconds(after.time - before.time);
  const double drawn = static_cast<double>(tally.tokens - before.tally.tokens);
  const std::optional<double> asked = options.rate ? std::optional(*options.rate * options.step_rows) : std::nullopt;
  report.Add({"tokens_per_second", drawn / seconds, "1/s", asked});
  report.Add(
      {"steps_per_second", static_cast<double>(tally.steps - before.tally.steps) / seconds, "1/s", options.rate});
  report.Add({"steps_unsent", static_cast<double>(tally.unsent), "steps", std::nullopt});
  report.Add({"rows_sent", static_cast<double>(tally.rows), "rows", std::nullopt});
  report.Add({"rows_drawn", static_cast<double>(tally.tokens), "rows", static_cast<double>(tally.rows)});
  for (const auto& [reason, rows] : tally.refused) {
    report.Add({absl::StrCat("rows_refused/", absl::AsciiStrToLower(v1::ErrorReason_Name(reason))),
                static_cast<double>(rows), "rows", std::nullopt});
  }
  report.Add({"rows_lost", static_cast<double>(tally.lost), "rows", std::nullopt});
  report.Add({"rows_in_flight", static_cast<double>(tally.in_flight()), "rows", std::nullopt});
  // Those that the client's retries have cured, too.
  for (const auto& [reason, count] : after.refusals) {
    const auto earlier = before.refusals.find(reason);
    const double since = count - (earlier == before.refusals.end() ? 0 : earlier->second);
    if (since == 0) continue;
    report.Add({absl::StrCat("server_refusals/", absl::AsciiStrToLower(reason)), since, "", std::nullopt});
  }
  if (drawn == 0) return report;
  report.Add({"client_cpu", (after.client_cpu - before.client_cpu) / drawn, "us/row", std::nullopt});
  if (absl::GetFlag(FLAGS_metrics).empty()) return report;
  const double server_cpu = (after.server_cpu - before.server_cpu) / drawn;
  const double kernels = (after.kernels - before.kernels) / drawn;
  const double row_bytes = client::ElementBytes(options.dtype) * static_cast<double>(options.text.vocabulary_size);
  // Compact rows run on no device.
  report.Add({"server_cpu", server_cpu, "us/row", kernels > 0 ? std::optional(kernels) : std::nullopt});
  report.Add({"rows_per_core", 1e6 / server_cpu, "rows/s", std::nullopt});
  report.Add({"bytes_in", (after.bytes_in - before.bytes_in) / drawn, "B/row", row_bytes});
  report.Add({"bytes_out", (after.bytes_out - before.bytes_out) / drawn, "B/row", std::nullopt});
  return report;
}

std::string TitleOf(const bench::LoadOptions& options, const client::TransportInUse& transport) {
  std::string title = options.rate ? absl::StrFormat("open loop of %g steps/s", *options.rate) : "closed loop";
  absl::StrAppend(&title, ": streams ", options.streams, ", rows a step ", options.step_rows, " of ",
                  options.text.vocabulary_size, " ", absl::AsciiStrToLower(v1::DType_Name(options.dtype).substr(6)),
                  ", rows ", absl::GetFlag(FLAGS_rows), ", over ",
                  transport.kind == client::TransportKind::kRing ? "a ring" : "gRPC",
                  transport.row_memory ? " with shared memory" : "");
  if (!transport.note.empty()) absl::StrAppend(&title, " (", transport.note, ")");
  return title;
}

// Prints and writes the results. Returns the exit code.
Outcome Publish(const bench::LoadOptions& options, const bench::Report& report, const Tally& tally,
                const std::string& title, const std::vector<bench::LoadInterval>& intervals,
                const std::string& json_file) {
  std::printf("%s\n", title.c_str());
  std::vector<bench::LatencyCurve> curves;
  for (auto& [clock, latency] : Latencies(tally, options.rate.has_value())) {
    std::printf("latency/%s is measured %s\n", clock.variant.c_str(), clock.text.c_str());
    curves.push_back({clock.variant, latency});
  }
  if (tally.latency.count() == 0) std::printf("no step was answered after the warm-up\n");
  const std::string plot = absl::GetFlag(FLAGS_plot);
  const bool written = bench::Publish(report, json_file) == 0 &&
                       (plot.empty() || bench::WriteFile(plot, bench::PlotLoad(title, curves, intervals)));
  if (!tally.first_refusal.empty()) {
    std::fprintf(stderr, "sortitionctl: rows were refused; the first: %s\n", tally.first_refusal.c_str());
  }
  if (tally.lost > 0) std::fprintf(stderr, "sortitionctl: rows are lost: sent, and neither drawn nor refused\n");
  if (tally.lost > 0) return Outcome::kDiffers;
  uint64_t late = 0;
  if (const auto found = tally.refused.find(v1::DEADLINE_PASSED); found != tally.refused.end()) late = found->second;
  if (tally.refused_rows() > late) return Outcome::kRefused;
  if (tally.refused_rows() > 0) return Outcome::kUnreachable;
  return written ? Outcome::kDone : Outcome::kWrongUse;
}

}  // namespace

Outcome Bench(const std::vector<std::string>& arguments) {
  if (absl::Status status = CheckFlags(arguments); !status.ok()) return Fail(status);
  auto options = Options();
  if (!options.ok()) return Fail(options.status());
  const auto control = bench::Control::Start();
  if (control != nullptr) options->control = &control->hiccups();
  Reading trial;
  if (absl::Status status = ReadServer(&trial); !status.ok()) return Fail(status);
  TakeInterrupts();
  auto load = Load::Start(*options);
  if (!load.ok()) return Fail(load.status());
  Progress progress(**load);
  WaitUntil((*load)->measured_from(), load->get(), &progress);
  if (options->warm_up > absl::ZeroDuration()) progress.Line(/*warm_up=*/true);
  auto before = Read(**load, control.get());
  if (!before.ok()) return Fail(before.status());
  WaitUntil(Load::Clock::time_point::max(), load->get(), &progress);
  (*load)->Stop();
  const bool over = (*load)->Wait(interrupted.load() ? kStopWait : absl::InfiniteDuration());
  progress.Line(/*warm_up=*/false);
  auto after = Read(**load, control.get());
  if (!after.ok()) {
    // A server that is gone has no metrics, but the load has its own counts.
    std::fprintf(stderr, "sortitionctl: %s\n", std::string(after.status().message()).c_str());
    absl::SetFlag(&FLAGS_metrics, "");
    after = Read(**load, control.get());
  }
  const bench::Report report = Results(*before, *after, *options);
  const Outcome outcome = Publish(*options, report, after->tally, TitleOf(*options, (*load)->transport()),
                                  progress.intervals(), WantsJson() ? arguments[0] : "");
  if (over) return outcome;
  std::fprintf(stderr, "sortitionctl: ended with steps in flight\n");
  std::fflush(nullptr);
  std::_Exit(static_cast<int>(outcome));  // their threads wait for a server
}

}  // namespace sortition::cli
