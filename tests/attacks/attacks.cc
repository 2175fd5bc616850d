// Runs attacks on HTTP/2 against real servers on loopback, and prints their cost. Fails if a bound is missed.
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

ABSL_FLAG(std::vector<std::string>, only, {}, "Attacks to run, separated by commas; empty = all");
ABSL_FLAG(std::vector<std::string>, wires, std::vector<std::string>({"tcp", "tls", "unix", "health"}),
          "Listeners to attack");
ABSL_FLAG(int, seconds, 10, "Length of each attack");
ABSL_FLAG(int, connections, 1, "Attacking connections of each attack, at most 64");
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
  return result.missed.empty() ? "held" : absl::StrCat("MISSED: ", absl::StrJoin(result.missed, ", "));
}

std::string Json(std::string_view attack, std::string_view wire, const TrialResult& result) {
  return absl::StrCat("{\"attack\":\"", std::string(attack), "\",\"wire\":\"", std::string(wire),
                      "\",\"sent_bytes\":", result.sent.bytes, ",\"connections\":", result.sent.connections,
                      ",\"ended\":", result.ended, ",\"memory_before\":", result.memory_before,
                      ",\"memory_peak\":", result.memory_peak, ",\"memory_after\":", result.memory_after,
                      ",\"p99_quiet_ms\":", Milliseconds(result.p99_quiet), ",\"p99_ms\":", Milliseconds(result.p99),
                      ",\"silence_ms\":", Milliseconds(result.silence),
                      ",\"health_silence_ms\":", Milliseconds(result.health_silence),
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
  const auto note = [&](std::string_view name, Wire wire, const TrialResult& result) {
    Print(name, WireName(wire), result);
    lines.push_back(Json(name, WireName(wire), result));
    if (!result.missed.empty()) ++missed;
  };
  for (const Wire wire : kWires) {
    if (!Takes(wires, WireName(wire))) continue;
    for (const Attack& attack : Attacks()) {
      if (!Takes(only, attack.name)) continue;
      TrialResult result = Run(attack, wire, options);
      // Other work on the machine may slow honest clients once. Each try is printed, the last one counts.
      for (int again = 0; again < kMostRepeats && options.guarded && !result.missed.empty(); ++again) {
        Print(attack.name, WireName(wire), result);
        result = Run(attack, wire, options);
      }
      note(attack.name, wire, result);
    }
    if (Takes(only, "large_steps") && wire != Wire::kHealth) note("large_steps", wire, RunLargeSteps(wire, options));
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
  absl::SetProgramUsageMessage("Attacks HTTP/2 of a server that it starts, and measures what that costs.");
  absl::ParseCommandLine(argc, argv);
  return sortition::attacks::RunAll();
}
