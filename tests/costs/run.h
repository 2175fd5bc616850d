// Runs a scenario with a real service and measures its last message.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "sortition/v1/sampling.pb.h"
#include "tests/costs/facts.h"
#include "tests/costs/scenario.h"

namespace sortition::costs {

struct Measurement {
  uint64_t time = 0;          // nanoseconds of the stream's thread
  uint64_t longest_call = 0;  // likewise, of the message's beginning with the decoding before it, or of one Continue
  uint64_t device_time = 0;   // of all other threads
  uint64_t price = 0;         // nanoseconds
  int64_t peak_bytes = 0;     // while the message was served
  int64_t kept_bytes = 0;     // after its answers have left
  int64_t left_bytes = 0;     // after the stream's end; sequences stay
  int64_t left_charged_bytes = 0;
  int64_t charged_bytes = 0;  // by the service's accounts
  int64_t window_bytes = 0;   // charged to the stream's window while the message was served, beyond its own bytes
  uint64_t request_bytes = 0;
  uint64_t shard_bytes = 0;    // of the shards before it, which its answers answer too
  uint64_t message_bytes = 0;  // the request's as a parsed message, which the limit max_message_parts bounds
  uint64_t answer_bytes = 0;
  uint64_t positions = 0;    // of all of its rows
  uint64_t asked_bytes = 0;  // of an answer with all that the options ask for
  v1::Error error;  // of the measured message; of an earlier one if that was refused, and then nothing is measured
  bool is_measured = false;
};

// Runs it from an empty engine on. The names of fields that occur in messages that are not refused are added to `*sent`
// if it is not null.
Measurement Run(const Scenario& scenario, Plant plant, std::set<std::string>* sent = nullptr);

}  // namespace sortition::costs
