// A replay storm: a replica dies, and all its sequences come with their long histories to the replica that is left,
// which serves other clients meanwhile.
//
//   bench_storm [--json FILE]
//
// others_p50, others_p99: latency of the other clients' steps while the histories come in; the baseline is their
// latency before. resumed: time until every sequence has its next token. replica_bytes: the most memory that the
// replica has had; the baseline is its bound on sequence state and its memory before. wrong_tokens: number of wrong
// tokens among the sequences that are compared with the plain reference.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "kernels/check.h"
#include "tests/bench/model.h"
#include "tests/bench/server.h"
#include "tests/bench/suite.h"
#include "tests/client/reference_sequence.h"
#include "tests/client/rows.h"

namespace sortition::bench {
namespace {

constexpr uint32_t kVocabulary = 4096;
constexpr size_t kVictims = 1000;            // sequences that lose their replica
constexpr uint32_t kTokens = 131'072;        // of history of each of them
constexpr uint64_t kStateBytes = 256 << 20;  // --max_state_bytes of the replicas
constexpr uint32_t kDistinct = 512;
constexpr size_t kCompared = 40;

using Clock = std::chrono::steady_clock;

client::SequenceOptions MakeOptions(const std::string& id, uint64_t seed, uint32_t tokens) {
  client::SequenceOptions options;
  options.request_id = id;
  options.vocabulary_size = kVocabulary;
  options.seed = seed;
  options.parameters.set_repetition_penalty(1.2f);
  options.parameters.set_frequency_penalty(0.1f);
  std::mt19937_64 random(seed);
  options.prompt.resize(tokens);
  for (uint32_t& token : options.prompt) token = static_cast<uint32_t>(random() % kDistinct);
  return options;
}

uint64_t PeakBytes(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    uint64_t kib = 0;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar("\t "), absl::SkipEmpty());
    if (words.size() > 1 && words[0] == "VmHWM:" && absl::SimpleAtoi(words[1], &kib)) return kib << 10;
  }
  return 0;
}

// Clients that have nothing to do with the storm: steps one after the other, each timed.
class Others {
 public:
  explicit Others(const std::string& target) {
    client::ClientOptions options;
    options.targets = {target};
    options.rows.form = client::RowFormOptions::Form::kFull;
    client_ = Connect(std::move(options));
    batch_ = {v1::DTYPE_BF16, kVocabulary, {}};
    for (size_t i = 0; i < kRows; ++i) {
      rows_.push_back(testing::MakeRow(v1::DTYPE_BF16, kVocabulary, i));
      auto sequence = client_->Open(MakeOptions(absl::StrCat("other ", i), i, 100));
      SORTITION_CHECK(sequence.ok());
      sequences_.push_back(*std::move(sequence));
      batch_.rows.push_back({sequences_[i].get(), rows_[i].data()});
    }
    thread_ = std::thread([this] { Run(); });
  }
  ~Others() {
    stop_ = true;
    thread_.join();
  }
  // Latencies since the last call.
  std::vector<double> Take() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(latencies_, {});
  }

 private:
  static constexpr size_t kRows = 8;

  void Run() {
    while (!stop_) {
      const Clock::time_point start = Clock::now();
      StepAll(client_.get(), batch_);
      const double latency = MicrosecondsSince(start);
      {
        absl::MutexLock lock(&mutex_);
        latencies_.push_back(latency);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  std::unique_ptr<client::Client> client_;
  std::vector<std::vector<std::byte>> rows_;
  std::vector<std::unique_ptr<client::Sequence>> sequences_;
  client::Batch batch_;
  std::atomic<bool> stop_ = false;
  absl::Mutex mutex_;
  std::vector<double> latencies_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// The client whose replica dies.
class Victims {
 public:
  explicit Victims(std::vector<std::string> targets) {
    client::ClientOptions options;
    options.targets = std::move(targets);
    options.default_timeout = absl::Minutes(5);
    options.rows.form = client::RowFormOptions::Form::kFull;
    client_ = Connect(std::move(options));
    for (size_t i = 0; i < kVictims; ++i) {
      auto sequence = client_->Open(MakeOptions(absl::StrCat("victim ", i), 1000 + i, kTokens));
      SORTITION_CHECK(sequence.ok());
      sequences_.push_back(*std::move(sequence));
    }
  }
  // Returns one token for each sequence, in the sequences' order.
  std::vector<uint32_t> Step(uint64_t step) {
    std::vector<std::vector<std::byte>> rows;
    client::Batch batch{v1::DTYPE_BF16, kVocabulary, {}};
    for (size_t i = 0; i < sequences_.size(); ++i) {
      rows.push_back(testing::MakeRow(v1::DTYPE_BF16, kVocabulary, RowKey(i, step)));
      batch.rows.push_back({sequences_[i].get(), rows.back().data()});
    }
    const auto outcomes = client_->Step(batch);
    SORTITION_CHECK(outcomes.ok());
    std::vector<uint32_t> tokens;
    for (const client::RowResult& outcome : *outcomes) {
      const auto* error = std::get_if<client::RowError>(&outcome);
      if (error != nullptr) std::cerr << client::Describe(*error) << "\n";
      SORTITION_CHECK(error == nullptr);
      tokens.push_back(std::get<v1::DrawResult>(outcome).token());
    }
    return tokens;
  }
  static uint64_t RowKey(size_t sequence, uint64_t step) { return sequence << 8 | step; }

 private:
  std::unique_ptr<client::Client> client_;
  std::vector<std::unique_ptr<client::Sequence>> sequences_;
};

int Run() {
  const std::vector<std::string> flags = {absl::StrCat("--max_state_bytes=", kStateBytes)};
  const auto lost = StartServer(flags, kAnyCore, "/dev/null");
  const auto kept = StartServer(flags, kAnyCore, "/dev/null");

  std::cerr << "opening " << kVictims << " sequences of " << kTokens << " tokens\n";
  Victims victims({lost->address(), kept->address()});
  std::vector<std::vector<uint32_t>> drawn = {victims.Step(0)};

  Others others(kept->address());
  std::cerr << "the others alone\n";
  std::this_thread::sleep_for(std::chrono::seconds(5));
  const std::vector<double> quiet = others.Take();
  const uint64_t before = PeakBytes(kept->process().pid());

  std::cerr << "the storm\n";
  lost->process().Signal(SIGKILL);
  const Clock::time_point start = Clock::now();
  others.Take();
  drawn.push_back(victims.Step(1));
  const double resumed = MicrosecondsSince(start) / 1e6;
  const std::vector<double> storm = others.Take();
  const uint64_t peak = PeakBytes(kept->process().pid());

  std::cerr << "comparing\n";
  uint32_t wrong = 0;
  for (size_t i = 0; i < kVictims; i += kVictims / kCompared) {
    const client::SequenceOptions options = MakeOptions("", 1000 + i, kTokens);
    testing::ReferenceSequence reference(options.parameters, *options.seed, 0, kVocabulary, kVocabulary,
                                         options.prompt);
    for (uint64_t step = 0; step < drawn.size(); ++step) {
      const auto row = testing::MakeRow(v1::DTYPE_BF16, kVocabulary, Victims::RowKey(i, step));
      if (reference.Step(v1::DTYPE_BF16, row.data()).token() != drawn[step][i]) ++wrong;
    }
  }

  Report report("storm", MachineName());
  report.Add({"others_p50", Percentile(storm, 50), "us", Percentile(quiet, 50)});
  report.Add({"others_p99", Percentile(storm, 99), "us", Percentile(quiet, 99)});
  report.Add({"resumed", resumed, "s", std::nullopt});
  report.Add({"replica_bytes", static_cast<double>(peak), "bytes", static_cast<double>(before + kStateBytes)});
  report.Add({"wrong_tokens", static_cast<double>(wrong), "tokens", std::nullopt});
  return Publish(report);
}

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return sortition::bench::Run();
}
