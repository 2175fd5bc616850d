// Steps over loopback: the client library and a real sortitiond, beside a raw TCP connection that carries the same
// bytes.
//
//   bench_service [--json FILE] [--steps N]
//
// step_N and step_N_p99: latency of one step of N rows (median and 99th percentile), from the call to its return, one
// step at a time. step_N_p99/undisturbed: its steps and round trips that overlap no hiccup of the machine.
// control_machine, control_threads: how late a thread on each core woke that slept meanwhile, by cause.
// rows_per_second_N: the same steps as a rate; its baseline is the rate at which the raw connection carries the rows.
// observe_step: cost of metrics for each step; the baseline is a step of one row.
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "client/bench/control.h"
#include "client/bench/logits.h"
#include "monitoring/metrics.h"
#include "service/clock.h"
#include "tests/bench/model.h"
#include "tests/bench/server.h"
#include "tests/bench/suite.h"
#include "tests/bench/wire/peers.h"

ABSL_FLAG(uint32_t, steps, 300, "steps measured for each number of rows");

namespace sortition::bench {
namespace {

constexpr uint32_t kVocabulary = 128256;
constexpr size_t kMostRows = 64;
constexpr size_t kPoolRows = 128;  // a step takes the next rows of the pool, so rows vary from step to step
constexpr size_t kAnswerBytesPerRow = 24;

struct Measured {
  absl::Time begin;
  absl::Time end;
};

struct Times {
  std::vector<Measured> step;
  std::vector<Measured> raw;
};

// Returns the microseconds of all, or of those that overlap none of the hiccups.
std::vector<double> Microseconds(const std::vector<Measured>& all, const service::Hiccups* hiccups = nullptr) {
  std::vector<double> times;
  for (const auto& [begin, end] : all) {
    if (hiccups != nullptr && hiccups->Within(begin, end) > absl::ZeroDuration()) continue;
    times.push_back(absl::ToDoubleMicroseconds(end - begin));
  }
  return times;
}

// Steps and raw round trips take turns, so that other work on the machine slows both alike.
Times Measure(client::Client* client, const std::vector<std::unique_ptr<client::Sequence>>& sequences,
              const Logits& pool, size_t rows, RawSocketPeer* raw) {
  const size_t steps = absl::GetFlag(FLAGS_steps);
  const size_t warm_up = 20;
  Times times;
  size_t next = 0;
  for (size_t i = 0; i < warm_up + steps; ++i) {
    // Rows are contiguous in the pool, and a step's rows never wrap around its end.
    if (next + rows > pool.count()) next = 0;
    client::Batch batch{v1::DTYPE_BF16, kVocabulary, {}};
    for (size_t row = 0; row < rows; ++row) batch.rows.push_back({sequences[row].get(), pool.row(next + row)});
    const service::SteadyClock clock;
    Measured step;
    step.begin = clock.Now();
    StepAll(client, batch);
    step.end = clock.Now();

    const std::span<const std::byte> bytes(pool.row(next), rows * pool.row_bytes());
    Measured sent;
    sent.begin = clock.Now();
    raw->Send({&bytes, 1}, rows * kAnswerBytesPerRow);
    sent.end = clock.Now();
    next += rows;
    if (i < warm_up) continue;
    times.step.push_back(step);
    times.raw.push_back(sent);
  }
  return times;
}

// Returns the microseconds of metrics of one step of one row.
double ObserveStep() {
  monitoring::PrometheusObserver observer({{.name = "cpu0", .kind = "cpu", .hardware = "any"}});
  constexpr int kSteps = 200000;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kSteps; ++i) {
    const absl::Duration varied = absl::Microseconds(20 + i % 1000);
    observer.MessageReceived(service::TransportType::kTcp, 256000);
    observer.StepReceived(1, 256000);
    observer.BatchStarted("cpu0", 1, service::RouteReason::kOnly);
    observer.BatchDone("cpu0", 1, varied, varied);
    observer.Count(service::Counter::kTokens, 1);
    observer.StepAnswered(varied);
    observer.MessageSent(service::TransportType::kTcp, 24);
  }
  return MicrosecondsSince(start) / kSteps;
}

int Run(RawSocketPeer* raw) {
  const auto server = StartServer({});
  client::ClientOptions options;
  options.targets = {server->address()};
  options.rows.form = client::RowFormOptions::Form::kFull;
  const auto client = Connect(std::move(options));
  const auto sequences = OpenSequences(client.get(), "bench", kMostRows, kVocabulary, ModelParameters());
  const Logits pool(Shape::kPeaked, kernels::DType::kBF16, kPoolRows, kVocabulary);

  const auto control = Control::Start();
  Report report("service", MachineName());
  for (const size_t rows : {size_t{1}, size_t{16}, size_t{64}}) {
    std::cerr << "step of " << rows << " rows\n";
    const Times times = Measure(client.get(), sequences, pool, rows, raw);
    const std::string name = absl::StrCat("step_", rows);
    const double step = Percentile(Microseconds(times.step), 50);
    const double floor = Percentile(Microseconds(times.raw), 50);
    report.Add({name, step, "us", floor});
    report.Add(
        {name + "_p99", Percentile(Microseconds(times.step), 99), "us", Percentile(Microseconds(times.raw), 99)});
    if (control != nullptr) {
      const service::Hiccups& hiccups = control->hiccups().hiccups();
      control->hiccups().AwaitPast(service::SteadyClock().Now());
      const std::vector<double> undisturbed = Microseconds(times.step, &hiccups);
      const std::vector<double> raw_undisturbed = Microseconds(times.raw, &hiccups);
      if (!undisturbed.empty() && !raw_undisturbed.empty()) {
        report.Add({name + "_p99/undisturbed", Percentile(undisturbed, 99), "us", Percentile(raw_undisturbed, 99)});
      }
    }
    report.Add({absl::StrCat("rows_per_second_", rows), 1e6 * static_cast<double>(rows) / step, "rows/s",
                1e6 * static_cast<double>(rows) / floor});
    if (rows == 1) report.Add({"observe_step", ObserveStep(), "us", step});
  }
  if (control != nullptr) ReportControl(control->Read(), &report);
  return Publish(report);
}

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  // Forks, so it comes before any thread.
  sortition::bench::RawSocketPeer raw(sortition::bench::RawSocketPeer::Kind::kTcp, sortition::bench::kAnyCore,
                                      /*finds_maximum=*/false);
  return sortition::bench::Run(&raw);
}
