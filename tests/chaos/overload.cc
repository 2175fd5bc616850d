// More load than there is capacity for, on a real sortitiond and streams that check every token.
//
//   overload [--seconds=N] [--seed=S] [--factor=F] [--share_error=E] [--plant=admission|shares|token]
//
// Two phases alternate, so that other work on the machine slows both alike. In the first, streams wait for their
// answers, which gives the capacity. In the second, streams that do not wait offer F times this rate, with unequal
// demands, beside one that reads no answer. Judge lists the expectations. The device is one slow thread, so that the
// device and not the load is the bottleneck. Time for which that thread waits for a processor, because the machine or
// its host has other work, is not counted.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/process/server_process.h"
#include "kernels/check.h"
#include "service/limits.h"
#include "tests/chaos/load_stream.h"

ABSL_FLAG(double, seconds, 300, "of load");
ABSL_FLAG(uint64_t, seed, 1, "of when steps are sent");
ABSL_FLAG(double, factor, 4, "of what is offered to what there is capacity for");
ABSL_FLAG(double, share_error, 0.1, "by which a worker's tokens may differ from what is due");
ABSL_FLAG(std::string, plant, "", "what must be found: admission, shares or token");

namespace sortition::testing {
namespace {

using Clock = LoadStream::Clock;

constexpr double kRoundSeconds = 2;
constexpr double kPeakPart = 0.3;             // of a round
constexpr double kSettleSeconds = 0.25;       // at the beginning of a phase, not counted
constexpr uint32_t kClosedRows = 64;          // of each stream at the peak
constexpr double kLeastGoodput = 0.9;         // of the peak
constexpr double kMostRefusalMs = 10;         // p99, beyond the machine's own delays of threads
constexpr double kHops = 4;                   // threads and sockets on the way of a refusal, which all may wait
constexpr uint64_t kMostReceived = 64 << 20;  // --max_received_bytes, the least there may be
constexpr uint64_t kMostMessage = 1 << 20;

struct Worker {
  double part;    // of the offered rows
  uint32_t rows;  // of a step
};
// At four times capacity the first offers half of an equal share, the others two, four and more than nine shares.
constexpr Worker kWorkers[] = {{1. / 32, 4}, {1. / 8, 8}, {1. / 4, 8}, {19. / 32, 16}};
constexpr size_t kCount = std::size(kWorkers);

double Percentile99(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<ptrdiff_t>(values.size() * 99 / 100);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

double Median(std::vector<double> values) {
  const auto at = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

uint64_t MemoryOf(pid_t pid, const std::string& name) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    uint64_t kib = 0;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar("\t "), absl::SkipEmpty());
    if (words.size() > 1 && words[0] == name && absl::SimpleAtoi(words[1], &kib)) return kib << 10;
  }
  return 0;
}

// Processor time that the threads of a process have used and waited for, in seconds.
struct ThreadTimes {
  double ran = 0;
  double waited = 0;  // while they could have run
};
std::map<std::string, ThreadTimes> ThreadTimesOf(pid_t pid) {
  std::map<std::string, ThreadTimes> times;
  for (const auto& thread : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"))) {
    std::ifstream file(thread.path() / "schedstat");
    ThreadTimes& one = times[thread.path()];
    file >> one.ran >> one.waited;
    one.ran /= 1e9;
    one.waited /= 1e9;
  }
  return times;
}

// Seconds of all processors that a virtual machine's host has given to others.
double StolenSeconds() {
  std::ifstream file("/proc/stat");
  std::string name;
  double user, nice, system, idle, waiting, interrupts, soft_interrupts, stolen = 0;
  file >> name >> user >> nice >> system >> idle >> waiting >> interrupts >> soft_interrupts >> stolen;
  return stolen / double(sysconf(_SC_CLK_TCK));
}

// Returns the part of `seconds` that the device, the thread that ran longest, has waited for a processor. The kernel
// does not say from which thread time was stolen, so all stolen time in which it did not run counts.
double DeviceWaited(std::map<std::string, ThreadTimes> since, const std::map<std::string, ThreadTimes>& now,
                    double seconds, double stolen) {
  ThreadTimes longest;
  for (const auto& [thread, times] : now) {
    const ThreadTimes before = since[thread];
    if (times.ran - before.ran > longest.ran) longest = {times.ran - before.ran, times.waited - before.waited};
  }
  return longest.waited + std::clamp(seconds - longest.ran - longest.waited, 0.0, stolen);
}

// Returns each client's part of `capacity`: a client that wants less than an equal share of the remainder gets all of
// it.
std::vector<double> EqualShares(const std::vector<double>& demands, double capacity) {
  std::vector<size_t> order(demands.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return demands[a] < demands[b]; });
  std::vector<double> shares(demands.size());
  for (size_t i = 0; i < order.size(); ++i) {
    shares[order[i]] = std::min(demands[order[i]], capacity / double(order.size() - i));
    capacity -= shares[order[i]];
  }
  return shares;
}

// Sends until the server has stopped reading from it, and never reads an answer.
class DeafStream {
 public:
  // Blocks until it has been stopped.
  DeafStream(const std::string& target, const LoadText* text) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // fixes the window: bytes on the way must not grow
    stub_ =
        v1::SamplingService::NewStub(grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
    stream_ = stub_->Stream(&context_);
    thread_ = std::thread([this, text] {
      v1::StreamRequest hello;
      hello.mutable_hello()->set_worker_session("deaf");
      v1::StreamRequest sequence = text->MakeOpen(0);
      sequence.mutable_open()->mutable_parameters()->mutable_raw_logprobs()->set_top(1000);  // large answers
      bool open = stream_->Write(hello) && stream_->Write(sequence);
      for (uint64_t number = 1; open; ++number) {
        open = stream_->Write(text->MakeStep(number, 1));
        written_ = number;
      }
    });
    for (uint64_t before = 0; before == 0 || before != written_;) {
      before = written_;
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
  }
  ~DeafStream() {
    context_.TryCancel();
    thread_.join();
    stream_->Finish();
  }

 private:
  std::unique_ptr<v1::SamplingService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StreamRequest, v1::StreamResponse>> stream_;
  std::atomic<uint64_t> written_ = 0;
  std::thread thread_;
};

class Overload {
 public:
  explicit Overload(const std::string& plant) : plant_(plant) {
    std::vector<std::string> flags = {"--cpu_threads=1", "--cpu_target=scalar", "--stalled_write=1h",
                                      absl::StrCat("--max_received_bytes=", kMostReceived),
                                      absl::StrCat("--max_message_bytes=", kMostMessage)};
    if (plant == "admission") {
      flags.insert(flags.end(), {"--max_queue_time=0", "--max_queued_rows=1000000", "--max_received_bytes=1000000000",
                                 "--stream_unanswered_rows=16384", "--stream_unanswered_bytes=134217728"});
    }
    const std::string binary = (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "sortitiond").string();
    auto server = process::ServerProcess::Start(binary, flags, "/dev/null");
    SORTITION_CHECK(server.ok());
    server_ = *std::move(server);
    memory_before_ = MemoryOf(server_->process().pid(), "VmRSS:");
    for (const Worker& worker : kWorkers) {
      streams_.push_back(std::make_unique<LoadStream>(server_->address(), &text_, worker.rows));
    }
    // The greediest takes more than one share.
    for (int i = 0; plant == "shares" && i < 3; ++i) {
      more_.push_back(std::make_unique<LoadStream>(server_->address(), &text_, kWorkers[kCount - 1].rows));
    }
    deaf_ = std::make_unique<DeafStream>(server_->address(), &text_);
  }

  void Run(double seconds, uint64_t seed, double factor) {
    const int rounds = std::max(1, static_cast<int>(seconds / kRoundSeconds));
    for (int round = 1; round <= rounds; ++round) {
      const double peak = RunPeak(kPeakPart * seconds / rounds);
      if (peak == 0) return;
      peaks_.push_back(peak);
      const double over = RunOver((1 - kPeakPart) * seconds / rounds, peak * factor, seed + uint64_t(round) * 100);
      goodputs_.push_back(over / peak);
      std::fprintf(stderr, "overload: round %d of %d: %.0f rows/s at most, %.0f under load\n", round, rounds, peak,
                   over);
    }
  }

  // Returns the expectations that do not hold.
  std::vector<std::string> Judge() {
    std::vector<std::string> wrong;
    const auto hold = [&](bool holds, std::string what) {
      if (!holds) wrong.push_back(std::move(what));
    };
    if (goodputs_.empty()) return {"no row was answered at the peak"};
    all_.different += plant_ == "token";
    std::vector<double> demands;
    std::vector<double> got;
    for (const Found& one : found_) {
      demands.push_back(double(one.offered));
      got.push_back(double(one.tokens));
    }
    const std::vector<double> shares = EqualShares(demands, double(all_.tokens));
    for (size_t i = 0; i < kCount; ++i) share_error_ = std::max(share_error_, std::abs(got[i] / shares[i] - 1));
    refusal_ms_ = Median(refusals_ms_);
    overslept_ms_ = Median(oversleeps_ms_);
    answer_ms_ = Percentile99(all_.answered_ms);
    grown_ = MemoryOf(server_->process().pid(), "VmHWM:") - memory_before_;
    const double most_answer_ms = 4 * absl::ToDoubleMilliseconds(service::Limits().max_queue_time);
    const uint64_t most_grown = kMostReceived + (kCount + 1) * 3 * kMostMessage;

    hold(all_.different == 0, absl::StrCat(all_.different, " tokens differ"));
    hold(all_.failed == 0, absl::StrCat(all_.failed, " rows failed: ", all_.first_error));
    hold(Median(goodputs_) >= kLeastGoodput, absl::StrFormat("goodput is %.0f%% of its peak", 100 * Median(goodputs_)));
    hold(all_.refused > 0, "no step was refused");
    hold(refusal_ms_ <= kMostRefusalMs + kHops * overslept_ms_,
         absl::StrFormat("refusals take %.1f ms, waking up %.1f ms (p99)", refusal_ms_, overslept_ms_));
    hold(answer_ms_ <= most_answer_ms, absl::StrFormat("answers take %.0f ms (p99)", answer_ms_));
    hold(share_error_ <= absl::GetFlag(FLAGS_share_error),
         absl::StrCat("shares are unequal: ", absl::StrJoin(got, ", "), " tokens where ", absl::StrJoin(shares, ", "),
                      " are due"));
    hold(grown_ <= most_grown, absl::StrFormat("memory grows by %d MB", grown_ >> 20));
    return wrong;
  }

  std::string Summary() const {
    return absl::StrFormat(
        "%d tokens, %d rows refused, goodput %.0f%% of %.0f rows/s, refusals within %.1f ms and answers within %.0f ms "
        "(p99), shares within %.1f%%, memory +%d MB, 0 tokens differ",
        all_.tokens, all_.refused, 100 * Median(goodputs_), Median(peaks_), refusal_ms_, answer_ms_, 100 * share_error_,
        grown_ >> 20);
  }

 private:
  // Runs the streams, and takes their findings once they have settled. Returns the seconds for which the device could
  // run.
  template <typename RunStream>
  double Measure(double seconds, const RunStream& run, std::vector<Found>* found) {
    std::vector<LoadStream*> streams;
    for (const auto& stream : streams_) streams.push_back(stream.get());
    for (const auto& stream : more_) streams.push_back(stream.get());
    for (LoadStream* stream : streams) {
      stream->Drain();
      all_.different += stream->TakeFound().different;
    }
    const Clock::time_point start = Clock::now();
    const auto after = [&](double part) {
      return start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(part));
    };
    std::vector<std::thread> threads;
    for (size_t i = 0; i < streams.size(); ++i) {
      threads.emplace_back([&, i] { run(std::min(i, kCount - 1), i, streams[i], after(seconds)); });
    }
    std::this_thread::sleep_until(after(std::min(kSettleSeconds, seconds / 3)));
    for (LoadStream* stream : streams) all_.different += stream->TakeFound().different;
    const Clock::time_point settled = Clock::now();
    const auto before = ThreadTimesOf(server_->process().pid());
    const double stolen_before = StolenSeconds();
    std::this_thread::sleep_until(after(seconds));
    for (LoadStream* stream : streams) found->push_back(stream->TakeFound());
    const double measured = std::chrono::duration<double>(Clock::now() - settled).count();
    const double waited =
        DeviceWaited(before, ThreadTimesOf(server_->process().pid()), measured, StolenSeconds() - stolen_before);
    for (std::thread& thread : threads) thread.join();
    return measured - waited;
  }

  // Rows a second.
  double RunPeak(double seconds) {
    std::vector<Found> found;
    const double measured = Measure(
        seconds,
        [](size_t, size_t, LoadStream* stream, Clock::time_point until) { stream->RunClosed(kClosedRows, until); },
        &found);
    double tokens = 0;
    for (const Found& one : found) {
      tokens += double(one.tokens);
      all_.different += one.different;
    }
    return tokens / measured;
  }

  // Rows a second, of `offered`.
  double RunOver(double seconds, double offered, uint64_t seed) {
    std::vector<Found> found;
    const double measured = Measure(
        seconds,
        [&](size_t worker, size_t number, LoadStream* stream, Clock::time_point until) {
          const double steps = offered * kWorkers[worker].part / kWorkers[worker].rows;
          const auto every = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1 / steps));
          stream->RunOpen(every, seed + number, until);
        },
        &found);
    double tokens = 0;
    Found round;
    for (size_t i = 0; i < found.size(); ++i) {
      round.Add(found[i]);
      tokens += double(found[i].tokens);
      found_[std::min(i, kCount - 1)].Add(found[i]);
      all_.Add(found[i]);
    }
    refusals_ms_.push_back(Percentile99(std::move(round.refused_ms)));
    oversleeps_ms_.push_back(Percentile99(std::move(round.overslept_ms)));
    return tokens / measured;
  }

  const std::string plant_;
  const LoadText text_;
  std::unique_ptr<process::ServerProcess> server_;
  std::vector<std::unique_ptr<LoadStream>> streams_;  // of kWorkers
  std::vector<std::unique_ptr<LoadStream>> more_;     // of the last of them
  std::unique_ptr<DeafStream> deaf_;
  uint64_t memory_before_ = 0;
  std::vector<double> peaks_;          // rows a second, by round
  std::vector<double> goodputs_;       // of the round's peak
  std::vector<double> refusals_ms_;    // p99, by round
  std::vector<double> oversleeps_ms_;  // the same
  Found all_;                          // under load
  Found found_[kCount];
  double share_error_ = 0;
  double refusal_ms_ = 0;
  double overslept_ms_ = 0;
  double answer_ms_ = 0;
  uint64_t grown_ = 0;
};

int Main() {
  const std::string plant = absl::GetFlag(FLAGS_plant);
  if (!plant.empty() && plant != "admission" && plant != "shares" && plant != "token") {
    std::fprintf(stderr, "overload: nothing to plant is called \"%s\"\n", plant.c_str());
    return 2;
  }
  Overload overload(plant);
  overload.Run(absl::GetFlag(FLAGS_seconds), absl::GetFlag(FLAGS_seed), absl::GetFlag(FLAGS_factor));
  const std::vector<std::string> wrong = overload.Judge();
  if (!wrong.empty()) {
    std::fprintf(stderr, "overload: %s (seed %llu)\n", absl::StrJoin(wrong, "; ").c_str(),
                 static_cast<unsigned long long>(absl::GetFlag(FLAGS_seed)));
    return 1;
  }
  std::printf("overload: %.0f s at %.1f times capacity, seed %llu: %s\n", absl::GetFlag(FLAGS_seconds),
              absl::GetFlag(FLAGS_factor), static_cast<unsigned long long>(absl::GetFlag(FLAGS_seed)),
              overload.Summary().c_str());
  return 0;
}

}  // namespace
}  // namespace sortition::testing

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return sortition::testing::Main();
}
