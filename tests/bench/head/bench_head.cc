// Counts how much of a language model's head is computed again if sampling is the end of its product (fused_head.h).
//
//   bench_head [--rows N] [--json FILE]
//
// ROWS/OPTIONS/maxima: tokens of the groups computed again after an exact pass, on average over the rows; the baseline
// is the vocabulary. ROWS/OPTIONS/EPSILON: tokens computed after a pass that knows each logit within +-EPSILON;
// int8: within the proved bounds of a head whose weights have 8 bits. Each token drawn is compared with the
// reference's.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "client/demo/language_model.h"
#include "kernels/check.h"
#include "kernels/law/reference.h"
#include "tests/bench/head/fused_head.h"
#include "tests/bench/suite.h"

ABSL_FLAG(uint32_t, rows, 24, "rows of each kind");

namespace sortition::bench {
namespace {

constexpr float kErrors[] = {0.02f, 0.1f, 0.5f};

// Rows of one kind. Exact bounds where the head is there; otherwise none.
struct Rows {
  std::string name;
  std::vector<std::vector<float>> logits;
  std::vector<std::vector<float>> errors;  // of a pass of low precision, by token
  std::vector<std::vector<float>> screened;
};

// Texts of the demonstration's model, drawn at temperature 1.
Rows RecordedRows(uint32_t count) {
  const demo::LanguageModel model(demo::Tales());
  Rows rows = {.name = "recorded", .logits = {}, .errors = {}, .screened = {}};
  kernels::RowParameters parameters;
  law::Compile({}, &parameters);
  std::vector<uint32_t> text;
  for (uint32_t position = 0; position < 8 * count; ++position) {
    std::vector<float> row = model.Logits(text);
    kernels::RowRequest request;
    request.logits = row.data();
    request.live_vocabulary = model.size();
    request.parameters = &parameters;
    request.noise = {.seed = 1, .position = position};
    text.push_back(law::SampleRowReference(request).token);
    if (text.back() == demo::LanguageModel::kEnd) text.clear();
    if (position % 8 == 7) rows.logits.push_back(std::move(row));
  }
  return rows;
}

// Probabilities by Zipf's law, p ~ 1 / rank^1.1, over ids in random order.
Rows ZipfRows(uint32_t count) {
  Rows rows = {.name = "zipf", .logits = {}, .errors = {}, .screened = {}};
  std::mt19937_64 random(7);
  for (uint32_t i = 0; i < count; ++i) {
    std::vector<uint32_t> ranks(128'256);
    std::iota(ranks.begin(), ranks.end(), 1u);
    std::ranges::shuffle(ranks, random);
    std::vector<float>& logits = rows.logits.emplace_back();
    for (const uint32_t rank : ranks) logits.push_back(-1.1f * std::log(float(rank)));
  }
  return rows;
}

// A head of normal weights, and hidden states for which its logits have a deviation of 3. The pass of low precision
// takes weights of 8 bits and one scale a token. Its error is at most the norm of the weights' rounding errors times
// the hidden state's norm, plus the rounding of two sums.
Rows HeadRows(uint32_t count) {
  constexpr uint32_t kVocabulary = 16'384;
  constexpr uint32_t kWidth = 512;
  Rows rows = {.name = "head_512", .logits = {}, .errors = {}, .screened = {}};
  std::mt19937_64 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> weights(size_t{kVocabulary} * kWidth);
  std::vector<float> rounded(weights.size());
  std::vector<double> taken(kVocabulary);
  std::vector<double> norms(kVocabulary);
  for (uint32_t token = 0; token < kVocabulary; ++token) {
    float* const w = &weights[size_t{token} * kWidth];
    float largest = 0;
    for (uint32_t i = 0; i < kWidth; ++i) largest = std::max(largest, std::abs(w[i] = normal(random)));
    const float scale = largest / 127;
    for (uint32_t i = 0; i < kWidth; ++i) {
      const float value = std::nearbyint(w[i] / scale) * scale;
      rounded[size_t{token} * kWidth + i] = value;
      taken[token] += double(w[i] - value) * double(w[i] - value);
      norms[token] += double(w[i]) * double(w[i]) + double(value) * double(value);
    }
  }
  for (uint32_t row = 0; row < count; ++row) {
    std::vector<float> hidden(kWidth);
    double norm = 0;
    for (float& value : hidden) {
      value = normal(random) * 3 / std::sqrt(float(kWidth));
      norm += double(value) * double(value);
    }
    const auto product = [&](const std::vector<float>& matrix, uint32_t token) {
      float sum = 0;
      for (uint32_t i = 0; i < kWidth; ++i) sum += matrix[size_t{token} * kWidth + i] * hidden[i];
      return sum;
    };
    std::vector<float>& logits = rows.logits.emplace_back();
    std::vector<float>& errors = rows.errors.emplace_back();
    std::vector<float>& screened = rows.screened.emplace_back();
    for (uint32_t token = 0; token < kVocabulary; ++token) {
      logits.push_back(product(weights, token));
      screened.push_back(product(rounded, token));
      const double sums = kWidth * 0x1p-23 * std::sqrt(norms[token]);
      errors.push_back(float((std::sqrt(taken[token]) + 2 * sums) * std::sqrt(norm) * 1.0001));
    }
  }
  return rows;
}

struct Options {
  const char* name;
  law::SamplingParameters parameters;
};

void Count(const Rows& rows, const Options& options, Report* report) {
  kernels::RowParameters parameters;
  law::Compile(options.parameters, &parameters);
  const size_t tries = rows.errors.empty() ? std::size(kErrors) : 1;
  std::vector<double> computed(1 + tries);
  std::mt19937_64 random(5);
  for (size_t i = 0; i < rows.logits.size(); ++i) {
    const std::vector<float>& logits = rows.logits[i];
    LazyRow row = {.vocabulary = uint32_t(logits.size()),
                   .exact = [&](uint32_t token) { return logits[token]; },
                   .low = std::vector<float>(logits.size()),
                   .high = std::vector<float>(logits.size())};
    kernels::RowRequest request;
    request.logits = logits.data();
    request.live_vocabulary = row.vocabulary;
    request.parameters = &parameters;
    request.noise = {.seed = 11, .position = uint32_t(i)};
    const uint32_t expected = law::SampleRowReference(request).token;
    const auto add = [&](const Drawn& drawn, size_t at) {
      SORTITION_CHECK(drawn.token == expected);
      computed[at] += double(drawn.computed) / double(rows.logits.size());
    };
    add(DrawFromMaxima(row, parameters, request.noise), 0);
    for (size_t at = 0; at < tries; ++at) {
      for (uint32_t token = 0; token < row.vocabulary; ++token) {
        float middle = 0;
        float error = kErrors[at];
        if (rows.errors.empty()) {
          middle = logits[token] + error * (float(random() % 2001) / 1000.0f - 1) * 0.999f;
        } else {
          middle = rows.screened[i][token];
          error = rows.errors[i][token];
        }
        row.low[token] = middle - error;
        row.high[token] = middle + error;
        SORTITION_CHECK(row.low[token] <= logits[token] && logits[token] <= row.high[token]);
      }
      add(DrawScreened(row, parameters, request.noise), 1 + at);
    }
  }
  const auto vocabulary = double(rows.logits[0].size());
  const std::string name = absl::StrCat(rows.name, "/", options.name, "/");
  report->Add({absl::StrCat(name, "maxima"), computed[0], "tokens", vocabulary});
  for (size_t at = 0; at < tries; ++at) {
    const std::string error = rows.errors.empty() ? absl::StrCat(kErrors[at]) : "int8";
    report->Add({absl::StrCat(name, error), computed[1 + at], "tokens", vocabulary});
  }
}

int Run() {
  const std::vector<Options> options = {{"greedy", {.temperature = 0}},
                                        {"race", {}},
                                        {"race_0.7", {.temperature = 0.7f}},
                                        {"top_k_50", {.temperature = 0.7f, .top_k = 50}},
                                        {"min_p_0.05", {.temperature = 1, .min_p = 0.05f}}};
  Report report("head", MachineName());
  const uint32_t count = std::max(1u, absl::GetFlag(FLAGS_rows));
  for (const auto& make : {RecordedRows, ZipfRows, HeadRows}) {
    const Rows rows = make(count);
    if (!rows.errors.empty()) {
      const std::vector<float>& errors = rows.errors[0];
      const double sum = std::accumulate(errors.begin(), errors.end(), 0.0);
      report.Add({absl::StrCat(rows.name, "/bound"), sum / double(errors.size()), "logits", {}});
    }
    for (const Options& one : options) Count(rows, one, &report);
  }
  return Publish(report);
}

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return sortition::bench::Run();
}
