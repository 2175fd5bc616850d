// Results of a benchmark: a table for people, JSON for programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sortition::bench {

// One measured quantity. If it has a baseline, measured in the same run and unit, the ratio is the figure that matters.
struct Result {
  std::string name;  // lower_case_with_underscores, or such a name, / and a variant; unique in its report
  double value = 0;
  std::string unit;  // "us", "GB/s", "rows/s", ...
  std::optional<double> baseline;

  std::optional<double> Ratio() const {
    if (!baseline.has_value()) return std::nullopt;
    return value / *baseline;
  }
};

// Collects results and hands them out in the order in which they were added. Not thread-safe.
class Report {
 public:
  // `suite` names the benchmark; `machine` says where it ran (see MachineName).
  Report(std::string suite, std::string machine) : suite_(std::move(suite)), machine_(std::move(machine)) {}

  void Add(Result result) { results_.push_back(std::move(result)); }

  // Returns {"suite", "machine", "results": [{"name", "value", "unit", "baseline", "ratio"}]}; baseline and ratio are
  // null for results that have none.
  std::string Json() const;

  // Returns one line for each result, with aligned columns.
  std::string Table() const;

 private:
  std::string suite_;
  std::string machine_;
  std::vector<Result> results_;
};

class Histogram;

// Adds the results NAME_p50, _p90, _p99, _p99_9 and _max, in microseconds, with "/" and the variant unless it is empty.
// Their baselines are those of `baseline`, which may be null. Adds none if the histogram has no time.
void AddPercentiles(const std::string& name, const std::string& variant, const Histogram& times,
                    const Histogram* baseline, Report* report);

// Writes a file, unless its name is empty. Returns false if it could not, which it says on standard error.
bool WriteFile(const std::string& name, const std::string& content);

// The processor's name as the operating system reports it, or "unknown".
std::string MachineName();

// The end of every suite: the table to standard output, JSON to `json_file`, unless its name is empty. Returns the
// process's exit status: 1 if the file could not be written (said on standard error).
int Publish(const Report& report, const std::string& json_file);

}  // namespace sortition::bench
