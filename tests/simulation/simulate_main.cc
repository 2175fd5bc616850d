// `./dev simulate`: runs worlds by seed, prints its progress, and ends with the failures.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/simulation/simulation.h"

ABSL_FLAG(uint64_t, seeds, 500, "how many worlds to run");
ABSL_FLAG(uint64_t, seed, 1, "the first one's seed; one world's with --seeds=1");
ABSL_FLAG(std::string, plant, "none",
          "a defect to plant: swapped-rows, forgotten-rewrite, shifted-prompt, other-choice, lost-checkpoint, "
          "crossed-shards, forgotten-answer, left-state, forgotten-key, other-test, forgotten-ban");
ABSL_FLAG(int, threads, 0, "worlds at a time; 0 = one a core");
ABSL_FLAG(bool, log, false, "print every event of the worlds; for few seeds");

namespace sortition::simulation {
namespace {

class Campaign {
 public:
  Campaign(uint64_t first, uint64_t count, Plant plant) : first_(first), count_(count), plant_(plant) {}

  void RunSome(bool with_log) {
    for (uint64_t i = next_++; i < count_; i = next_++) {
      const uint64_t seed = first_ + i;
      const Outcome outcome = RunWorld(seed, plant_, FaultsOf(seed, plant_), with_log);
      absl::MutexLock lock(&mutex_);
      for (const std::string& line : outcome.log) std::printf("%s\n", line.c_str());
      tally_ += outcome.tally;
      if (!outcome.ok()) failed_.push_back(seed);
      if (++done_ % std::max<uint64_t>(count_ / 20, 1) == 0) {
        std::fprintf(stderr, "%lu of %lu worlds, %lu steps, %lu tokens, %zu wrong\n", done_, count_, tally_.steps,
                     tally_.tokens, failed_.size());
      }
    }
  }

  // Prints the result and returns the process's exit status.
  int Report() {
    absl::MutexLock lock(&mutex_);
    std::ranges::sort(failed_);
    std::printf("%s\n", tally_.Describe().c_str());
    if (!failed_.empty()) {
      const std::vector<Fault> faults = FaultsOf(failed_[0], plant_);
      const std::vector<Fault> fewest = Shrink(failed_[0], plant_, faults);
      std::printf("%s", DescribeFailure(failed_[0], plant_, fewest).c_str());
      std::printf(
          "%zu of %zu faults were needed. Wrong: seeds %s%s\n", fewest.size(), faults.size(),
          absl::StrJoin(failed_.begin(), failed_.begin() + std::min<ptrdiff_t>(std::ssize(failed_), 20), " ").c_str(),
          failed_.size() > 20 ? " ..." : "");
    }
    std::printf("%lu worlds, %lu steps, %lu tokens, %zu wrong\n", count_, tally_.steps, tally_.tokens, failed_.size());
    return failed_.empty() ? 0 : 1;
  }

 private:
  const uint64_t first_;
  const uint64_t count_;
  const Plant plant_;
  std::atomic<uint64_t> next_ = 0;
  absl::Mutex mutex_;
  Tally tally_ ABSL_GUARDED_BY(mutex_);
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> failed_ ABSL_GUARDED_BY(mutex_);
};

int Main() {
  const std::string name = absl::GetFlag(FLAGS_plant);
  const auto* const plant = std::ranges::find(kPlantNames, name);
  if (plant == std::end(kPlantNames)) {
    std::fprintf(stderr, "no plant \"%s\"; there are: %s\n", name.c_str(), absl::StrJoin(kPlantNames, ", ").c_str());
    return 2;
  }
  Campaign campaign(absl::GetFlag(FLAGS_seed), absl::GetFlag(FLAGS_seeds),
                    static_cast<Plant>(plant - std::begin(kPlantNames)));
  const int asked = absl::GetFlag(FLAGS_threads);
  const int count = asked > 0 ? asked : static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&] { campaign.RunSome(absl::GetFlag(FLAGS_log)); });
  for (std::thread& thread : threads) thread.join();
  return campaign.Report();
}

}  // namespace
}  // namespace sortition::simulation

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("runs worlds of workers and replicas in which much goes wrong, and checks every token");
  absl::ParseCommandLine(argc, argv);
  return sortition::simulation::Main();
}
