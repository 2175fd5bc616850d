// `./dev costs`: runs scenarios and ends with a table and what it has found.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/costs/campaign.h"
#include "tests/costs/run.h"

ABSL_FLAG(uint32_t, seconds, 120, "how long to run scenarios");
ABSL_FLAG(uint64_t, seed, 1, "of the scenarios");
ABSL_FLAG(uint64_t, work, 1 << 21, "the most tokens of a scenario's history, and its most rows times listed tokens");
ABSL_FLAG(std::string, plant, "none",
          absl::StrCat("a cause to model: ", absl::StrJoin(sortition::costs::kPlantNames, ", ")));
ABSL_FLAG(std::vector<std::string>, with, {}, "options that each scenario has, such as phases.end,mask.banned_tokens");
ABSL_FLAG(std::string, scenario, "", "run only this one, as a finding prints it, and print what it costs");
ABSL_FLAG(std::string, json, "", "File for the results; empty = none");

namespace sortition::costs {
namespace {

int RunOne(const std::string& text, Plant plant) {
  const std::optional<Scenario> scenario = Scenario::Parse(text);
  if (!scenario) {
    std::fprintf(stderr, "\"%s\" is no scenario\n", text.c_str());
    return 2;
  }
  for (int i = 0; i < 3; ++i) {
    const Measurement measured = Run(*scenario, plant);
    std::printf("%s %.3f ms, longest call %.3f ms, price %.3f ms, holds up to %ld bytes, keeps %ld\n",
                measured.is_measured ? "measured:" : "refused:", double(measured.time) / 1e6,
                double(measured.longest_call) / 1e6, double(measured.price) / 1e6, measured.peak_bytes,
                measured.kept_bytes);
  }
  return 0;
}

int Main() {
  const std::string name = absl::GetFlag(FLAGS_plant);
  const auto* const plant = std::ranges::find(kPlantNames, name);
  if (plant == std::end(kPlantNames)) {
    std::fprintf(stderr, "no plant \"%s\"; there are: %s\n", name.c_str(), absl::StrJoin(kPlantNames, ", ").c_str());
    return 2;
  }
  if (const std::string text = absl::GetFlag(FLAGS_scenario); !text.empty()) {
    return RunOne(text, static_cast<Plant>(plant - std::begin(kPlantNames)));
  }
  CampaignOptions options;
  options.seed = absl::GetFlag(FLAGS_seed);
  options.plant = static_cast<Plant>(plant - std::begin(kPlantNames));
  options.time = absl::Seconds(absl::GetFlag(FLAGS_seconds));
  options.work = absl::GetFlag(FLAGS_work);
  const std::vector<std::string> with = absl::GetFlag(FLAGS_with);
  options.with = {with.begin(), with.end()};
  const CampaignResult result = RunCampaign(options);
  std::printf("%s\n", TableOf(result).c_str());
  for (const Finding& finding : result.findings) {
    std::printf("%s: %s\n  %s\n", std::string(kExcessNames[static_cast<size_t>(finding.excess)]).c_str(),
                finding.text.c_str(), finding.scenario.Text().c_str());
  }
  std::printf("%lu scenarios, %lu runs, %zu findings\n", result.scenarios, result.measured, result.findings.size());
  if (const std::string path = absl::GetFlag(FLAGS_json); !path.empty()) std::ofstream(path) << JsonOf(options, result);
  return result.findings.empty() ? 0 : 1;
}

}  // namespace
}  // namespace sortition::costs

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("compares what messages of every kind cost a stream's thread with their price");
  absl::ParseCommandLine(argc, argv);
  return sortition::costs::Main();
}
