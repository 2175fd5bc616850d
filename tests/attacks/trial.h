// One attack on one listener of a server process, or one scenario, with honest clients at the same time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/attacks/attack.h"
#include "tests/attacks/scenario.h"

namespace sortition::attacks {

// The bounds that a guarded server keeps (docs/threat-model.md).
inline constexpr uint64_t kMostGrowth = 128u << 20;  // memory during the attack
inline constexpr uint64_t kMostKept = 64u << 20;     // memory eight seconds after it
inline constexpr double kMostSlowdown = 2;           // factor of the honest clients' 99th percentile
inline constexpr absl::Duration kMostSilence = absl::Seconds(1);
inline constexpr absl::Duration kMostStop = absl::Seconds(3);

// The bounds of scenarios. JudgeScenario adds to those of times what the machine itself costs: two times the quiet
// percentile to kMostWait, and the quiet silence to kMostHealth.
inline constexpr uint64_t kMostScenarioGrowth = 256u << 20;
inline constexpr absl::Duration kMostWait = absl::Milliseconds(20);    // of honest steps, 99th percentile
inline constexpr absl::Duration kMostHealth = absl::Milliseconds(50);  // of an answer of health
inline constexpr absl::Duration kMostGreeting = absl::Seconds(1);      // of a newcomer
inline constexpr uint64_t kMostAnswer = 64;                            // bytes a byte of requests, beyond those asked

// Times without an attack and with it take turns, since other work on the machine comes and goes.
struct TrialOptions {
  absl::Duration length = absl::Seconds(10);  // of the attack, all rounds together
  absl::Duration quiet = absl::Seconds(4);    // without the attack, all rounds together
  int turns = 2;
  absl::Duration after = absl::Seconds(8);  // the server gives memory back that was free for five
  int connections = 1;                      // attacking ones
  bool idle = true;                         // the attackers take no processor time that others want
  bool guarded = true;
};

struct TrialResult {
  AttackCount sent;
  uint64_t memory_before = 0;
  uint64_t memory_peak = 0;
  uint64_t memory_after = 0;
  absl::Duration p99_quiet;
  absl::Duration p99;
  absl::Duration silence;
  absl::Duration health_silence;
  absl::Duration health_quiet;      // its longest silence without the attack; of scenarios
  absl::Duration newcomer_silence;  // likewise
  Traffic traffic;                  // likewise
  bool lost = false;                // likewise; an honest stream was ended
  absl::Duration stop;
  int ended = 0;  // connections that the server's metrics say it has ended
  bool died = false;
  std::vector<std::string> missed;  // bounds
};

TrialResult Run(const Attack& attack, Wire wire, const TrialOptions& options);

// Runs a scenario against a guarded server at its default settings.
TrialResult RunScenario(const Scenario& scenario, const TrialOptions& options);
// Adds the bounds of scenarios that the result misses.
void JudgeScenario(TrialResult* result);

// Sends at least kLargeBytes of honest steps of 8 MB back to back over one connection, waits, and sends one more. No
// client is cut, and no estimate of gRPC's grows beyond its bounds. `wire` is not kHealth, which takes no steps.
inline constexpr uint64_t kLargeBytes = 5ull << 29;
TrialResult RunLargeSteps(Wire wire, const TrialOptions& options);

}  // namespace sortition::attacks
