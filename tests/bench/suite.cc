// The measuring loop, and the flag of all suites.
#include "tests/bench/suite.h"

#include <algorithm>
#include <iostream>

#include "absl/flags/flag.h"

ABSL_FLAG(std::string, json, "", "file for the results as JSON");

namespace sortition::bench {

double Percentile(std::vector<double> values, size_t percent) {
  const size_t at = std::min(values.size() - 1, values.size() * percent / 100);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[at];
}

bool Save(const Report& report) { return WriteFile(absl::GetFlag(FLAGS_json), report.Json()); }

int Publish(const Report& report) { return Publish(report, absl::GetFlag(FLAGS_json)); }

std::vector<double> MeasureInterleaved(const std::vector<Contender>& contenders, const Schedule& schedule) {
  const size_t count = contenders.size();
  std::vector<std::vector<double>> times(count);
  // The first round warms code and branch predictors and is not counted.
  for (size_t round = 0; round <= schedule.rounds; ++round) {
    for (size_t input = 0; input < schedule.inputs; ++input) {
      for (size_t turn = 0; turn < count; ++turn) {
        const size_t who = (turn + input + round) % count;  // no contender always follows the same other one
        for (size_t call = 0; call < schedule.in_a_row; ++call) {
          const size_t which = (input + who * schedule.stride + call) % schedule.inputs;
          if (schedule.prepare) schedule.prepare(which);
          const auto start = std::chrono::steady_clock::now();
          contenders[who].run(which);
          const double time = MicrosecondsSince(start);
          if (round != 0) times[who].push_back(time);
        }
      }
    }
  }
  std::vector<double> medians;
  for (size_t who = 0; who < count; ++who) {
    medians.push_back(Percentile(std::move(times[who]), 50));
    std::cerr << "  " << contenders[who].name << ": " << medians.back() << " us\n";
  }
  return medians;
}

}  // namespace sortition::bench
