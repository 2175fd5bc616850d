// The data plane: cost of each transport of logits to the service, beside the plainest transport there is.
//
//   bench_wire [--json FILE] [--rounds N] [--parts PART,...] [--client_core N] [--server_core N]
//
// The client's end and the server's run on one core each. Rows are greedy: the service reads each float once, as the
// peers do, so that only the wire differs. Ratios are of medians; contenders take turns input by input.
//
// inline_tcp_1m, inline_uds_1m: GB/s of rows of 1 MB, eight to a turn, within the stream; the baseline is raw TCP.
// inline_vs_protobuf_1m: inline_tcp_1m again; the baseline is the contract's messages as protobuf and gRPC carry them.
// raw_uds_1m: a raw Unix socket beside raw TCP. shm_vs_tcp_1m: the rows copied into shared memory; the baseline is raw
// TCP. shm_direct_vs_tcp_1m: the rows lie there already. ring_vs_tcp_1m, ring_direct_vs_tcp_1m: the same with the
// messages in rings. cpu_s_per_gb_*: processor seconds of both ends for a GB; the baseline is raw TCP.
//
// shm_control: microseconds of a message and its answer over rings in shared memory (the close of an unknown sequence),
// both ends asleep until their turn; the baseline is a round trip over a blocking futex. shm_spin: the same, neither
// end sleeps.
//
// step_shm_narrow, step_ring_narrow: a step of one row of 64 floats. step_KIND_N: a step of N rows x 128256 bf16
// (temperature, top-k, top-p, min-p), one of sixteen that follow one another; the baseline is the kernels alone over
// the same rows on one thread. step_KIND_N_over: the difference. single_KIND_N: one step at a time, after the turns of
// all other contenders, which have emptied the caches. device_N: the same rows given to a CPU device of one thread,
// without the service; device_changing_N: as rows that another process may change.
//
// shm_vs_inprocess_64, ring_vs_inprocess_64: 64 rows in shared memory; the baseline is the same client in process; both
// with one kernel thread. ranks_KIND_16: a step of 16 rows x 128256 bf16 in shards of four ranks; the baseline is one
// client with the whole rows.
//
// guard_KIND_1m, guard_KIND_narrow: microseconds of eight rows of 1 MB, and of a step of one row of 64 floats, within
// the stream; the baseline is a server whose guard of HTTP/2 is off. guard_KIND_narrow_cpu: the server's processor time
// for all steps of the latter.
//
// control_machine, control_threads: how late a thread on each core woke that slept meanwhile, by cause. Where the first
// is long at p50, the machine has no medians to measure.
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/bench/control.h"
#include "client/bench/logits.h"
#include "client/cpp/transport/memory_link.h"
#include "devices/cpu/cpu_device.h"
#include "kernels/check.h"
#include "kernels/cpu/sample_row.h"
#include "service/memory/ring.h"
#include "tests/bench/server.h"
#include "tests/bench/suite.h"
#include "tests/bench/wire/bench_worker.h"
#include "tests/bench/wire/peers.h"
#include "tests/bench/wire/ranks.h"

ABSL_FLAG(uint32_t, rounds, 10, "rounds over all inputs");
ABSL_FLAG(std::vector<std::string>, parts,
          std::vector<std::string>({"throughput", "control", "steps", "ranks", "guard"}), "parts to run");
ABSL_FLAG(int, client_core, 0, "core of the client");
ABSL_FLAG(int, server_core, 1, "core of the server");

namespace sortition::bench {
namespace {

constexpr size_t kWideRows = 32;
constexpr size_t kAtOnce = 8;     // rows of 1 MB in flight
constexpr uint32_t kNarrow = 64;  // floats
constexpr uint32_t kVocabulary = 128256;
constexpr size_t kModelRows = 64;
constexpr size_t kMostRows = 64;
constexpr size_t kInARow = 16;  // steps of a stream, as a model takes them

v1::SamplingParameters Greedy() {
  v1::SamplingParameters parameters;
  parameters.set_temperature(0);
  return parameters;
}

// A stream over rings, with no client library between.
class RingControl {
 public:
  RingControl(const std::string& target, bool spin) : spin_(spin) {
    auto link = client::MemoryLink::Connect(target);
    SORTITION_CHECK(link.ok());
    link_ = *std::move(link);
    auto region = link_->OpenRing();
    SORTITION_CHECK(region.ok());
    region_ = *std::move(region);
    const service::RingPair pair(region_->bytes().data());
    writer_.emplace(pair.request_words, pair.request_bytes);
    reader_.emplace(pair.answer_words, pair.answer_bytes);
    v1::StreamRequest hello;
    hello.mutable_hello()->set_worker_session("bench");
    RoundTrip(hello.SerializeAsString());
    v1::StreamRequest close;
    close.mutable_close()->set_request_id("unknown");
    close.mutable_close()->set_epoch(1);
    close_ = close.SerializeAsString();
  }

  void RoundTrip() { RoundTrip(close_); }

 private:
  void RoundTrip(const std::string& bytes) {
    const std::span<const std::byte> part = std::as_bytes(std::span(bytes.data(), bytes.size()));
    SORTITION_CHECK(writer_->Put({&part, 1}) == service::RingStatus::kDone);
    while (reader_->Take(&answer_) != service::RingStatus::kDone) {
      if (spin_) {
        service::SpinPause();
      } else {
        reader_->Sleep(absl::Seconds(1));
      }
    }
  }

  const bool spin_;
  std::unique_ptr<client::MemoryLink> link_;
  std::unique_ptr<client::MappedRegion> region_;
  std::optional<service::RingWriter> writer_;
  std::optional<service::RingReader> reader_;
  std::string close_;
  std::string answer_;
};

class WireBench {
 public:
  WireBench(ProtobufPeer* protobuf, RawSocketPeer* tcp, RawSocketPeer* uds, FutexPeer* futex,
            const bench::Control* control)
      : control_(control), protobuf_(*protobuf), tcp_(*tcp), uds_(*uds), futex_(*futex) {
    const auto temporary = std::filesystem::temp_directory_path();
    const std::string unix_target = absl::StrCat("unix:", (temporary / absl::StrCat("wire_", getpid())).string());
    unix_target_ = unix_target;
    server_ = Start({"--cpu_threads=1", absl::StrCat("--listen=127.0.0.1:0,", unix_target),
                     absl::StrCat("--memory_listen=", MemoryTarget())});
    sleepy_server_ = Start({"--cpu_threads=1", "--ring_spin=0", absl::StrCat("--memory_listen=", SleepyTarget())});
  }

  int Run() {
    for (const std::string& part : absl::GetFlag(FLAGS_parts)) {
      if (part == "throughput") Throughput();
      if (part == "control") Control();
      if (part == "steps") Steps();
      if (part == "ranks") MeasureRanks(unix_target_, absl::GetFlag(FLAGS_rounds) * 16, &report_);
      if (part == "guard") Guard();
    }
    if (control_ != nullptr) ReportControl(control_->Read(), &report_);
    return Publish(report_);
  }

 private:
  static std::unique_ptr<process::ServerProcess> Start(const std::vector<std::string>& flags) {
    return StartServer(flags, absl::GetFlag(FLAGS_server_core));
  }
  std::string MemoryTarget() const { return unix_target_ + "_memory"; }
  std::string SleepyTarget() const { return unix_target_ + "_sleepy"; }

  void Throughput() {
    const Logits logits(Shape::kPeaked, kernels::DType::kF32, kWideRows, kWide);
    const uint64_t message = logits.row_bytes();
    Worker tcp(server_->address(), TransportKind::kGrpc, message, /*row_memory=*/false);
    Worker uds(unix_target_, TransportKind::kGrpc, message, /*row_memory=*/false);
    Worker shm(unix_target_, TransportKind::kGrpc, message);
    Worker ring(MemoryTarget(), TransportKind::kRing, message);
    for (Worker* worker : {&tcp, &uds, &shm, &ring}) worker->Open(kAtOnce, kWide, Greedy());
    const client::Client::RowMemory placed = Place(logits, &shm.client());
    const client::Client::RowMemory ring_placed = Place(logits, &ring.client());

    using Rows = std::vector<std::span<const std::byte>>;
    const auto rows_at = [&](size_t input, const std::byte* from) {
      Rows rows;
      for (size_t i = 0; i < kAtOnce; ++i) {
        const size_t row = (input * kAtOnce + i) % kWideRows;
        rows.emplace_back(from == nullptr ? logits.row(row) : from + row * message, message);
      }
      return rows;
    };
    double cpu[3] = {};
    double counted[3] = {};  // GB
    const auto counting = [&](int which, pid_t other, auto run) {
      const double before = Seconds(CLOCK_PROCESS_CPUTIME_ID) + CpuSeconds(other);
      run();
      cpu[which] += Seconds(CLOCK_PROCESS_CPUTIME_ID) + CpuSeconds(other) - before;
      counted[which] += 1e-9 * static_cast<double>(kAtOnce * message);
    };
    const pid_t server = server_->process().pid();
    const std::vector<Contender> contenders = {
        {"raw_tcp_1m", [&](size_t i) { counting(2, tcp_.pid(), [&] { tcp_.Send(rows_at(i, nullptr)); }); }},
        {"raw_uds_1m", [&](size_t i) { uds_.Send(rows_at(i, nullptr)); }},
        {"protobuf_1m", [&](size_t i) { protobuf_.Send(rows_at(i, nullptr)); }},
        {"inline_tcp_1m", [&](size_t i) { counting(0, server, [&] { tcp.StepEach(rows_at(i, nullptr)); }); }},
        {"inline_uds_1m", [&](size_t i) { uds.StepEach(rows_at(i, nullptr)); }},
        {"shm_1m", [&](size_t i) { counting(1, server, [&] { shm.StepEach(rows_at(i, nullptr)); }); }},
        {"shm_direct_1m", [&](size_t i) { shm.StepEach(rows_at(i, placed.data.get())); }},
        {"ring_1m", [&](size_t i) { ring.StepEach(rows_at(i, nullptr)); }},
        {"ring_direct_1m", [&](size_t i) { ring.StepEach(rows_at(i, ring_placed.data.get())); }},
    };
    const auto rate = [&](double microseconds) {
      return static_cast<double>(kAtOnce * message) / microseconds / 1e3;  // GB/s
    };
    const auto measure = [&](const std::string& prefix, size_t rounds, size_t in_a_row) {
      const auto medians = MeasureInterleaved(
          contenders,
          {.inputs = kWideRows / kAtOnce, .rounds = rounds, .prepare = {}, .stride = 1, .in_a_row = in_a_row});
      const double tcp_rate = rate(medians[0]);
      report_.Add({prefix + "raw_uds_1m", rate(medians[1]), "GB/s", tcp_rate});
      report_.Add({prefix + "inline_tcp_1m", rate(medians[3]), "GB/s", tcp_rate});
      report_.Add({prefix + "inline_uds_1m", rate(medians[4]), "GB/s", tcp_rate});
      report_.Add({prefix + "inline_vs_protobuf_1m", rate(medians[3]), "GB/s", rate(medians[2])});
      report_.Add({prefix + "shm_vs_tcp_1m", rate(medians[5]), "GB/s", tcp_rate});
      report_.Add({prefix + "shm_direct_vs_tcp_1m", rate(medians[6]), "GB/s", tcp_rate});
      report_.Add({prefix + "ring_vs_tcp_1m", rate(medians[7]), "GB/s", tcp_rate});
      report_.Add({prefix + "ring_direct_vs_tcp_1m", rate(medians[8]), "GB/s", tcp_rate});
    };
    measure("", absl::GetFlag(FLAGS_rounds), kInARow);
    const auto per_gigabyte = [&](int which) { return cpu[which] / counted[which]; };
    report_.Add({"cpu_s_per_gb_inline", per_gigabyte(0), "s/GB", per_gigabyte(2)});
    report_.Add({"cpu_s_per_gb_shm", per_gigabyte(1), "s/GB", per_gigabyte(2)});
    measure("single_", absl::GetFlag(FLAGS_rounds) * 4, 1);
  }

  void Guard() {
    const std::string open_unix = absl::StrCat(unix_target_, "_open");
    const auto open_server = Start(
        {"--cpu_threads=1", "--unguarded_http2", absl::StrCat("--listen=127.0.0.1:0,", open_unix), "--memory_listen="});
    const Logits wide(Shape::kPeaked, kernels::DType::kF32, kWideRows, kWide);
    const Logits narrow(Shape::kPeaked, kernels::DType::kF32, 64, kNarrow);
    const std::pair<const char*, std::pair<std::string, std::string>> kinds[] = {
        {"tcp", {server_->address(), open_server->address()}}, {"uds", {unix_target_, open_unix}}};
    for (const auto& [kind, targets] : kinds) {
      Worker guarded(targets.first, TransportKind::kGrpc, wide.row_bytes(), /*row_memory=*/false);
      Worker open(targets.second, TransportKind::kGrpc, wide.row_bytes(), /*row_memory=*/false);
      const auto send = [&](Worker* worker) {
        return [&, worker](size_t input) {
          std::vector<std::span<const std::byte>> rows;
          for (size_t i = 0; i < kAtOnce; ++i) {
            rows.emplace_back(wide.row((input * kAtOnce + i) % kWideRows), wide.row_bytes());
          }
          worker->StepEach(rows);
        };
      };
      for (Worker* worker : {&guarded, &open}) worker->Open(kAtOnce, kWide, Greedy());
      const auto wide_times = MeasureInterleaved(
          {{"open", send(&open)}, {"guarded", send(&guarded)}},
          {.inputs = kWideRows / kAtOnce, .rounds = absl::GetFlag(FLAGS_rounds) * 16, .prepare = {}, .stride = 1});
      report_.Add({absl::StrCat("guard_", kind, "_1m"), wide_times[1], "us", wide_times[0]});
      Worker guarded_narrow(targets.first, TransportKind::kGrpc, 1 << 20, /*row_memory=*/false);
      Worker open_narrow(targets.second, TransportKind::kGrpc, 1 << 20, /*row_memory=*/false);
      for (Worker* worker : {&guarded_narrow, &open_narrow}) worker->Open(1, kNarrow, Greedy());
      double cpu[2] = {};
      const auto step = [&](Worker* worker, const std::unique_ptr<process::ServerProcess>& of, double* seconds) {
        return [&narrow, server = of->process().pid(), worker, seconds](size_t input) {
          const double before = CpuSeconds(server);
          worker->Step(v1::DTYPE_F32, kNarrow, narrow.row(input), 1, narrow.row_bytes());
          *seconds += CpuSeconds(server) - before;
        };
      };
      const auto narrow_times = MeasureInterleaved(
          {{"open", step(&open_narrow, open_server, &cpu[0])}, {"guarded", step(&guarded_narrow, server_, &cpu[1])}},
          {.inputs = 64, .rounds = absl::GetFlag(FLAGS_rounds) * 16, .prepare = {}, .stride = 1});
      report_.Add({absl::StrCat("guard_", kind, "_narrow"), narrow_times[1], "us", narrow_times[0]});
      report_.Add({absl::StrCat("guard_", kind, "_narrow_cpu"), 1e3 * cpu[1], "ms", 1e3 * cpu[0]});
    }
  }

  void Control() {
    const Logits logits(Shape::kPeaked, kernels::DType::kF32, 64, kNarrow);
    Worker shm(unix_target_, TransportKind::kGrpc, 1 << 20);
    Worker ring(MemoryTarget(), TransportKind::kRing, 1 << 20);
    for (Worker* worker : {&shm, &ring}) worker->Open(1, kNarrow, Greedy());
    const client::Client::RowMemory shm_rows = Place(logits, &shm.client());
    const client::Client::RowMemory ring_rows = Place(logits, &ring.client());
    RingControl sleeping(SleepyTarget(), false);
    RingControl spinning(MemoryTarget(), true);
    const auto step = [&](Worker* worker, const client::Client::RowMemory& rows, size_t input) {
      worker->Step(v1::DTYPE_F32, kNarrow, rows.data.get() + input * logits.row_bytes(), 1, logits.row_bytes());
    };
    const auto medians = MeasureInterleaved(
        {
            {"futex", [&](size_t) { futex_.RoundTrip(); }},
            {"shm_control", [&](size_t) { sleeping.RoundTrip(); }},
            {"shm_spin", [&](size_t) { spinning.RoundTrip(); }},
            {"step_shm_narrow", [&](size_t i) { step(&shm, shm_rows, i); }},
            {"step_ring_narrow", [&](size_t i) { step(&ring, ring_rows, i); }},
        },
        {.inputs = 64, .rounds = absl::GetFlag(FLAGS_rounds) * 4, .prepare = {}, .stride = 1, .in_a_row = kInARow});
    report_.Add({"shm_control", medians[1], "us", medians[0]});
    report_.Add({"shm_spin", medians[2], "us", medians[0]});
    report_.Add({"step_shm_narrow", medians[3], "us", medians[0]});
    report_.Add({"step_ring_narrow", medians[4], "us", medians[0]});
  }

  void Steps() {
    const Logits logits(Shape::kPeaked, kernels::DType::kBF16, kModelRows, kVocabulary);
    const size_t stride = logits.row_bytes();
    Worker tcp(server_->address(), TransportKind::kGrpc, 2 << 20, /*row_memory=*/false);
    Worker shm(unix_target_, TransportKind::kGrpc, 2 << 20);
    Worker ring(MemoryTarget(), TransportKind::kRing, 2 << 20);
    Worker in_process("", TransportKind::kAuto, 2 << 20);
    for (Worker* worker : {&tcp, &shm, &ring, &in_process}) worker->Open(kMostRows, kVocabulary, ModelParameters());
    const client::Client::RowMemory placed = Place(logits, &shm.client());
    const client::Client::RowMemory ring_rows = Place(logits, &ring.client());
    const client::Client::RowMemory local = Place(logits, &in_process.client());

    kernels::cpu::Scratch scratch;
    kernels::RowParameters compiled;
    law::Compile(UsualOptions(), &compiled);
    const auto request = [&](const std::byte* logits, uint64_t row) {
      kernels::RowRequest made;
      made.logits = logits;
      made.dtype = kernels::DType::kBF16;
      made.live_vocabulary = kVocabulary;
      made.parameters = &compiled;
      made.noise = {row, 0, 0};
      return made;
    };
    devices::CpuDevice device({.threads = 1});
    const auto run_on_device = [&](const std::byte* logits, size_t rows, bool may_change) {
      std::vector<devices::DeviceRow> batch(rows);
      for (size_t row = 0; row < rows; ++row) {
        batch[row].request = request(nullptr, row);
        batch[row].segments.push_back({logits + row * stride, stride});
        batch[row].may_change = may_change;
      }
      absl::Notification done;
      device.Submit(std::move(batch), [&](const devices::BatchOutput& result) {
        SORTITION_CHECK(result.status.ok());
        done.Notify();
      });
      done.WaitForNotification();
    };
    for (const size_t rows : {size_t{1}, size_t{16}, size_t{64}}) {
      const size_t inputs = kModelRows / rows;
      const auto at = [&](const client::Client::RowMemory& memory, size_t input) {
        return memory.data.get() + input * rows * stride;
      };
      const auto step = [&](Worker* worker, const client::Client::RowMemory& memory) {
        return [=](size_t input) { worker->Step(v1::DTYPE_BF16, kVocabulary, at(memory, input), rows, stride); };
      };
      const auto sample = [&](size_t input) {
        kernels::RowOutput answer;
        for (size_t row = 0; row < rows; ++row) {
          kernels::cpu::SampleRow(request(at(local, input) + row * stride, row), &scratch, &answer);
        }
      };
      const std::vector<Contender> contenders = {
          {"kernels", sample},
          {"in_process", step(&in_process, local)},
          {"step_shm", step(&shm, placed)},
          {"step_ring", step(&ring, ring_rows)},
          {"step_tcp", step(&tcp, local)},
          // Not reported: a contender right behind TCP takes 10 to 15 % longer than elsewhere.
          {"after_tcp", sample},
          {"device", [&](size_t i) { run_on_device(at(local, i), rows, false); }},
          {"device_changing", [&](size_t i) { run_on_device(at(local, i), rows, true); }},
      };
      const uint32_t rounds = absl::GetFlag(FLAGS_rounds);
      const auto medians = MeasureInterleaved(contenders, {.inputs = inputs,
                                                           .rounds = std::max<size_t>(rounds * rows / kInARow, 1),
                                                           .prepare = {},
                                                           .stride = inputs > 4 ? inputs / 4 : 1,
                                                           .in_a_row = kInARow});
      const auto alone = MeasureInterleaved({contenders.begin(), contenders.begin() + 5},
                                            {.inputs = inputs,
                                             .rounds = std::max<size_t>(rounds * rows / 4, 1),
                                             .prepare = {},
                                             .stride = inputs > 4 ? inputs / 4 : 1});
      for (const auto& [name, index] :
           {std::pair("in_process", 1), std::pair("shm", 2), std::pair("ring", 3), std::pair("tcp", 4)}) {
        const std::string of_rows = absl::StrCat(name, "_", rows);
        report_.Add({absl::StrCat("step_", of_rows), medians[index], "us", medians[0]});
        report_.Add({absl::StrCat("step_", of_rows, "_over"), medians[index] - medians[0], "us", std::nullopt});
        report_.Add({absl::StrCat("single_", of_rows), alone[index], "us", alone[0]});
      }
      report_.Add({absl::StrCat("device_", rows), medians[6], "us", medians[0]});
      report_.Add({absl::StrCat("device_changing_", rows), medians[7], "us", medians[0]});
      if (rows == kMostRows) {
        report_.Add({"shm_vs_inprocess_64", medians[2], "us", medians[1]});
        report_.Add({"ring_vs_inprocess_64", medians[3], "us", medians[1]});
      }
    }
  }

  const bench::Control* const control_;  // null if there is none
  ProtobufPeer& protobuf_;
  RawSocketPeer& tcp_;
  RawSocketPeer& uds_;
  FutexPeer& futex_;
  std::unique_ptr<process::ServerProcess> server_;
  std::unique_ptr<process::ServerProcess> sleepy_server_;  // its rings sleep at once
  std::string unix_target_;
  Report report_{"wire", MachineName()};
};

int Main() {
  const int server_core = absl::GetFlag(FLAGS_server_core);
  // Forked before this process has threads, and before it knows gRPC.
  ProtobufPeer protobuf(server_core);
  RawSocketPeer tcp(RawSocketPeer::Kind::kTcp, server_core);
  RawSocketPeer uds(RawSocketPeer::Kind::kUnix, server_core);
  FutexPeer futex(server_core);
  const auto control = Control::Start();  // on all cores, before this thread has one
  RunOnCore(absl::GetFlag(FLAGS_client_core));
  return WireBench(&protobuf, &tcp, &uds, &futex, control.get()).Run();
}

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return sortition::bench::Main();
}
