// Rows for implementations of the law that are not this tree's kernels, in the form of golden outputs.
//
//   verifier_rows make ROWS SEED VOCABULARY   random rows of 1 to VOCABULARY tokens with the reference's answers, each
//                                             a JSON object on one line
//   verifier_rows histories ROWS SEED         random rows beside the histories from which their edits and noise follow
//   verifier_rows records ROWS SEED VOCABULARY  rows as of `make` that ask for the tempered distribution too, for
//                                             the kept mass and the place in the race
//   verifier_rows compact ROWS SEED           random rows beside compact rows that decide them
//   verifier_rows options                     rows with each sampling option at several values and in each preset's
//                                             order; a row's name is its options as JSON
//   verifier_rows filters                     rows with min_k and min_keep, likewise, XTC among equal first tokens, and
//                                             random rows
//   verifier_rows answer FILE                 the rows of FILE with the reference's answers, each on one line: for rows
//                                             of which a part was changed by hand
//   verifier_rows check FILE                  samples the rows of FILE again, with the reference and with the CPU
//                                             kernels of every target; a line for each difference, exit status 1
#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "kernels/cpu/sample_row.h"
#include "kernels/law/chain.h"
#include "kernels/law/golden/golden_row_makers.h"
#include "kernels/law/reference.h"
#include "tests/conformance/random_row.h"
#include "tests/verifier/history_rows.h"
#include "tests/verifier/published_row.h"
#include "tests/verifier/row_text.h"

namespace sortition::testing {
namespace {

using kernels::DType;
using kernels::OptionsKind;
using kernels::RandomRow;

void PrintRow(const law::GoldenRow& row) { std::printf("%s\n", RowText(row).c_str()); }

int Make(uint32_t rows, uint32_t seed, uint32_t vocabulary) {
  for (uint32_t i = 0; i < rows; ++i) {
    const uint64_t row_seed = uint64_t{seed} << 32 | i;
    // Every second row has a chain, every third another task than a draw.
    RandomRow random(row_seed, 1 + uint32_t(row_seed * 0x9e3779b97f4a7c15 >> 33) % vocabulary,
                     i % 2 == 0 ? OptionsKind::kChained : OptionsKind::kPlain);
    if (i % 3 == 0) random.AskForMore();
    if (i % 4 == 0) random.KeepAtLeast();
    PrintRow(GoldenRowOf(random.request(), random.description()));
  }
  return 0;
}

int MakeRecords(uint32_t rows, uint32_t seed, uint32_t vocabulary) {
  for (uint32_t i = 0; i < rows; ++i) {
    const uint64_t row_seed = uint64_t{seed} << 32 | i;
    RandomRow random(row_seed, 1 + uint32_t(row_seed * 0x9e3779b97f4a7c15 >> 33) % vocabulary,
                     i % 4 == 0 ? OptionsKind::kPlain : OptionsKind::kChained);
    random.AskForMore();
    random.AskForRecord();
    PrintRow(GoldenRowOf(random.request(), random.description()));
  }
  return 0;
}

using Options = law::SamplingParameters;

struct FloatOption {
  const char* name;
  float Options::*field;
  std::vector<float> values;
  Options with;  // other options that the option needs
};

std::vector<FloatOption> FloatOptions() {
  const Options xtc = {.xtc_probability = 1};
  const Options dynamic = {.dynamic_temperature_range = 0.5f};
  const Options smoothing = {.smoothing_factor = 0.3f};
  const Options mirostat = {.mirostat = 1};
  const Options adaptive = {.adaptive_p = true, .adaptive_target = 0.3f};
  return {
      {"temperature", &Options::temperature, {0, 0.01f, 0.3f, 0.7f, 1, 1.3f, 7, 100}, {}},
      {"top_p", &Options::top_p, {1e-30f, 0.1f, 0.5f, 0.9f, 0.9999999f, 1}, {}},
      {"min_p", &Options::min_p, {0, 1e-19f, 1.1e-19f, 0.05f, 0.3f, 0.5f, 1}, {}},
      {"repetition_penalty", &Options::repetition_penalty, {0.01f, 0.8f, 1, 1.1f, 100}, {}},
      {"typical_p", &Options::typical_p, {1e-9f, 0.2f, 0.9f, 1}, {}},
      {"top_n_sigma", &Options::top_n_sigma, {0, 0.01f, 0.5f, 1, 3, 100}, {}},
      {"epsilon_cutoff", &Options::epsilon_cutoff, {0, 1e-15f, 3e-4f, 0.05f, 1}, {}},
      {"eta_cutoff", &Options::eta_cutoff, {0, 1e-15f, 3e-4f, 0.05f, 1}, {}},
      {"top_a", &Options::top_a, {0, 1e-18f, 0.1f, 0.5f, 1}, {}},
      {"top_h", &Options::top_h, {0, 1e-6f, 0.3f, 0.9f, 1}, {}},
      {"xtc_probability", &Options::xtc_probability, {0, 0.001f, 0.5f, 1}, {}},
      {"xtc_threshold", &Options::xtc_threshold, {1e-25f, 0.01f, 0.1f, 0.5f, 0.6f}, xtc},
      {"dynamic_temperature_range", &Options::dynamic_temperature_range, {0, 0.01f, 0.6f, 20, 100}, {}},
      {"dynamic_temperature_exponent", &Options::dynamic_temperature_exponent, {0.01f, 0.5f, 1, 10}, dynamic},
      {"smoothing_factor", &Options::smoothing_factor, {0, 1e-30f, 0.01f, 0.3f, 100}, {}},
      {"smoothing_curve", &Options::smoothing_curve, {1, 1.3f, 2, 3}, smoothing},
      {"mirostat_tau", &Options::mirostat_tau, {0.01f, 2, 5, 20}, mirostat},
      {"mirostat_eta", &Options::mirostat_eta, {0.001f, 0.1f, 1}, mirostat},
      {"adaptive_target", &Options::adaptive_target, {0, 0.1f, 0.6f, 1}, adaptive},
      {"adaptive_decay", &Options::adaptive_decay, {0, 0.5f, 0.9f, 0.99f}, adaptive},
      {"min_k_tau", &Options::min_k_tau, {}, {}},
  };
}

struct IntegerOption {
  const char* name;
  uint32_t Options::*field;
  std::vector<uint32_t> values;
  Options with;
};

std::vector<IntegerOption> IntegerOptions() {
  return {{"top_k", &Options::top_k, {0, 1, 3, 39, 40, 1048575}, {}},
          {"mirostat", &Options::mirostat, {0, 1, 2}, {}},
          {"mirostat_m", &Options::mirostat_m, {2, 3, 100, 1000}, {.mirostat = 1}},
          {"min_keep", &Options::min_keep, {}, {}}};
}

// The options that are not at their defaults, and the order's name, as JSON with single quotes.
std::string NameOf(const Options& options, const char* order) {
  std::string name = "{";
  const auto add = [&name](const char* option, double value) {
    char text[64];
    std::snprintf(text, sizeof text, "'%s': %.9g, ", option, value);
    name += text;
  };
  for (const FloatOption& option : FloatOptions()) {
    if (options.*option.field != Options().*option.field) add(option.name, double(options.*option.field));
  }
  for (const IntegerOption& option : IntegerOptions()) {
    if (options.*option.field != Options().*option.field) add(option.name, options.*option.field);
  }
  if (options.p_less) name += "'p_less': true, ";
  if (options.adaptive_p) name += "'adaptive_p': true, ";
  if (options.min_k) name += "'min_k': true, ";
  return name + "'order': '" + order + "'}";
}

void AddOptions(Options options, const char* order, law::Preset preset, std::vector<law::GoldenRow>* rows,
                law::GoldenShape shape = law::GoldenShape::kModel) {
  const std::string name = NameOf(options, order);
  options.order.assign(law::PresetOrder(preset).begin(), law::PresetOrder(preset).end());
  law::GoldenRow row = law::Chained(name, shape, rows->size() % 2 == 0 ? DType::kF32 : DType::kBF16, 40, options);
  row.shape = law::GoldenShape::kExplicit;
  row.noise = {0x123456789abcdef0 + rows->size(), uint32_t(rows->size()), 0};
  row.edits = {{2, kernels::LogitEdit::kRepeated, law::CanonicalBits(0.5f), law::PenaltyBits(0.3f, 0.2f, 2)},
               {7, kernels::LogitEdit::kRepeated, 0, 0}};
  rows->push_back(row);
}

int WriteOptions() {
  std::vector<law::GoldenRow> rows;
  for (const FloatOption& option : FloatOptions()) {
    for (const float value : option.values) {
      Options options = option.with;
      options.*option.field = value;
      AddOptions(options, "vllm", law::Preset::kVllm, &rows);
    }
  }
  for (const IntegerOption& option : IntegerOptions()) {
    for (const uint32_t value : option.values) {
      Options options = option.with;
      options.*option.field = value;
      AddOptions(options, "vllm", law::Preset::kVllm, &rows);
    }
  }
  AddOptions({.p_less = true}, "vllm", law::Preset::kVllm, &rows);
  // Every sampler at once, in each order, with each of those that end a chain.
  for (const uint32_t last : {0u, 1u, 2u, 3u}) {
    Options all = {.temperature = 0.8f, .top_k = 30, .top_p = 0.98f, .min_p = 0.001f, .repetition_penalty = 1.1f};
    all.typical_p = 0.97f;
    all.top_n_sigma = 3;
    all.epsilon_cutoff = all.eta_cutoff = 1e-4f;
    all.top_a = 0.01f;
    all.top_h = 0.99f;
    all.p_less = last != 3;
    all.xtc_probability = 0.5f;
    all.xtc_threshold = 0.2f;
    all.dynamic_temperature_range = last % 2 == 0 ? 0.3f : 0;
    all.smoothing_factor = 0.1f;
    all.smoothing_curve = 1.5f;
    all.mirostat = last < 3 ? last : 0;
    all.adaptive_p = last == 3;
    all.adaptive_target = last == 3 ? 0.4f : 0;
    AddOptions(all, "vllm", law::Preset::kVllm, &rows);
    AddOptions(all, "llama_cpp", law::Preset::kLlamaCpp, &rows);
    AddOptions(all, "hf", law::Preset::kHf, &rows);
  }
  for (const law::GoldenRow& row : rows) PrintRow(row);
  return 0;
}

// The filters that min_keep names, each with it; min-k at several values; all in each preset's order.
int WriteFilters() {
  std::vector<law::GoldenRow> rows;
  for (const float tau : {0.0f, 0.5f, 3.0f, 20.0f, 100.0f}) {
    AddOptions({.temperature = 0.5f, .min_k = true, .min_k_tau = tau}, "vllm", law::Preset::kVllm, &rows);
  }
  const std::vector<Options> filters = {{.min_p = 0.5f},
                                        {.top_k = 2},
                                        {.top_p = 0.2f},
                                        {.typical_p = 0.1f},
                                        {.top_n_sigma = 0.1f},
                                        {.epsilon_cutoff = 0.3f},
                                        {.eta_cutoff = 0.3f},
                                        {.top_a = 0.9f},
                                        {.top_h = 0.1f},
                                        {.p_less = true},
                                        {.xtc_probability = 1, .xtc_threshold = 0.01f},
                                        {.min_k = true}};
  Options all = {.temperature = 0.8f, .top_k = 3, .top_p = 0.3f, .min_p = 0.2f};
  all.typical_p = 0.4f;
  all.top_n_sigma = 1;
  all.top_h = 0.2f;
  all.p_less = all.min_k = true;
  for (const uint32_t least : {1u, 2u, 7u, 39u, 1000u}) {
    for (Options options : filters) {
      options.min_keep = least;
      AddOptions(options, "vllm", law::Preset::kVllm, &rows);
    }
    all.min_keep = least;
    AddOptions(all, "vllm", law::Preset::kVllm, &rows);
    AddOptions(all, "llama_cpp", law::Preset::kLlamaCpp, &rows);
    AddOptions(all, "hf", law::Preset::kHf, &rows);
  }
  // XTC where several tokens are the likeliest, with thresholds that they reach and that they do not.
  for (const float threshold : {0.003f, 0.03f, 0.3f, 0.5f}) {
    for (const float temperature : {0.5f, 1.5f, 20.0f}) {
      AddOptions({.temperature = temperature, .xtc_probability = 1, .xtc_threshold = threshold}, "vllm",
                 law::Preset::kVllm, &rows, law::GoldenShape::kTies);
    }
  }
  for (const law::GoldenRow& row : rows) PrintRow(row);
  const auto is_new = [](const kernels::Stage& stage) { return stage.kind == kernels::StageKind::kMinK; };
  for (uint64_t seed = uint64_t{9} << 32, written = 0; written < 60; ++seed) {
    RandomRow random(seed, 1 + uint32_t(seed % 40), OptionsKind::kChained);
    random.AskForMore();
    if (seed % 2 == 0) random.KeepAtLeast();
    if (std::ranges::none_of(random.request().parameters->chain, is_new)) continue;
    PrintRow(GoldenRowOf(random.request(), random.description()));
    ++written;
  }
  return 0;
}

std::string TextOf(const char* path) {
  std::ostringstream read;
  read << std::ifstream(path).rdbuf();
  return read.str();
}

int Answer(const char* path) {
  for (const law::GoldenRow& row : PublishedRows(TextOf(path))) {
    const std::vector<std::byte> tensor = law::MakeTensor(row);
    PrintRow(GoldenRowOf(law::MakeRequest(row, tensor), row.name));
  }
  return 0;
}

int Check(const char* path) {
  const std::string text = TextOf(path);
  const std::string wanted = WithoutSpaces(text);
  uint64_t different = 0;
  const std::vector<law::GoldenRow> rows = PublishedRows(text);
  for (const law::GoldenRow& row : rows) {
    if (!IsPublishedAnswer(wanted, row)) {
      std::printf("%s: the reference has another answer\n", row.name.c_str());
      ++different;
    }
    const std::vector<std::byte> tensor = law::MakeTensor(row);
    const kernels::RowRequest request = law::MakeRequest(row, tensor);
    const kernels::RowOutput reference = law::SampleRowReference(request);
    for (const kernels::cpu::Target* target : kernels::cpu::RunnableTargets()) {
      kernels::cpu::Scratch scratch;
      kernels::RowOutput output;
      kernels::cpu::SampleRow(*target, request, &scratch, &output);
      if (output == reference) continue;
      std::printf("%s: the CPU kernel %s has another answer\n", row.name.c_str(), std::string(target->name).c_str());
      ++different;
    }
  }
  std::printf("%zu rows, %d kernels, %llu differences\n", rows.size(), int(kernels::cpu::RunnableTargets().size()),
              static_cast<unsigned long long>(different));
  return rows.empty() || different != 0 ? 1 : 0;
}

uint32_t NumberOf(std::string_view text) {
  uint32_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace
}  // namespace sortition::testing

int main(int count, char** words) {
  using namespace sortition::testing;
  const std::string_view task = count > 1 ? words[1] : "";
  if (task == "check" && count == 3) return Check(words[2]);
  if (task == "answer" && count == 3) return Answer(words[2]);
  if (task == "options" && count == 2) return WriteOptions();
  if (task == "filters" && count == 2) return WriteFilters();
  if (task == "make" && count == 5) return Make(NumberOf(words[2]), NumberOf(words[3]), NumberOf(words[4]));
  if (count == 4 && (task == "histories" || task == "marks")) {
    return PrintHistories(NumberOf(words[2]), NumberOf(words[3]), /*marks=*/task == "marks");
  }
  if (task == "records" && count == 5) return MakeRecords(NumberOf(words[2]), NumberOf(words[3]), NumberOf(words[4]));
  if (task == "compact" && count == 4) return PrintCompactRows(NumberOf(words[2]), NumberOf(words[3]));
  std::fprintf(stderr,
               "verifier_rows make ROWS SEED VOCABULARY | histories ROWS SEED | marks ROWS SEED | records ROWS SEED "
               "VOCABULARY | compact"
               " ROWS SEED | options | filters | answer FILE | check FILE\n");
  return 2;
}
