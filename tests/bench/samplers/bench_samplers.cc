// How long samplers take for a row, beside a plain token of the same run, on one thread.
//
//   bench_samplers [--json FILE] [--plot FILE] [--rounds N]
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "tests/bench/report.h"
#include "tests/bench/samplers/history.h"

ABSL_FLAG(std::string, json, "", "file for the results as JSON");
ABSL_FLAG(std::string, plot, "", "file for a picture of the results (SVG)");
ABSL_FLAG(uint32_t, rounds, 20, "how often every row is sampled");

int main(int argc, char** argv) {
  using namespace sortition::bench;
  absl::ParseCommandLine(argc, argv);
  Report report("samplers", MachineName());
  MeasureHistory(absl::GetFlag(FLAGS_rounds), &report);
  return Publish(report, absl::GetFlag(FLAGS_json), absl::GetFlag(FLAGS_plot));
}
