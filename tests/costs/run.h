// Runs a scenario with a real service and measures its last message.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "service/engine.h"
#include "sortition/v1/sampling.pb.h"
#include "tests/costs/scenario.h"

namespace sortition::costs {

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

// Sizes of a scenario, as its messages have them.
struct Facts {
  uint64_t rows = 0;         // of the measured message
  uint64_t positions = 0;    // likewise, of all of its rows
  uint64_t edits = 0;        // that a sequence lists, and counts
  uint64_t history = 0;      // tokens
  uint64_t distinct = 0;     // of them
  uint64_t lists = 0;        // tokens in lists of the measured message's rows
  uint64_t asked_bytes = 0;  // of an answer with all that the options ask for
};

struct Measurement {
  uint64_t time = 0;          // nanoseconds of the stream's thread
  uint64_t longest_call = 0;  // likewise, of BeginFrame with the decoding before it, or of one Continue
  uint64_t device_time = 0;   // of all other threads
  uint64_t price = 0;         // nanoseconds
  int64_t peak_bytes = 0;     // while the message was served
  int64_t kept_bytes = 0;     // after its answers have left
  int64_t left_bytes = 0;     // after the stream's end; sequences stay
  int64_t left_charged_bytes = 0;
  int64_t charged_bytes = 0;  // by the service's accounts
  uint64_t request_bytes = 0;
  uint64_t message_bytes = 0;  // the request's as a parsed message, which the limit max_message_parts bounds
  uint64_t answer_bytes = 0;
  Facts facts;
  v1::Error error;  // of the measured message; of an earlier one if that was refused, and then nothing is measured
  bool is_measured = false;
};

// Runs it from an empty engine on. The names of fields that occur in messages that are not refused are added to `*sent`
// if it is not null.
Measurement Run(const Scenario& scenario, Plant plant, std::set<std::string>* sent = nullptr);

}  // namespace sortition::costs
