// Cost of each sampler alone, at temperature 0.8, on one thread. The baseline is the same run's usual token; for
// samplers that need the whole row's probabilities, the token with exact logprobs, or temperature alone where bounds on
// them suffice.
//
//   bench_samplers [--json FILE] [--rounds N] [--only PREFIX]
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "tests/bench/samplers/history.h"
#include "tests/bench/samplers/sampling.h"
#include "tests/bench/samplers/verify.h"

ABSL_FLAG(uint32_t, rounds, 10, "how often every row is sampled");
ABSL_FLAG(std::string, only, "", "measure only cases whose name starts with this");

namespace sortition::bench {
namespace {

constexpr uint32_t kVocabulary = 128256;
constexpr size_t kRows = 64;

struct Case {
  std::string name;
  law::SamplingParameters options;
  enum { kToken, kLogprobs, kTemperature } baseline = kToken;
};

std::vector<Case> Cases() {
  law::SamplingParameters llama = UsualOptions();
  const auto order = law::PresetOrder(law::Preset::kLlamaCpp);
  llama.order.assign(order.begin(), order.end());
  const float t = 0.8f;
  return {
      {"top_k", {.temperature = t, .top_k = 50}},
      {"min_p", {.temperature = t, .min_p = 0.05f}},
      {"top_p", {.temperature = t, .top_p = 0.95f}, Case::kLogprobs},
      {"chain_llama_cpp", llama},
      {"top_n_sigma", {.temperature = t, .top_n_sigma = 1}},
      {"top_h", {.temperature = t, .top_h = 0.4f}},
      {"quadratic_smoothing", {.temperature = t, .smoothing_factor = 0.3f, .smoothing_curve = 1.5f}},
      {"typical_p", {.temperature = t, .typical_p = 0.9f}, Case::kTemperature},
      {"epsilon_cutoff", {.temperature = t, .epsilon_cutoff = 3e-4f}, Case::kTemperature},
      {"eta_cutoff", {.temperature = t, .eta_cutoff = 3e-4f}, Case::kTemperature},
      {"top_a", {.temperature = t, .top_a = 0.2f}, Case::kTemperature},
      {"p_less", {.temperature = t, .p_less = true}, Case::kTemperature},
      {"min_k", {.temperature = t, .min_k = true}},
      {"min_keep", {.temperature = t, .top_k = 50, .top_p = 0.95f, .min_p = 0.05f, .min_keep = 5}},
      {"xtc", {.temperature = t, .xtc_probability = 1, .xtc_threshold = 0.1f}, Case::kTemperature},
      {"dynamic_temperature", {.temperature = t, .dynamic_temperature_range = 0.5f}, Case::kLogprobs},
      {"mirostat_1", {.temperature = t, .mirostat = 1}, Case::kTemperature},
      {"mirostat_2", {.temperature = t, .mirostat = 2}, Case::kTemperature},
      {"adaptive_p", {.temperature = t, .adaptive_p = true, .adaptive_target = 0.3f}, Case::kLogprobs},
      {"adaptive_p_min_p", {.temperature = t, .min_p = 0.05f, .adaptive_p = true, .adaptive_target = 0.3f}},
  };
}

void Measure(const Case& what, const Logits& logits, Report* report) {
  const law::SamplingParameters temperature = {.temperature = what.options.temperature};
  Sampling baseline(logits, what.baseline == Case::kTemperature ? temperature : UsualOptions(),
                    what.baseline == Case::kLogprobs);
  Sampling sampler(logits, what.options);
  Schedule schedule;
  schedule.inputs = kRows;
  schedule.rounds = absl::GetFlag(FLAGS_rounds);
  schedule.prepare = [&](size_t row) { Warm(logits, row); };
  const std::vector<double> medians = MeasureInterleaved(
      {{"baseline", [&](size_t row) { baseline(row); }}, {what.name, [&](size_t row) { sampler(row); }}}, schedule);
  report->Add({what.name, medians[1], "us", medians[0]});
}

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) {
  using namespace sortition::bench;
  absl::ParseCommandLine(argc, argv);
  Report report("samplers", MachineName());
  const Logits logits(Shape::kPeaked, sortition::kernels::DType::kF32, kRows, kVocabulary);
  for (const Case& what : Cases()) {
    if (what.name.starts_with(absl::GetFlag(FLAGS_only))) Measure(what, logits, &report);
  }
  if (absl::GetFlag(FLAGS_only).empty()) MeasureHistory(logits, absl::GetFlag(FLAGS_rounds), &report);
  if (std::string_view("verify_8").starts_with(absl::GetFlag(FLAGS_only))) {
    MeasureVerify(logits, absl::GetFlag(FLAGS_rounds), &report);
  }
  return Publish(report);
}
