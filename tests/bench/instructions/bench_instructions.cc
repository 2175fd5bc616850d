// Instructions of a step, which no other process on the machine disturbs. Each end of each way runs under callgrind for
// two numbers of steps; the difference is the steps'.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <new>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "client/process/server_process.h"
#include "kernels/check.h"
#include "kernels/cpu/sample_row.h"
#include "tests/bench/suite.h"
#include "tests/bench/wire/bench_worker.h"

ABSL_FLAG(std::string, work, "", "for this program's own processes: the way of the steps");
ABSL_FLAG(std::string, target, "", "for them: the server's address");
ABSL_FLAG(uint32_t, steps, 0, "for them: the number of steps");

namespace {
std::atomic<uint64_t> allocations = 0;
}  // namespace

// Counts this program's allocations in C++.
void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace sortition::bench {
namespace {

constexpr uint32_t kRows = 64;        // of a step
constexpr uint32_t kVocabulary = 64;  // floats of a row
constexpr uint32_t kFewSteps = 100;
constexpr uint32_t kManySteps = 1100;

TransportKind KindOf(const std::string& way) { return way == "ring" ? TransportKind::kRing : TransportKind::kGrpc; }

// Runs the kernels alone, on the rows of --steps steps.
int Sample() {
  const uint32_t steps = absl::GetFlag(FLAGS_steps);
  const Logits logits(Shape::kPeaked, kernels::DType::kF32, kRows, kVocabulary);
  kernels::RowParameters parameters;
  law::Compile(UsualOptions(), &parameters);
  kernels::cpu::Scratch scratch;
  kernels::RowOutput output;
  kernels::RowRequest request;
  request.live_vocabulary = kVocabulary;
  request.parameters = &parameters;
  for (uint32_t step = 0; step < steps; ++step) {
    for (uint32_t row = 0; row < kRows; ++row) {
      request.logits = logits.row(row);
      request.noise = {.seed = row, .position = step, .stream = 0};
      kernels::cpu::SampleRow(request, &scratch, &output);
    }
  }
  std::cout << "allocations 0\n";
  return 0;
}

// Steps of a model's parameters. Says how many allocations the last half of them took.
int Work() {
  const std::string way = absl::GetFlag(FLAGS_work);
  const uint32_t steps = absl::GetFlag(FLAGS_steps);
  const Logits logits(Shape::kPeaked, kernels::DType::kF32, kRows, kVocabulary);
  Worker worker(absl::GetFlag(FLAGS_target), KindOf(way), 2 << 20, /*row_memory=*/way != "tcp");
  worker.Open(kRows, kVocabulary, ModelParameters());
  const client::Client::RowMemory placed = Place(logits, &worker.client());
  uint64_t before = 0;
  for (uint32_t step = 0; step < steps; ++step) {
    if (step == steps / 2) before = allocations.load();
    worker.Step(v1::DTYPE_F32, kVocabulary, placed.data.get(), kRows, logits.row_bytes());
  }
  const double counted = static_cast<double>(allocations.load() - before);
  std::cout << "allocations " << counted / (kRows * (steps - steps / 2)) << "\n";
  return 0;
}

// A command's beginning that counts instructions and writes their number to a file.
std::string Valgrind(const std::string& log) {
  return absl::StrCat("valgrind --tool=callgrind --callgrind-out-file=/dev/null --fair-sched=yes --log-file=", log,
                      " ");
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns the number after the last occurrence of `word`.
double NumberAfter(const std::string& text, const std::string& word) {
  const size_t at = text.rfind(word);
  SORTITION_CHECK(at != std::string::npos);
  return std::strtod(text.c_str() + at + word.size(), nullptr);
}

// Runs a command and returns its output.
std::string Output(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  SORTITION_CHECK(pipe != nullptr);
  std::string output;
  char buffer[4096];
  while (const size_t bytes = fread(buffer, 1, sizeof(buffer), pipe)) output.append(buffer, bytes);
  SORTITION_CHECK(pclose(pipe) == 0);
  return output;
}

class Suite {
 public:
  Suite() { SORTITION_CHECK(mkdir(folder_.c_str(), 0700) == 0); }
  ~Suite() { Output("rm -r " + folder_); }

  void AddAll(Report* report) {
    AddWorker("kernels", "kernels", report);
    AddWorker("in_process", "in_process", report);
    for (const std::string way : {"ring", "shm", "tcp"}) {
      AddWorker(way, absl::StrCat("client_", way), report);
      AddServer(way, report);
    }
  }

 private:
  // Adds instructions and allocations of a row in the worker's process.
  void AddWorker(const std::string& way, const std::string& name, Report* report) {
    const auto server = way == "kernels" || way == "in_process" ? nullptr : Start("");
    double counts[2];
    std::string said;
    for (const uint32_t steps : {kFewSteps, kManySteps}) {
      said = RunWorker(Valgrind(log_), way, server.get(), steps);
      counts[steps == kManySteps] = NumberAfter(ReadFile(log_), "Collected :");
    }
    Add(name, counts, report);
    if (way == "kernels") return;
    report->Add({absl::StrCat(name, "_allocations"), NumberAfter(said, "allocations"), "1/row", std::nullopt});
  }

  // Adds instructions of a row in the server's process.
  void AddServer(const std::string& way, Report* report) {
    double counts[2];
    for (const uint32_t steps : {kFewSteps, kManySteps}) {
      const auto server = Start(Valgrind(log_));
      RunWorker("", way, server.get(), steps);
      SORTITION_CHECK(server->Stop(absl::Seconds(30)).ok());
      counts[steps == kManySteps] = NumberAfter(ReadFile(log_), "Collected :");
    }
    Add(absl::StrCat("server_", way), counts, report);
  }

  void Add(const std::string& name, const double (&counts)[2], Report* report) {
    const double count = (counts[1] - counts[0]) / (kRows * static_cast<double>(kManySteps - kFewSteps));
    if (name == "kernels") kernels_ = count;
    report->Add({name, count, "instructions/row", kernels_});
    std::cerr << "  " << name << ": " << count << "\n";
  }

  std::unique_ptr<process::ServerProcess> Start(const std::string& before) {
    const std::string program = absl::StrCat(folder_, "/server");
    SORTITION_CHECK(WriteFile(program, absl::StrCat("#!/bin/sh\nexec ", before, SORTITIOND, " \"$@\"\n")));
    SORTITION_CHECK(chmod(program.c_str(), 0700) == 0);
    auto server = process::ServerProcess::Start(program, {"--cpu_threads=1", absl::StrCat("--memory_listen=", memory_)},
                                                absl::StrCat(folder_, "/said"));
    if (!server.ok()) std::cerr << server.status() << "\n";
    SORTITION_CHECK(server.ok());
    return *std::move(server);
  }

  std::string RunWorker(const std::string& before, const std::string& way, const process::ServerProcess* server,
                        uint32_t steps) {
    const std::string target = server == nullptr ? "" : way == "ring" ? memory_ : server->address();
    return Output(absl::StrCat(before, program_, " --work=", way, " --target=", target, " --steps=", steps));
  }

  double kernels_ = 0;  // instructions of a row
  const std::string program_ = std::filesystem::read_symlink("/proc/self/exe");
  const std::string folder_ =
      std::filesystem::temp_directory_path() / absl::StrCat("sortition_instructions_", getpid());
  const std::string log_ = absl::StrCat(folder_, "/log");
  const std::string memory_ = absl::StrCat("unix:", folder_, "/memory");
};

int Run() {
  if (system("valgrind --version > /dev/null 2>&1") != 0) {
    std::cerr << "bench_instructions: valgrind is not installed\n";
    return 1;
  }
  Report report("instructions", MachineName());
  Suite().AddAll(&report);
  return Publish(report);
}

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const std::string work = absl::GetFlag(FLAGS_work);
  if (work.empty()) return sortition::bench::Run();
  return work == "kernels" ? sortition::bench::Sample() : sortition::bench::Work();
}
