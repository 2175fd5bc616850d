// The measuring loop.
#include "tests/bench/interleaved.h"

#include <algorithm>
#include <chrono>
#include <iostream>

namespace sortition::bench {
namespace {

double Median(std::vector<double> values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::vector<double> MeasureInterleaved(const std::vector<Contender>& contenders, const Schedule& schedule) {
  using Clock = std::chrono::steady_clock;
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
          const Clock::time_point start = Clock::now();
          contenders[who].run(which);
          const std::chrono::duration<double, std::micro> time = Clock::now() - start;
          if (round != 0) times[who].push_back(time.count());
        }
      }
    }
  }
  std::vector<double> medians;
  for (size_t who = 0; who < count; ++who) {
    medians.push_back(Median(std::move(times[who])));
    std::cerr << "  " << contenders[who].name << ": " << medians.back() << " us\n";
  }
  return medians;
}

}  // namespace sortition::bench
