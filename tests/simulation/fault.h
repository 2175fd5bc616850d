// Faults of a simulated world, and their times. A world's faults are drawn before it runs, so that a failing run can be
// repeated with fewer of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace sortition::simulation {

struct Fault {
  enum class Kind {
    kCrash,         // a replica dies and loses all it knows; back after `length`
    kCut,           // a worker's connections break; the replica notices after `length`
    kGhost,         // the same, but messages under way reach the replica after `length`
    kDeaf,          // answers to a worker are lost; it notices after `length`, or only by its deadlines
    kDrain,         // a replica is told to stop, with a grace of `length`, and starts anew
    kRepeat,        // for `length` every answer reaches a worker twice
    kStall,         // a replica's device does not run for `length`
    kBrokenDevice,  // a replica's device fails every batch for `length`
    kOtherLaw,      // for `length` a replica claims another version of the law
    kRestart,       // a worker dies and starts again with the same texts
    kZombie,        // the same, but the former process lives on for `length` and continues its submitted steps
  };
  static constexpr int kKinds = 11;

  Kind kind = Kind::kCrash;
  absl::Duration at;
  absl::Duration length;
  uint32_t who = 0;  // replica, or rank of some worker

  bool OfReplica() const;
};

// Returns faults in the order of their times, all within `horizon`.
std::vector<Fault> DrawFaults(uint64_t seed, uint32_t replicas, uint32_t workers, absl::Duration horizon);

const char* NameOf(Fault::Kind kind);
// "12.3ms crash of replica 1, 40ms"
std::string Describe(const Fault& fault);

}  // namespace sortition::simulation
