// Running a world, and finding the shortest of its failing histories.
#include "tests/simulation/simulation.h"

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/simulation/network.h"
#include "tests/simulation/policies.h"
#include "tests/simulation/replica.h"
#include "tests/simulation/timeline.h"
#include "tests/simulation/worker.h"

namespace sortition::simulation {
namespace {

constexpr uint64_t kMaxSteps = 1'000'000;
constexpr absl::Duration kMaxElapsed = absl::Minutes(10);
// Ranks that wait in vain ask for ever, so a world of ranks gets less time.
constexpr absl::Duration kMaxElapsedOfRanks = absl::Minutes(1);

class Simulation {
 public:
  Simulation(uint64_t seed, Plant plant, bool with_log)
      : world_(seed, plant),
        with_log_(with_log),
        policies_(seed, world_.fault_horizon),
        network_(world_, &timeline_, &replicas_, &outcome_.tally, LogOf(),
                 [this](std::string why) { Fail(std::move(why)); }) {
    for (uint32_t i = 0; i < world_.replicas; ++i) {
      replicas_.push_back(std::make_unique<Replica>(world_, i, policies_, &timeline_, &outcome_.tally));
    }
    for (uint32_t i = 0; i < world_.ranks.size(); ++i) {
      workers_.push_back(std::make_unique<Worker>(world_, i, policies_, &timeline_, &network_, &outcome_.tally, LogOf(),
                                                  [this](std::string why) { Fail(std::move(why)); }));
    }
    for (uint32_t i = 0; i < world_.ranks.size(); ++i) {
      for (uint32_t j = 0; j < world_.ranks.size(); ++j) {
        if (i != j && world_.ranks[i].worker == world_.ranks[j].worker) workers_[i]->AddPeer(workers_[j].get());
      }
    }
  }

  Outcome Run(const std::vector<Fault>& faults) {
    for (const Fault& fault : faults) {
      timeline_.At(Timeline::Start() + fault.at, [this, fault] { Inflict(fault); });
    }
    for (const auto& worker : workers_) worker->Start();
    if (world_.has_ranks) PlanSweep();
    for (size_t i = 1; i < policies_.revisions().size(); ++i) {
      timeline_.At(Timeline::Start() + policies_.revisions()[i].at, [this, i] {
        LogOf()([&] { return absl::StrCat("POLICIES ", i); });
        policies_.Write(i);
      });
    }
    if (policies_.revisions().size() > 1) PlanLooks();
    uint64_t& steps = outcome_.tally.steps;
    const absl::Duration most = world_.has_ranks ? kMaxElapsedOfRanks : kMaxElapsed;
    for (; outcome_.failure.empty() && !Done(); ++steps) {
      if (steps == kMaxSteps || timeline_.Elapsed() > most || !timeline_.RunNext()) {
        Fail("the world stands still");
      }
    }
    // Lets the closes of the last texts arrive.
    const absl::Time arrived = timeline_.Now() + 2 * world_.max_latency;
    while (outcome_.failure.empty() && timeline_.Now() < arrived && timeline_.RunNext()) {
    }
    outcome_.elapsed = timeline_.Elapsed();
    return std::move(outcome_);
  }

 private:
  Log LogOf() {
    return [this](const std::function<std::string()>& line) {
      if (!with_log_) return;
      outcome_.log.push_back(absl::StrCat(absl::FormatDuration(timeline_.Elapsed()), " ", line()));
    };
  }

  void Fail(std::string why) {
    if (outcome_.failure.empty()) outcome_.failure = std::move(why);
  }

  bool Done() const {
    for (const auto& worker : workers_) {
      if (!worker->Done()) return false;
    }
    return true;
  }

  // Drops shards that have waited too long for others.
  void PlanSweep() {
    timeline_.After(world_.limits.shard_wait / 4, [this] {
      for (const auto& replica : replicas_) {
        if (replica->up()) replica->engine()->Sweep();
      }
      PlanSweep();
    });
  }

  void PlanLooks() {
    timeline_.After(world_.policy_look, [this] {
      for (const auto& replica : replicas_) replica->Follow();
      PlanLooks();
    });
  }

  // Ranks are always told of a lost stream: otherwise all would ask for ever while one waits, but their worlds end
  // early.
  void Deafen(const Fault& fault) {
    const bool silent =
        Draw(world_.seed, Choice::kSilence, {static_cast<uint64_t>(fault.length / absl::Nanoseconds(1))}) % 2;
    if (!silent || world_.has_ranks) return network_.Deafen(fault.who, fault.length);
    network_.Silence(fault.who);
    workers_[fault.who]->MayMissDeadlines();
  }

  void Inflict(const Fault& fault) {
    ++outcome_.tally.faults[static_cast<int>(fault.kind)];
    LogOf()([&] { return absl::StrCat("FAULT ", Describe(fault)); });
    const absl::Time until = timeline_.Now() + fault.length;
    switch (fault.kind) {
      case Fault::Kind::kCrash:
        return Crash(fault.who, fault.length);
      case Fault::Kind::kDrain:
        network_.Drain(fault.who, v1::DrainingNotice::CAUSE_SHUTDOWN, fault.length);
        timeline_.After(fault.length + world_.max_latency,
                        [this, who = fault.who] { Crash(who, absl::Milliseconds(5)); });
        return;
      case Fault::Kind::kCut:
        return network_.Cut(fault.who, fault.length);
      case Fault::Kind::kGhost:
        return network_.Ghost(fault.who, fault.length);
      case Fault::Kind::kDeaf:
        return Deafen(fault);
      case Fault::Kind::kRepeat:
        return network_.Repeat(fault.who, fault.length);
      case Fault::Kind::kStall:
        replicas_[fault.who]->stalled_until = until;
        return;
      case Fault::Kind::kBrokenDevice:
        replicas_[fault.who]->broken_until = until;
        return;
      case Fault::Kind::kOtherLaw:
        replicas_[fault.who]->other_law_until = until;
        return;
      case Fault::Kind::kRestart:
        return workers_[fault.who]->Restart(absl::ZeroDuration());
      case Fault::Kind::kZombie:
        return workers_[fault.who]->Restart(fault.length);
    }
  }

  void Crash(uint32_t who, absl::Duration down) {
    Replica& replica = *replicas_[who];
    if (!replica.up()) return;
    network_.Break(who);
    replica.Die();
    timeline_.After(down, [this, &replica] { Rise(&replica); });
  }

  // A replica that cannot start is started again, until the operator's file is usable.
  void Rise(Replica* replica) {
    if (replica->Rise()) return;
    ++outcome_.tally.late_starts;
    timeline_.After(absl::Milliseconds(1), [this, replica] { Rise(replica); });
  }

  const World world_;
  const bool with_log_;
  PolicyFile policies_;
  Outcome outcome_;
  Timeline timeline_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  Network network_;
  std::vector<std::unique_ptr<Worker>> workers_;  // by rank
};

}  // namespace

std::vector<Fault> FaultsOf(uint64_t seed, Plant plant) {
  const World world(seed, plant);
  return DrawFaults(seed, world.replicas, static_cast<uint32_t>(world.ranks.size()), world.fault_horizon);
}

Outcome RunWorld(uint64_t seed, Plant plant, const std::vector<Fault>& faults, bool with_log) {
  return Simulation(seed, plant, with_log).Run(faults);
}

std::vector<Fault> Shrink(uint64_t seed, Plant plant, std::vector<Fault> faults) {
  // Leaves out runs of faults, of half the length each time, then single faults until none can be left out.
  for (size_t run = faults.size(); run > 0;) {
    bool shrunk = false;
    for (size_t from = 0; from < faults.size();) {
      std::vector<Fault> fewer(faults.begin(), faults.begin() + static_cast<ptrdiff_t>(from));
      fewer.insert(fewer.end(), faults.begin() + static_cast<ptrdiff_t>(std::min(from + run, faults.size())),
                   faults.end());
      if (RunWorld(seed, plant, fewer).ok()) {
        from += run;
      } else {
        faults = std::move(fewer);
        shrunk = true;
      }
    }
    if (run > 1 || !shrunk) run /= 2;
  }
  return faults;
}

std::string DescribeFailure(uint64_t seed, Plant plant, const std::vector<Fault>& faults) {
  constexpr size_t kLines = 40;
  const Outcome outcome = RunWorld(seed, plant, faults, /*with_log=*/true);
  std::string text = absl::StrCat("seed ", seed, ": ", outcome.failure, "\nwith ", faults.size(), " faults:\n");
  for (const Fault& fault : faults) absl::StrAppend(&text, "  ", Describe(fault), "\n");
  // Keeps the lines of the worker that the failure names, and the faults.
  const std::string worker = outcome.failure.substr(0, outcome.failure.find(','));
  std::vector<std::string> lines;
  for (const std::string& line : outcome.log) {
    if (absl::StrContains(line, absl::StrCat(worker, " ")) || absl::StrContains(line, "FAULT")) lines.push_back(line);
  }
  const size_t first = lines.size() > kLines ? lines.size() - kLines : 0;
  absl::StrAppend(&text, "the last of ", lines.size(), " events of ", worker, ":\n");
  for (size_t i = first; i < lines.size(); ++i) absl::StrAppend(&text, "  ", lines[i], "\n");
  return text;
}

}  // namespace sortition::simulation
