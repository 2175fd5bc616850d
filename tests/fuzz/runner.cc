// Replays a corpus, then mutates it a number of times or for a time. For builds without libFuzzer, and for tests.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/mutate.h"

ABSL_FLAG(std::string, corpus, "", "Folder of inputs to begin with");
ABSL_FLAG(double, seconds, 20, "How long to mutate at most; 0 = only replay");
ABSL_FLAG(uint64_t, mutations, std::numeric_limits<uint64_t>::max(), "How many mutations at most");
ABSL_FLAG(uint64_t, seed, 1, "Of the mutations");
ABSL_FLAG(uint32_t, max_bytes, 4096, "Of a mutated input");
ABSL_FLAG(bool, plant, false, "Give the target its defect, which must be found");
ABSL_FLAG(std::string, artifact, "", "File for an input that failed; empty = crash-PID in the working directory");

namespace sortition::fuzz {
namespace {

using Clock = std::chrono::steady_clock;
using Corpus = std::vector<std::vector<uint8_t>>;

// Input of the present run, for the signal handler.
std::vector<uint8_t> current;
std::string artifact;

void SaveCurrent(int signal) {
  if (planted) {
    std::cout << "fuzz: the planted defect was found" << std::endl;
    std::_Exit(0);
  }
  std::ofstream(artifact, std::ios::binary)
      .write(reinterpret_cast<const char*>(current.data()), std::streamsize(current.size()));
  std::cerr << "fuzz: the input is in " << artifact << std::endl;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

Corpus Read(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  if (!folder.empty()) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());  // the same order everywhere
  Corpus corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

void RunOn(std::vector<uint8_t> input) {
  current = std::move(input);
  Run(current);
}

int Main() {
  planted = absl::GetFlag(FLAGS_plant);
  artifact = absl::GetFlag(FLAGS_artifact);
  if (artifact.empty()) artifact = "crash-" + std::to_string(getpid());
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, SaveCurrent);

  Corpus corpus = Read(absl::GetFlag(FLAGS_corpus));
  if (!absl::GetFlag(FLAGS_corpus).empty() && corpus.empty()) Fail("the corpus is empty");
  for (const auto& input : corpus) RunOn(input);
  const size_t replayed = corpus.size();
  if (corpus.empty()) corpus.emplace_back();

  std::mt19937_64 random(absl::GetFlag(FLAGS_seed));
  const auto start = Clock::now();
  const std::chrono::duration<double> budget(absl::GetFlag(FLAGS_seconds));
  const uint64_t mutations = absl::GetFlag(FLAGS_mutations);
  uint64_t runs = 0;
  double elapsed = 0;
  double said = 5;
  for (; runs < mutations; ++runs) {
    elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    if (elapsed >= budget.count()) break;
    if (elapsed >= said) {
      std::cerr << "fuzz: " << runs << " mutations in " << int(elapsed) << " s\n";
      said += 5;
    }
    // Some mutants of mutants.
    std::vector<uint8_t> input = random() % 4 == 0 && !current.empty() ? current : corpus[random() % corpus.size()];
    Mutate(&input, corpus[random() % corpus.size()], absl::GetFlag(FLAGS_max_bytes), &random);
    RunOn(std::move(input));
  }
  if (planted) {
    std::cerr << "fuzz: the planted defect was not found in " << runs << " mutations\n";
    return 1;
  }
  std::cout << "fuzz: " << replayed << " inputs replayed, " << runs << " mutations in " << elapsed << " s, seed "
            << absl::GetFlag(FLAGS_seed) << ", 0 findings\n";
  return 0;
}

}  // namespace
}  // namespace sortition::fuzz

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return sortition::fuzz::Main();
}
