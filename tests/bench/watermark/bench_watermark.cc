// Measures the errors of the watermark's detector: texts of the demonstration's language model, with the watermark and
// without.
//
//   bench_watermark [--json FILE] [--windows N] [--texts N]
//
// false_positives/P: the share of windows of 200 tokens without a mark whose p-value is below P; the baseline is P. The
// windows are cut from one text of 10^6 tokens, and each is looked at with many keys. found_T/P: the share of texts of
// 200 tokens, drawn with the mark at temperature T, whose p-value is below P; entropy_T: their mean entropy a token.
#include <algorithm>
#include <array>
#include <atomic>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <variant>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "client/demo/language_model.h"
#include "kernels/check.h"
#include "sortition/local_sequence.h"
#include "sortition/watermark.h"
#include "tests/bench/suite.h"

ABSL_FLAG(uint64_t, windows, 100'000, "windows without a mark");
ABSL_FLAG(uint32_t, texts, 100, "texts with a mark, for each temperature");

namespace sortition::bench {
namespace {

constexpr uint32_t kTokens = 200;
constexpr uint32_t kContext = 4;  // tokens before the first that counts
constexpr uint32_t kText = 1'000'000;
constexpr double kLevels[] = {1e-2, 1e-3, 1e-4, 1e-5, 1e-6};

struct Text {
  std::vector<uint32_t> tokens;
  double entropy = 0;  // nats a token, on average
};

// Draws a text; stories follow each other.
Text Write(const demo::LanguageModel& model, uint32_t length, float temperature, uint64_t seed,
           std::optional<uint64_t> key) {
  client::SequenceOptions options;
  options.request_id = "text";
  options.vocabulary_size = model.size();
  options.seed = seed;
  options.parameters.set_temperature(temperature);
  options.parameters.set_entropy(true);
  if (key) options.parameters.mutable_watermark()->set_key(*key);
  auto sequence = client::LocalSequence::Open(options);
  SORTITION_CHECK(sequence.ok());
  Text text;
  size_t begin = 0;  // of the story
  while (text.tokens.size() < length) {
    const std::vector<float> row = model.Logits(std::span(text.tokens).subspan(begin));
    const auto result = (*sequence)->Step(v1::DTYPE_F32, {.logits = row.data()});
    const auto* const draw = std::get_if<v1::DrawResult>(&result);
    SORTITION_CHECK(draw != nullptr);
    text.tokens.push_back(draw->token());
    text.entropy += double(draw->entropy()) / length;
    if (draw->token() == demo::LanguageModel::kEnd) begin = text.tokens.size();
  }
  return text;
}

void MeasureFalsePositives(const demo::LanguageModel& model, Report* report) {
  const std::vector<uint32_t> text = Write(model, kText, 1, 1, std::nullopt).tokens;
  const uint64_t windows = text.size() / (kTokens + kContext);
  const uint64_t keys = (absl::GetFlag(FLAGS_windows) + windows - 1) / windows;
  std::array<std::atomic<uint64_t>, std::size(kLevels)> below = {};
  std::atomic<uint64_t> next_key = 0;
  const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  {
    std::vector<std::jthread> workers;
    for (unsigned i = 0; i < threads; ++i) {
      workers.emplace_back([&] {
        for (uint64_t key = next_key++; key < keys; key = next_key++) {
          for (uint64_t window = 0; window < windows; ++window) {
            const auto part = std::span(text).subspan(window * (kTokens + kContext), kTokens + kContext);
            const double p = client::DetectWatermark({.key = key * 0x9e3779b97f4a7c15}, part).p_value;
            for (size_t level = 0; level < std::size(kLevels); ++level) below[level] += p < kLevels[level] ? 1 : 0;
          }
        }
      });
    }
  }
  const auto count = double(keys * windows);
  report->Add({"windows", count, "", std::nullopt});
  for (size_t level = 0; level < std::size(kLevels); ++level) {
    report->Add({absl::StrCat("false_positives/", kLevels[level]), double(below[level]) / count, "", kLevels[level]});
  }
}

void MeasureFound(const demo::LanguageModel& model, Report* report) {
  const uint32_t texts = absl::GetFlag(FLAGS_texts);
  for (const float temperature : {0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f, 1.0f}) {
    double entropy = 0;
    std::array<uint32_t, std::size(kLevels)> found = {};
    for (uint32_t i = 0; i < texts; ++i) {
      // A key a text: texts of one key have contexts in common.
      const Text text = Write(model, kTokens + kContext, temperature, i, i + 1);
      entropy += text.entropy / texts;
      const double p = client::DetectWatermark({.key = i + 1}, text.tokens).p_value;
      for (size_t level = 0; level < std::size(kLevels); ++level) found[level] += p < kLevels[level] ? 1 : 0;
    }
    report->Add({absl::StrCat("entropy_", temperature), entropy, "nats", std::nullopt});
    for (size_t level = 0; level < std::size(kLevels); ++level) {
      report->Add(
          {absl::StrCat("found_", temperature, "/", kLevels[level]), double(found[level]) / texts, "", std::nullopt});
    }
  }
}

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) {
  using namespace sortition::bench;
  absl::ParseCommandLine(argc, argv);
  Report report("watermark", MachineName());
  const sortition::demo::LanguageModel model(sortition::demo::Tales());
  MeasureFound(model, &report);
  MeasureFalsePositives(model, &report);
  return Publish(report);
}
