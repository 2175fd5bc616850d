// Steps over loopback: the client library and a real sortitiond, beside a raw TCP connection that carries the same
// bytes.
//
//   bench_service [--json FILE] [--plot FILE] [--steps N]
//
// step_N and step_N_p99: latency of one step of N rows (median and 99th percentile), from the call to its return, one
// step at a time. rows_per_second_N: the same steps as a rate; its baseline is the rate at which the raw connection
// carries the rows. observe_step: cost of metrics for each step; the baseline is a step of one row.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "client/bench/logits.h"
#include "client/bench/report.h"
#include "client/demo/worker/server_process.h"
#include "kernels/check.h"
#include "monitoring/metrics.h"
#include "sortition/client.h"
#include "tests/bench/service/raw_tcp.h"

ABSL_FLAG(std::string, json, "", "file for the results as JSON");
ABSL_FLAG(std::string, plot, "", "file for a picture of the results (SVG)");
ABSL_FLAG(uint32_t, steps, 300, "steps measured for each number of rows");

namespace sortition::bench {
namespace {

constexpr uint32_t kVocabulary = 128256;
constexpr size_t kMostRows = 64;
constexpr size_t kPoolRows = 128;  // a step takes the next rows of the pool, so rows vary from step to step
constexpr size_t kAnswerBytesPerRow = 24;

using Clock = std::chrono::steady_clock;

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double Percentile(std::vector<double> values, size_t percent) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, values.size() * percent / 100)];
}

std::vector<std::unique_ptr<client::Sequence>> OpenSequences(client::Client* client) {
  std::vector<std::unique_ptr<client::Sequence>> sequences;
  for (size_t i = 0; i < kMostRows; ++i) {
    client::SequenceOptions options;
    options.request_id = absl::StrCat("bench-", i);
    options.parameters.set_temperature(0.8f);
    options.parameters.set_top_k(50);
    options.parameters.set_top_p(0.95f);
    options.parameters.set_min_p(0.05f);
    options.seed = i;
    options.vocabulary_size = kVocabulary;
    auto opened = client->Open(std::move(options));
    SORTITION_CHECK(opened.ok());
    sequences.push_back(std::move(*opened));
  }
  return sequences;
}

struct Times {
  std::vector<double> step;  // microseconds
  std::vector<double> raw;
};

// Steps and raw round trips take turns, so that other work on the machine slows both alike.
Times Measure(client::Client* client, const std::vector<std::unique_ptr<client::Sequence>>& sequences,
              const Logits& pool, size_t rows, RawTcpPeer* raw) {
  const size_t steps = absl::GetFlag(FLAGS_steps);
  const size_t warm_up = 20;
  Times times;
  size_t next = 0;
  for (size_t i = 0; i < warm_up + steps; ++i) {
    // Rows are contiguous in the pool, and a step's rows never wrap around its end.
    if (next + rows > pool.count()) next = 0;
    client::Batch batch{v1::DTYPE_BF16, kVocabulary, {}};
    for (size_t row = 0; row < rows; ++row) batch.rows.push_back({sequences[row].get(), pool.row(next + row)});
    const Clock::time_point start = Clock::now();
    const auto outcomes = client->Step(batch);
    const double step = MicrosecondsSince(start);
    SORTITION_CHECK(outcomes.ok());
    for (const client::RowResult& outcome : *outcomes) SORTITION_CHECK(std::holds_alternative<v1::DrawResult>(outcome));

    const Clock::time_point raw_start = Clock::now();
    raw->RoundTrip({pool.row(next), rows * pool.row_bytes()}, rows * kAnswerBytesPerRow);
    const double raw_time = MicrosecondsSince(raw_start);
    next += rows;
    if (i < warm_up) continue;
    times.step.push_back(step);
    times.raw.push_back(raw_time);
  }
  return times;
}

// Returns the microseconds of metrics of one step of one row.
double ObserveStep() {
  monitoring::PrometheusObserver observer({{.name = "cpu0", .kind = "cpu", .hardware = "any"}});
  constexpr int kSteps = 200000;
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < kSteps; ++i) {
    const absl::Duration varied = absl::Microseconds(20 + i % 1000);
    observer.MessageReceived(service::Transport::kTcp, 256000);
    observer.StepReceived(1, 256000);
    observer.BatchStarted("cpu0", 1, service::RouteReason::kOnly);
    observer.BatchDone("cpu0", 1, varied, varied);
    observer.TokensDrawn(1);
    observer.StepAnswered(varied);
    observer.MessageSent(service::Transport::kTcp, 24);
  }
  return MicrosecondsSince(start) / kSteps;
}

std::string ServerBinary() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "sortitiond").string();
}

int Run(RawTcpPeer* raw) {
  auto server = demo::ServerProcess::Start(ServerBinary(), {}, "");
  if (!server.ok()) {
    std::cerr << server.status().message() << "\n";
    return 1;
  }
  client::ClientOptions options;
  options.targets = {(*server)->address()};
  options.rows.form = client::RowOptions::Form::kFull;
  auto client = client::Client::Connect(std::move(options));
  SORTITION_CHECK(client.ok());
  const auto sequences = OpenSequences(client->get());
  const Logits pool(Shape::kPeaked, kernels::DType::kBF16, kPoolRows, kVocabulary);

  Report report("service", MachineName());
  for (const size_t rows : {size_t{1}, size_t{16}, size_t{64}}) {
    std::cerr << "step of " << rows << " rows\n";
    const Times times = Measure(client->get(), sequences, pool, rows, raw);
    const std::string name = absl::StrCat("step_", rows);
    const double step = Percentile(times.step, 50);
    const double floor = Percentile(times.raw, 50);
    report.Add({name, step, "us", floor});
    report.Add({name + "_p99", Percentile(times.step, 99), "us", Percentile(times.raw, 99)});
    report.Add({absl::StrCat("rows_per_second_", rows), 1e6 * static_cast<double>(rows) / step, "rows/s",
                1e6 * static_cast<double>(rows) / floor});
    if (rows == 1) report.Add({"observe_step", ObserveStep(), "us", step});
  }
  return Publish(report, absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_plot));
}

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  sortition::bench::RawTcpPeer raw;  // forks, so it comes before any thread
  return sortition::bench::Run(&raw);
}
