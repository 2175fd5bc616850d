// The parts that all suites share: interleaved timing, the usual options, the end with --json.
//
// Contenders take turns input by input, so other work on the machine slows all of them alike, and medians drop
// disturbances of a single one.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "client/bench/report.h"
#include "kernels/law/parameters.h"

namespace sortition::bench {

struct Contender {
  std::string name;
  std::function<void(size_t input)> run;
};

struct Schedule {
  size_t inputs = 64;  // each call gets another one in turn
  size_t rounds = 20;  // over all inputs
  // Called, untimed, before each timed call; may be empty.
  std::function<void(size_t input)> prepare;
  // Inputs between a contender's and the next one's, so that none finds data that another has just loaded; 0 = all take
  // the same.
  size_t stride = 0;
  // Calls of a contender in its turn, each timed, with the inputs after its first. One models a call made now and then,
  // which finds the caches as the other contenders left them; more model steady work.
  size_t in_a_row = 1;
};

// Medians in microseconds, in the contenders' order. Reports progress on standard error. Single-threaded.
std::vector<double> MeasureInterleaved(const std::vector<Contender>& contenders, const Schedule& schedule);

// A value that `percent` of the values do not exceed: 50 is the median.
double Percentile(std::vector<double> values, size_t percent);

inline double MicrosecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

inline law::SamplingParameters UsualOptions() {
  return {.temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .min_p = 0.05f};
}

// Prints the table, and writes JSON to the file of --json, if there is one. Returns the process's exit status.
int Publish(const Report& report);
// Writes what there is so far as JSON to that file, for a suite that may not reach its end. Returns false if it could
// not, which it says on standard error.
bool Save(const Report& report);

}  // namespace sortition::bench
