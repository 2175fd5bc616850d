// Time of the CPU's kernel for a row, beside the best plain loop over the same row, on one thread.
//
//   bench_cpu [--json FILE] [--rounds N] [--only PREFIX]
//
// NAME/TARGET: the case NAME on another instruction set than the best. rows_2_threads: time of a row in a device's
// batch on two threads, beside one thread; these rows fill 33 MB, so they come from the cache or memory that holds as
// much.
#include <algorithm>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "client/bench/logits.h"
#include "devices/cpu/cpu_device.h"
#include "kernels/cpu/sample_row.h"
#include "kernels/law/parameters.h"
#include "tests/bench/cpu/baselines.h"
#include "tests/bench/suite.h"
#include "tests/support/run_batch.h"

ABSL_FLAG(uint32_t, rounds, 20, "how often every row is sampled");
ABSL_FLAG(std::string, only, "", "measure only cases whose name starts with this");

namespace sortition::bench {
namespace {

using kernels::DType;
using kernels::LogitEdit;
using kernels::RowOutput;
using kernels::RowParameters;
using kernels::RowRequest;

constexpr uint32_t kVocabulary = 128256;
constexpr size_t kRows = 64;
constexpr std::string_view kOnEveryTarget[] = {"token_f32",    "token_f32_penalties", "temperature_peaked",
                                               "api_top_p",    "api_logprobs",        "token_bf16",
                                               "logprobs_f32", "greedy_f32"};
constexpr size_t kRowsInMemory = 320;  // 164 MB: more than caches hold

enum class Baseline { kMax, kMaxBf16, kExpSum };

struct Case {
  std::string name;
  const kernels::cpu::Target* target = &kernels::cpu::BestTarget();
  law::SamplingParameters options;
  Shape shape = Shape::kPeaked;
  DType dtype = DType::kF32;
  Baseline baseline = Baseline::kMax;
  bool penalties = false;
  bool raw_logprob = false;
  uint32_t named = 0;  // logprob_token_ids
  bool from_memory = false;
};

std::vector<Case> CasesOfBestTarget() {
  law::SamplingParameters repeating = UsualOptions();
  repeating.repetition_penalty = 1.1f;
  repeating.frequency_penalty = 0.2f;
  std::vector<Case> cases = {
      {.name = "token_f32", .options = UsualOptions()},
      {.name = "token_f32_flat", .options = UsualOptions(), .shape = Shape::kFlat},
      {.name = "token_f32_ties", .options = UsualOptions(), .shape = Shape::kTies},
      {.name = "token_f32_penalties", .options = repeating, .penalties = true},
      {.name = "temperature_peaked", .options = {.temperature = 0.8f}},
      {.name = "temperature_flat", .options = {.temperature = 0.8f}, .shape = Shape::kFlat},
      {.name = "token_bf16", .options = UsualOptions(), .dtype = DType::kBF16, .baseline = Baseline::kMaxBf16},
      {.name = "logprobs_f32", .options = UsualOptions(), .baseline = Baseline::kExpSum, .raw_logprob = true},
      {.name = "logprobs_f32_named_20",
       .options = UsualOptions(),
       .baseline = Baseline::kExpSum,
       .raw_logprob = true,
       .named = 20},
      {.name = "logprobs_f32_named_1000",
       .options = UsualOptions(),
       .baseline = Baseline::kExpSum,
       .raw_logprob = true,
       .named = 1000},
      {.name = "top_p_unbounded", .options = {.top_p = 0.95f}, .baseline = Baseline::kExpSum},
      {.name = "top_p_unbounded_flat",
       .options = {.top_p = 0.95f},
       .shape = Shape::kFlat,
       .baseline = Baseline::kExpSum},
      {.name = "token_f32_dram", .options = UsualOptions(), .from_memory = true},
      {.name = "greedy_f32", .options = {.temperature = 0}},
      {.name = "worst_row", .options = {.temperature = 0.8f}, .shape = Shape::kOneAGroup},
  };
  // Adds what most callers of an interface like OpenAI's send.
  const law::SamplingParameters usual = {.temperature = 0.8f, .top_p = 0.95f};
  for (const auto& [suffix, shape] :
       {std::pair("", Shape::kPeaked), {"_soft", Shape::kSoft}, {"_flat", Shape::kFlat}}) {
    const auto add = [&](std::string name, const law::SamplingParameters& options, bool raw_logprob) {
      cases.push_back({.name = name + suffix,
                       .options = options,
                       .shape = shape,
                       .baseline = Baseline::kExpSum,
                       .raw_logprob = raw_logprob});
    };
    add("api_plain", {.temperature = 1}, false);
    add("api_top_p", usual, false);
    add("api_logprobs", usual, true);
  }
  return cases;
}

// All cases on the best target. On the other targets, except the one without vectors, only the cases in kOnEveryTarget,
// which differ most.
std::vector<Case> Cases() {
  std::vector<Case> cases = CasesOfBestTarget();
  const std::vector<Case> best = cases;
  for (const kernels::cpu::Target* target : kernels::cpu::RunnableTargets()) {
    if (target == &kernels::cpu::BestTarget() || target->name == "scalar") continue;
    for (Case what : best) {
      if (std::ranges::find(kOnEveryTarget, what.name) == std::end(kOnEveryTarget)) continue;
      what.name.append("/").append(target->name);
      what.target = target;
      cases.push_back(std::move(what));
    }
  }
  return cases;
}

// 512 distinct tokens as a text has them: half of them anywhere, the others among the row's likely ones.
std::vector<LogitEdit> Penalties(const Logits& logits, size_t row, const law::SamplingParameters& options) {
  const auto* const values = reinterpret_cast<const float*>(logits.row(row));
  std::vector<uint32_t> ids(logits.vocabulary());
  for (uint32_t id = 0; id < ids.size(); ++id) ids[id] = id;
  std::partial_sort(ids.begin(), ids.begin() + 256, ids.end(),
                    [&](uint32_t a, uint32_t b) { return values[a] > values[b]; });
  std::mt19937_64 random(row);
  std::shuffle(ids.begin() + 256, ids.end(), random);
  ids.resize(512);
  std::sort(ids.begin(), ids.end());
  std::vector<LogitEdit> edits;
  for (const uint32_t id : ids) {
    const auto count = uint32_t(1 + random() % 4);
    edits.push_back({.token = id,
                     .flags = LogitEdit::kRepeated,
                     .penalty = law::PenaltyBits(options.frequency_penalty, options.presence_penalty, count)});
  }
  return edits;
}

// Everything that a case needs to sample any of its rows.
class Sampling {
 public:
  explicit Sampling(const Case& what)
      : target_(*what.target), logits_(what.shape, what.dtype, what.from_memory ? kRowsInMemory : kRows, kVocabulary) {
    law::Compile(what.options, &parameters_);
    parameters_.raw_logprob = what.raw_logprob;
    parameters_.raw_top = what.raw_logprob ? 5 : 0;
    std::mt19937_64 random(1);
    for (uint32_t i = 0; i < what.named; ++i) named_.push_back(uint32_t(random() % kVocabulary));
    if (what.penalties) {
      for (size_t row = 0; row < kRows; ++row) edits_.push_back(Penalties(logits_, row, what.options));
    }
  }

  const Logits& logits() const { return logits_; }

  RowRequest Request(size_t row) {
    RowRequest request;
    request.logits = logits_.row(row);
    request.dtype = logits_.dtype();
    request.live_vocabulary = kVocabulary;
    request.parameters = &parameters_;
    request.noise = {.seed = 1234, .position = position_++, .stream = 0};
    if (!edits_.empty()) request.edits = edits_[row];
    request.requested = named_;
    return request;
  }

  void Sample(size_t row) {
    kernels::cpu::SampleRow(target_, Request(row), &scratch_, &answer_);
    asm volatile("" ::"r"(answer_.token));
  }

 private:
  const kernels::cpu::Target& target_;
  Logits logits_;
  RowParameters parameters_;
  std::vector<std::vector<LogitEdit>> edits_;  // by row; empty if the case has none
  std::vector<uint32_t> named_;
  kernels::cpu::Scratch scratch_;
  RowOutput answer_;
  uint32_t position_ = 0;
};

void RunBaseline(Baseline baseline, const Logits& logits, size_t row) {
  const void* const data = logits.row(row);
  float result = 0;
  if (baseline == Baseline::kMax) result = MaxPass(static_cast<const float*>(data), kVocabulary);
  if (baseline == Baseline::kMaxBf16) result = MaxPassBf16(static_cast<const int16_t*>(data), kVocabulary);
  if (baseline == Baseline::kExpSum) result = ExpSumPass(static_cast<const float*>(data), kVocabulary, 20);
  asm volatile("" ::"x"(result));
}

void Measure(const Case& what, Report* report) {
  Sampling sampling(what);
  const Logits& logits = sampling.logits();
  Schedule schedule;
  schedule.inputs = logits.count();
  schedule.rounds = absl::GetFlag(FLAGS_rounds);
  const std::vector<Contender> contenders = {
      {"baseline", [&](size_t row) { RunBaseline(what.baseline, logits, row); }},
      {"sample", [&](size_t row) { sampling.Sample(row); }},
  };
  if (what.from_memory) {
    schedule.stride = logits.count() / contenders.size();
  } else {
    schedule.prepare = [&](size_t row) { Warm(logits, row); };
  }
  const std::vector<double> medians = MeasureInterleaved(contenders, schedule);
  report->Add({what.name, medians[1], "us", medians[0]});
  if (what.target != &kernels::cpu::BestTarget()) return;
  report->Add({what.name + "_baseline", double(logits.row_bytes()) / medians[0] / 1e3, "GB/s", std::nullopt});
}

// Samples all rows as one batch.
void RunBatch(Sampling* sampling, devices::CpuDevice* device) {
  std::vector<devices::DeviceRow> rows(kRows);
  for (size_t row = 0; row < kRows; ++row) {
    rows[row].request = sampling->Request(row);
    rows[row].segments.push_back({sampling->logits().row(row), sampling->logits().row_bytes()});
  }
  testing::RunBatch(device, std::move(rows));
}

void MeasureThreads(Report* report) {
  Sampling sampling({.name = "rows", .options = UsualOptions()});
  devices::CpuDevice one({.threads = 1});
  devices::CpuDevice two({.threads = 2});
  Schedule schedule;
  schedule.inputs = 1;
  schedule.rounds = 10 * size_t{absl::GetFlag(FLAGS_rounds)};
  const std::vector<double> medians = MeasureInterleaved({{"one thread", [&](size_t) { RunBatch(&sampling, &one); }},
                                                          {"two threads", [&](size_t) { RunBatch(&sampling, &two); }}},
                                                         schedule);
  report->Add({"rows_2_threads", medians[1] / kRows, "us", medians[0] / kRows});
}

}  // namespace
}  // namespace sortition::bench

int main(int argc, char** argv) {
  using namespace sortition::bench;
  absl::ParseCommandLine(argc, argv);
  Report report("cpu", MachineName());
  const std::string only = absl::GetFlag(FLAGS_only);
  std::vector<Case> cases;
  for (const Case& what : Cases()) {
    if (what.name.starts_with(only)) cases.push_back(what);
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    std::cerr << "[" << i + 1 << "/" << cases.size() << "] " << cases[i].name << "\n";
    Measure(cases[i], &report);
  }
  if (std::string("rows_2_threads").starts_with(only)) MeasureThreads(&report);
  return Publish(report);
}
