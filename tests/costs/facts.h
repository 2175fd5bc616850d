// Says how much a scenario's messages ask for, and models causes of unbounded costs by their sizes.
#pragma once

#include <cstdint>

#include "tests/costs/messages.h"
#include "tests/costs/scenario.h"

namespace sortition::costs {

// Returns the bytes of an answer with all that the scenario's options ask for.
uint64_t AskedBytes(const Scenario& scenario, const Messages& messages);

// A cause of an unbounded cost, modelled: before the session gets the message, the thread is busy for as long as the
// cause would take, by the scenario's true sizes.
enum class Plant : uint8_t {
  kNone,
  kInsertedCounts,     // each new token of a history moves the counts of half of the others
  kSearchingFollower,  // each token that is appended or looked ahead to searches the history from its beginning
  kFreeFork,           // a fork reads its history anew, and pays nothing
  kEarlyLookAhead,     // a compact row's edits are made at every position before the row is looked at
  kMergedBans,         // all edits are copied for each position that has bans
  kTenthPrice,         // everything is done at a tenth of its price
  kRecountedPhases,    // the history is counted anew for the phase of each draft
};
inline constexpr const char* kPlantNames[] = {"none",        "inserted-counts",  "searching-follower",
                                              "free-fork",   "early-look-ahead", "merged-bans",
                                              "tenth-price", "recounted-phases"};

// Returns the nanoseconds that the cause would take.
uint64_t WorkOf(Plant plant, const Scenario& scenario, const Messages& messages);

}  // namespace sortition::costs
