// Runs attacks against real servers on loopback, and prints their cost. Fails if a bound is missed.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/attacks/trial.h"

ABSL_FLAG(std::vector<std::string>, only, {}, "Attacks and groups of attacks to run, separated by commas; empty = all");
ABSL_FLAG(std::vector<std::string>, wires, std::vector<std::string>({"tcp", "tls", "unix", "health"}),
          "Listeners to attack by HTTP/2; the other attacks need tcp");
ABSL_FLAG(int, seconds, 10, "Length of each attack");
ABSL_FLAG(int, connections, 1, "Attacking connections of each attack by HTTP/2, at most 64");
ABSL_FLAG(bool, guarded, true, "False: attack a server without its guard, and judge nothing");
ABSL_FLAG(std::string, json, "", "File for the results; empty = none");

namespace sortition::attacks {
namespace {

constexpr int kMostRepeats = 2;  // of a trial that misses a bound

double Mebibytes(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// Milliseconds, or -1 for no answer at all.
double Milliseconds(absl::Duration time) {
  return time == absl::InfiniteDuration() ? -1 : absl::ToDoubleMilliseconds(time);
}

std::string Verdict(const TrialResult& result) {
  return absl::StrCat(result.missed.empty() ? "held" : absl::StrCat("MISSED: ", absl::StrJoin(result.missed, ", ")),
                      result.traffic.refusal.empty() ? "" : absl::StrCat("; refused: ", result.traffic.refusal));
}

std::string Json(std::string_view attack, std::string_view wire, const TrialResult& result) {
  return absl::StrCat("{\"attack\":\"", std::string(attack), "\",\"wire\":\"", std::string(wire),
                      "\",\"sent_bytes\":", result.sent.bytes, ",\"connections\":", result.sent.connections,
                      ",\"ended\":", result.ended, ",\"memory_before\":", result.memory_before,
                      ",\"memory_peak\":", result.memory_peak, ",\"memory_after\":", result.memory_after,
                      ",\"p99_quiet_ms\":", Milliseconds(result.p99_quiet), ",\"p99_ms\":", Milliseconds(result.p99),
                      ",\"silence_ms\":", Milliseconds(result.silence),
                      ",\"health_silence_ms\":", Milliseconds(result.health_silence),
                      ",\"newcomer_silence_ms\":", Milliseconds(result.newcomer_silence),
                      ",\"answered_bytes\":", result.traffic.answered, ",\"asked_bytes\":", result.traffic.asked,
                      ",\"stop_ms\":", Milliseconds(result.stop), ",\"verdict\":\"", Verdict(result), "\"}");
}

void Print(std::string_view attack, std::string_view wire, const TrialResult& result) {
  std::printf("%-18s %-6s %9.1f %5u %5d %7.0f %7.0f %7.0f %8.2f %8.2f %8.0f %8.0f %7.0f  %s\n",
              std::string(attack).c_str(), std::string(wire).c_str(), Mebibytes(result.sent.bytes),
              result.sent.connections, result.ended, Mebibytes(result.memory_before), Mebibytes(result.memory_peak),
              Mebibytes(result.memory_after), Milliseconds(result.p99_quiet), Milliseconds(result.p99),
              Milliseconds(result.silence), Milliseconds(result.health_silence), Milliseconds(result.stop),
              Verdict(result).c_str());
  std::fflush(stdout);
}

bool Takes(const std::vector<std::string>& names, std::string_view name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

// Returns the exit status.
int RunAll() {
  TrialOptions options;
  options.length = absl::Seconds(std::clamp(absl::GetFlag(FLAGS_seconds), 1, 600));
  options.connections = std::clamp(absl::GetFlag(FLAGS_connections), 1, 64);
  options.guarded = absl::GetFlag(FLAGS_guarded);
  const std::vector<std::string> only = absl::GetFlag(FLAGS_only);
  const std::vector<std::string> wires = absl::GetFlag(FLAGS_wires);
  std::printf("%-18s %-6s %9s %5s %5s %7s %7s %7s %8s %8s %8s %8s %7s  %s\n", "attack", "wire", "sent MiB", "conn",
              "ended", "MiB", "peak", "after", "p99 ms", "under", "silence", "health", "stop ms", "verdict");
  std::vector<std::string> lines;
  int missed = 0;
  const auto note = [&](std::string_view name, std::string_view wire, const TrialResult& result) {
    Print(name, wire, result);
    lines.push_back(Json(name, wire, result));
    if (!result.missed.empty()) ++missed;
  };
  // Other work on the machine may slow honest clients once. Each try is printed, the last one counts.
  const auto repeat = [&](std::string_view name, std::string_view wire, const auto& run) {
    TrialResult result = run();
    for (int again = 0; again < kMostRepeats && options.guarded && !result.missed.empty(); ++again) {
      Print(name, wire, result);
      result = run();
    }
    note(name, wire, result);
  };
  for (const Wire wire : kWires) {
    if (!Takes(wires, WireName(wire))) continue;
    for (const Attack& attack : Attacks()) {
      if (!Takes(only, attack.name) && !Takes(only, "http2")) continue;
      repeat(attack.name, WireName(wire), [&] { return Run(attack, wire, options); });
    }
    if ((Takes(only, "large_steps") || Takes(only, "http2")) && wire != Wire::kHealth) {
      note("large_steps", WireName(wire), RunLargeSteps(wire, options));
    }
  }
  for (const auto& scenarios : {WorkerScenarios(), SlotScenarios(), FileScenarios()}) {
    if (!options.guarded || !Takes(wires, WireName(Wire::kTcp))) continue;
    for (const Scenario& scenario : scenarios) {
      if (!Takes(only, scenario.name) && !Takes(only, scenario.group)) continue;
      repeat(scenario.name, scenario.group, [&] { return RunScenario(scenario, options); });
    }
  }
  if (lines.empty()) {
    std::fprintf(stderr, "no attack has this name, or no listener this wire\n");
    return 2;
  }
  if (const std::string path = absl::GetFlag(FLAGS_json); !path.empty()) {
    std::ofstream(path) << "[" << absl::StrJoin(lines, ",\n") << "]\n";
  }
  return missed != 0 && options.guarded ? 1 : 0;
}

}  // namespace
}  // namespace sortition::attacks

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Attacks servers that it starts, and measures what that costs.");
  absl::ParseCommandLine(argc, argv);
  return sortition::attacks::RunAll();
}
