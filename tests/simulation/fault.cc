// Drawing and naming faults.
#include "tests/simulation/fault.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/simulation/draw.h"

namespace sortition::simulation {

bool Fault::OfReplica() const {
  switch (kind) {
    case Kind::kCrash:
    case Kind::kDrain:
    case Kind::kStall:
    case Kind::kBrokenDevice:
    case Kind::kOtherLaw:
      return true;
    default:
      return false;
  }
}

std::vector<Fault> DrawFaults(uint64_t seed, uint32_t replicas, uint32_t workers, absl::Duration horizon) {
  Draws draws(seed, Choice::kFault, {});
  std::vector<Fault> faults(draws.Between(2, 14));
  for (Fault& fault : faults) {
    fault.kind = static_cast<Fault::Kind>(draws.Below(Fault::kKinds));
    fault.at = horizon * draws.Below(1000) / 1000;
    fault.length = absl::Microseconds(draws.OneIn(4) ? draws.Between(20000, 120000) : draws.Between(100, 20000));
    fault.who = draws.Below(fault.OfReplica() ? replicas : workers);
  }
  std::ranges::stable_sort(faults, {}, &Fault::at);
  return faults;
}

const char* NameOf(Fault::Kind kind) {
  static constexpr const char* kNames[Fault::kKinds] = {"crash",
                                                        "cut connections",
                                                        "ghost connections",
                                                        "lost answers",
                                                        "drain",
                                                        "repeated answers",
                                                        "stalled device",
                                                        "failing device",
                                                        "other law version",
                                                        "restart",
                                                        "restart with a zombie"};
  return kNames[static_cast<int>(kind)];
}

std::string Describe(const Fault& fault) {
  return absl::StrCat(absl::FormatDuration(fault.at), " ", NameOf(fault.kind),
                      fault.OfReplica() ? ", replica " : ", worker ", fault.who, ", ",
                      absl::FormatDuration(fault.length));
}

}  // namespace sortition::simulation
