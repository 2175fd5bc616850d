// Cost of a token for a deployment: bytes on the wire and processor time on both ends, by transport and rows a step.
//
//   bench_capacity [--json FILE] [--plot FILE] [--rows N]
//
// bytes_in and bytes_out: bytes of messages for each row; the baseline of bytes_in is the row itself.
// server_cpu_TRANSPORT_N: processor time of the server for each row in steps of N rows; the baseline is the part spent
// sampling. client_cpu_TRANSPORT_N: processor time of this process for each row, without a baseline.
// TRANSPORT is tcp or unix with whole rows in the stream, or compact: compact rows over TCP.
// rows_per_core_TRANSPORT_N: rows a second that one core of a server carries at that cost. observe_step: cost of
// metrics for each step; the baseline is the server's time for the cheapest step.
#include <time.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "client/demo/worker/server_process.h"
#include "kernels/check.h"
#include "monitoring/metrics.h"
#include "sortition/client.h"
#include "tests/bench/capacity/metrics_page.h"
#include "tests/bench/cpu/logits.h"
#include "tests/bench/report.h"

ABSL_FLAG(std::string, json, "", "file for the results as JSON");
ABSL_FLAG(std::string, plot, "", "file for a picture of the results (SVG)");
ABSL_FLAG(uint32_t, rows, 8192, "rows measured for each transport and number of rows a step");

namespace sortition::bench {
namespace {

constexpr uint32_t kVocabulary = 128256;
constexpr size_t kMostRows = 64;
constexpr size_t kPoolRows = 128;  // a step takes the next rows of the pool, so rows vary from step to step

double ReadClock(clockid_t clock) {
  timespec time;
  SORTITION_CHECK(clock_gettime(clock, &time) == 0);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

// Microseconds of processor time, and bytes, since the start.
struct Reading {
  double server_cpu;
  double client_cpu;
  double kernel;
  double bytes_in;
  double bytes_out;
};

class Server {
 public:
  explicit Server(const std::string& unix_path) : metrics_port_(FreePort()) {
    const std::string binary = (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "sortitiond").string();
    auto started =
        demo::ServerProcess::Start(binary,
                                   {absl::StrCat("--metrics_listen=127.0.0.1:", metrics_port_), "--cpu_threads=1",
                                    absl::StrCat("--listen=127.0.0.1:0,unix:", unix_path)},
                                   "");
    SORTITION_CHECK(started.ok());
    process_ = *std::move(started);
    SORTITION_CHECK(clock_getcpuclockid(process_->process().pid(), &clock_) == 0);
  }

  std::string address() const { return process_->address(); }

  Reading Read() const {
    return {ReadClock(clock_), ReadClock(CLOCK_PROCESS_CPUTIME_ID),
            1e6 * ReadMetric(metrics_port_, "sortition_kernel_seconds_sum"),
            ReadMetric(metrics_port_, "sortition_received_bytes_total"),
            ReadMetric(metrics_port_, "sortition_sent_bytes_total")};
  }

 private:
  const uint16_t metrics_port_;
  std::unique_ptr<demo::ServerProcess> process_;
  clockid_t clock_ = 0;
};

std::vector<std::unique_ptr<client::Sequence>> OpenSequences(client::Client* client) {
  std::vector<std::unique_ptr<client::Sequence>> sequences;
  for (size_t i = 0; i < kMostRows; ++i) {
    client::SequenceOptions options;
    options.request_id = absl::StrCat("bench-", i);
    options.parameters.set_temperature(0.8f);
    options.parameters.set_top_k(50);
    options.parameters.set_top_p(0.95f);
    options.seed = i;
    options.vocabulary_size = kVocabulary;
    auto opened = client->Open(std::move(options));
    SORTITION_CHECK(opened.ok());
    sequences.push_back(std::move(*opened));
  }
  return sequences;
}

void Run(client::Client* client, const std::vector<std::unique_ptr<client::Sequence>>& sequences, const Logits& pool,
         size_t rows_a_step, size_t steps) {
  size_t next = 0;
  for (size_t i = 0; i < steps; ++i) {
    if (next + rows_a_step > pool.count()) next = 0;
    client::Batch batch{v1::DTYPE_BF16, kVocabulary, {}};
    for (size_t row = 0; row < rows_a_step; ++row) batch.rows.push_back({sequences[row].get(), pool.row(next + row)});
    next += rows_a_step;
    const auto outcomes = client->Step(batch);
    SORTITION_CHECK(outcomes.ok());
    for (const auto& outcome : *outcomes) SORTITION_CHECK(std::holds_alternative<v1::DrawResult>(outcome));
  }
}

// The calls of one step of one row, in microseconds.
double ObserveStep() {
  monitoring::PrometheusObserver observer({{.name = "cpu0", .kind = "cpu", .hardware = "any"}});
  constexpr int kSteps = 200000;
  const double start = ReadClock(CLOCK_PROCESS_CPUTIME_ID);
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
  return (ReadClock(CLOCK_PROCESS_CPUTIME_ID) - start) / kSteps;
}

int Main() {
  const Logits pool(Shape::kPeaked, kernels::DType::kBF16, kPoolRows, kVocabulary);
  const std::filesystem::path socket =
      std::filesystem::temp_directory_path() / absl::StrCat("bench_capacity_", FreePort(), ".sock");
  Report report("capacity", MachineName());
  double cheapest_step = std::numeric_limits<double>::infinity();
  const Server server(socket.string());
  for (const std::string transport : {"tcp", "unix", "compact"}) {
    client::ClientOptions options;
    options.targets = {transport == "unix" ? absl::StrCat("unix:", socket.string()) : server.address()};
    options.rows.form = transport == "compact" ? client::RowOptions::Form::kCompact : client::RowOptions::Form::kFull;
    auto client = client::Client::Connect(std::move(options));
    SORTITION_CHECK(client.ok());
    const auto sequences = OpenSequences(client->get());
    for (const size_t rows_a_step : {size_t{1}, size_t{16}, size_t{64}}) {
      std::cerr << transport << ", " << rows_a_step << " rows a step\n";
      const size_t steps = absl::GetFlag(FLAGS_rows) / rows_a_step;
      Run(client->get(), sequences, pool, rows_a_step, 8);
      const Reading before = server.Read();
      Run(client->get(), sequences, pool, rows_a_step, steps);
      const Reading after = server.Read();
      const double rows = static_cast<double>(steps * rows_a_step);
      const std::string name = absl::StrCat(transport, "_", rows_a_step);
      const double server_cpu = (after.server_cpu - before.server_cpu) / rows;
      // Compact rows run on no device.
      const std::optional<double> sampling =
          transport == "compact" ? std::nullopt : std::optional((after.kernel - before.kernel) / rows);
      report.Add({"server_cpu_" + name, server_cpu, "us/row", sampling});
      report.Add({"client_cpu_" + name, (after.client_cpu - before.client_cpu) / rows, "us/row", std::nullopt});
      report.Add({"rows_per_core_" + name, 1e6 / server_cpu, "rows/s", std::nullopt});
      if (rows_a_step == 1) cheapest_step = std::min(cheapest_step, server_cpu);
      if (transport != "unix") {
        const std::string of = transport == "compact" ? "compact_" : "";
        report.Add({absl::StrCat("bytes_in_", of, rows_a_step), (after.bytes_in - before.bytes_in) / rows, "B/row",
                    static_cast<double>(pool.row_bytes())});
        report.Add({absl::StrCat("bytes_out_", of, rows_a_step), (after.bytes_out - before.bytes_out) / rows, "B/row",
                    std::nullopt});
      }
    }
  }
  report.Add({"observe_step", ObserveStep(), "us", cheapest_step});
  return Publish(report, absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_plot));
}

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return sortition::bench::Main();
}
