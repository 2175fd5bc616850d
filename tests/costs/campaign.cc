// Judges measurements, each three times before it counts.
#include "tests/costs/campaign.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace sortition::costs {
namespace {

constexpr int kTimes = 3;                 // that a finding is found
constexpr uint64_t kRepairs = 24;         // refusals of a scenario that are looked at
constexpr int64_t kPositionBytes = 1024;  // of a position that waits for a device, which the window bounds
constexpr double kBytesOfWork = 1.6;      // a nanosecond: an edit of 16 bytes costs at least 10 while a piece makes it
constexpr size_t kMostRows = 30;          // of the table of options
constexpr double kMostGrowth = 2.8;       // of the time at a doubling: n log n grows by less than 2.4 above n = 32
constexpr uint64_t kLeastGrowing = 40'000;  // nanoseconds: shorter times are noise

uint64_t UnaskedBytes(const Measurement& measured) {
  const uint64_t asked = measured.asked_bytes + kFreeAnswer;
  return measured.answer_bytes > asked ? measured.answer_bytes - asked : 0;
}

uint64_t SentBytes(const Measurement& measured) { return measured.request_bytes + measured.shard_bytes; }

int64_t AllowedBytes(const Measurement& measured, bool while_served) {
  const auto answers = static_cast<int64_t>(measured.answer_bytes);
  const auto parsed = static_cast<int64_t>(measured.message_bytes + measured.shard_bytes);
  const auto positions = static_cast<int64_t>(measured.positions);
  const int64_t charged = std::max<int64_t>(measured.charged_bytes, 0);
  const int64_t served = while_served ? parsed + measured.window_bytes + kPositionBytes * positions : 0;
  const auto worked_on = while_served ? static_cast<int64_t>(kBytesOfWork * double(measured.price)) : 0;
  return kMostOfCharge * (charged + answers + served) + worked_on + kFreeMemory;
}

// Says how the measurement exceeds its bound; none if it does not.
std::optional<std::string> Judge(Excess excess, const Measurement& measured) {
  if (!measured.is_measured) return std::nullopt;
  switch (excess) {
    case Excess::kPrice:
      if (measured.time <= kMostOfPrice * measured.price + kFreeTime) return std::nullopt;
      return absl::StrFormat("%.3f ms, price %.3f ms", double(measured.time) / 1e6, double(measured.price) / 1e6);
    case Excess::kGrowth:
      return std::nullopt;
    case Excess::kWait:
      if (measured.longest_call <= kMostWait) return std::nullopt;
      return absl::StrFormat("a call of %.1f ms", double(measured.longest_call) / 1e6);
    case Excess::kMemory:
      if (measured.left_bytes > kMostOfCharge * measured.left_charged_bytes + kFreeMemory) {
        return absl::StrFormat("%d bytes are left after the stream's end, %d are accounted", measured.left_bytes,
                               measured.left_charged_bytes);
      }
      if (measured.kept_bytes > AllowedBytes(measured, false)) {
        return absl::StrFormat("keeps %d bytes, %d are accounted", measured.kept_bytes, measured.charged_bytes);
      }
      if (measured.peak_bytes <= AllowedBytes(measured, true)) return std::nullopt;
      return absl::StrFormat("holds up to %d bytes: request %d, %d when parsed, answers %d, accounted %d",
                             measured.peak_bytes, measured.request_bytes, measured.message_bytes, measured.answer_bytes,
                             measured.charged_bytes);
    case Excess::kAnswer:
      if (UnaskedBytes(measured) <= kMostOfRequest * SentBytes(measured)) return std::nullopt;
      return absl::StrFormat("sent %d bytes, answers %d, asked for %d", SentBytes(measured), measured.answer_bytes,
                             measured.asked_bytes);
  }
  return std::nullopt;
}

class Campaign {
 public:
  explicit Campaign(const CampaignOptions& options)
      : options_(options), plant_(options.plant), end_(absl::Now() + options.time) {}

  CampaignResult Run() {
    // The first run of a process takes longer.
    for (int i = 0; i < kTimes; ++i) costs::Run(Scenario(), options_.plant);
    for (uint64_t index = 0; index < options_.scenarios && !IsOver(); ++index) {
      const Scenario scenario = DrawScenario(options_.seed, index, options_.work, options_.with);
      if (!options_.kinds.empty() && !options_.kinds.contains(scenario.kind)) continue;
      ++result_.scenarios;
      RunOne(scenario);
    }
    return std::move(result_);
  }

 private:
  bool IsOver() const { return ended_ || absl::Now() >= end_; }

  Measurement Measure(const Scenario& scenario) {
    const Measurement measured = last_ = costs::Run(scenario, plant_, &result_.sent);
    if (!measured.is_measured) return measured;
    ++result_.measured;
    Note(measured, &result_.kinds[std::string(scenario.kind_name())]);
    if (!HasOptions(scenario.kind)) return measured;
    for (const std::string& option : scenario.options) Note(measured, &result_.options[option]);
    return measured;
  }

  static void Note(const Measurement& measured, Worst* worst) {
    const double price = double(measured.price) + double(kFreeTime) / kMostOfPrice;
    ++worst->runs;
    worst->of_price = std::max(worst->of_price, double(measured.time) / price);
    worst->longest_call = std::max(worst->longest_call, measured.longest_call);
    worst->device_time = std::max(worst->device_time, measured.device_time);
    worst->peak_bytes = std::max(worst->peak_bytes, measured.peak_bytes);
    worst->of_request = std::max(worst->of_request,
                                 double(UnaskedBytes(measured)) / double(std::max<uint64_t>(SentBytes(measured), 1)));
  }

  void RunOne(Scenario scenario) {
    // A refusal costs something, too.
    for (uint64_t attempt = 0; attempt < kRepairs && !IsOver(); ++attempt) {
      const Measurement measured = Measure(scenario);
      Look(scenario, measured);
      if (measured.error.reason() == v1::ERROR_REASON_UNSPECIFIED) break;
      const std::optional<Scenario> repaired = Repaired(scenario, measured.error, attempt);
      if (!repaired) break;
      scenario = *repaired;
    }
    if (!IsOver()) LookAtGrowth(scenario);
  }

  // Returns true if a finding of its kind has no option that this scenario lacks: then it is the same cause, or will be
  // found when that one is mended.
  bool IsFound(Excess excess, const Scenario& scenario) const {
    return std::ranges::any_of(result_.findings, [&](const Finding& finding) {
      return finding.excess == excess && finding.scenario.kind == scenario.kind &&
             std::ranges::includes(scenario.options, finding.scenario.options);
    });
  }

  void Look(const Scenario& scenario, const Measurement& measured) {
    for (const Excess excess : {Excess::kPrice, Excess::kWait, Excess::kMemory, Excess::kAnswer}) {
      if (!Judge(excess, measured) || IsFound(excess, scenario) || IsOver()) continue;
      const auto still = [&](const Scenario& smaller) { return Judge(excess, Measure(smaller)); };
      if (!FindAgain(scenario, still)) continue;
      if (IsWithoutPlant([&] { return still(scenario); })) continue;
      const Scenario small = Shrink(scenario, still);
      if (const auto text = FindAgain(small, still)) Add({excess, small, *text, last_});
    }
  }

  // Returns true if there is a plant, and the finding is there without it.
  template <typename Find>
  bool IsWithoutPlant(Find find) {
    if (options_.plant == Plant::kNone) return false;
    plant_ = Plant::kNone;
    const auto found = find();
    plant_ = options_.plant;
    return found.has_value();
  }

  template <typename Still>
  std::optional<std::string> FindAgain(const Scenario& scenario, Still still) {
    std::optional<std::string> text;
    for (int i = 0; i < kTimes; ++i) {
      text = still(scenario);
      if (!text) break;
    }
    return text;
  }

  // Leaves out options and halves sizes while the finding stays.
  template <typename Still>
  Scenario Shrink(Scenario scenario, Still still) {
    int runs = 0;
    // Sizes that nothing looks at go first.
    const auto keep_if = [&](const Scenario& smaller) {
      if (++runs > options_.shrink_runs || smaller == scenario || !still(smaller)) return;
      scenario = smaller;
    };
    Scenario without_sizes = scenario;
    std::erase_if(without_sizes.sizes, [&](const auto& size) {
      return !scenario.Has(size.first) && size.first != "vocabulary" && size.first != "history";
    });
    keep_if(without_sizes);
    const std::set<std::string> options = scenario.options;
    for (const std::string& option : options) {
      Scenario smaller = scenario;
      std::erase_if(smaller.options,
                    [&](const std::string& other) { return other == option || other.starts_with(option + "."); });
      keep_if(smaller);
    }
    const std::map<std::string, uint64_t> sizes = scenario.sizes;
    for (const auto& [name, size] : sizes) {
      Scenario smaller = scenario;
      smaller.sizes.erase(name);
      keep_if(smaller);
      for (uint64_t left = size / 2; left > 1 && scenario.sizes.contains(name) && scenario.sizes[name] > left;
           left /= 2) {
        smaller = scenario;
        smaller.sizes[name] = left;
        const Scenario before = scenario;
        keep_if(smaller);
        if (scenario == before) break;
      }
    }
    return scenario;
  }

  void Add(Finding finding) {
    ended_ |= options_.ends_with_first;
    result_.findings.push_back(std::move(finding));
  }

  // Runs it at n, 2n, 4n and 8n of one of its sizes.
  void LookAtGrowth(const Scenario& scenario) {
    std::vector<std::string> names;
    for (const auto& [name, size] : scenario.sizes) {
      if (size >= 256) names.push_back(name);
    }
    if (names.empty() || IsFound(Excess::kGrowth, scenario)) return;
    const std::string name = names[WordOf(scenario.seed, "growth") % names.size()];
    if (!Grows(scenario, name, 1) || !Grows(scenario, name, kTimes)) return;
    if (IsWithoutPlant([&] { return Grows(scenario, name, kTimes); })) return;
    const auto still = [&](const Scenario& smaller) { return Grows(smaller, name, 1); };
    Scenario small = scenario;
    for (const std::string& option : scenario.options) {
      Scenario smaller = small;
      smaller.options.erase(option);
      if (!IsOver() && still(smaller)) small = smaller;
    }
    if (const auto text = Grows(small, name, kTimes + 2)) Add({Excess::kGrowth, small, *text, last_});
  }

  std::optional<std::string> Grows(const Scenario& scenario, const std::string& name, int repeats) {
    const uint64_t most = scenario.Size(name);
    uint64_t times[3];
    for (int i = 2; i >= 0; --i) {  // the longest first: most scenarios end with it
      Scenario part = scenario;
      part.sizes[name] = most >> (2 - i);
      std::vector<uint64_t> measured;
      for (int repeat = 0; repeat < repeats; ++repeat) {
        const Measurement one = Measure(part);
        if (!one.is_measured || one.error.reason() != v1::ERROR_REASON_UNSPECIFIED) return std::nullopt;
        measured.push_back(one.time);
      }
      std::ranges::nth_element(measured, measured.begin() + repeats / 2);
      times[i] = measured[static_cast<size_t>(repeats / 2)];
      if (times[i] < kLeastGrowing) return std::nullopt;
      if (i < 2 && double(times[i + 1]) < kMostGrowth * double(times[i])) return std::nullopt;
    }
    return absl::StrFormat("%s=%d, %d and %d: %.3f, %.3f and %.3f ms", name, most >> 2, most >> 1, most,
                           double(times[0]) / 1e6, double(times[1]) / 1e6, double(times[2]) / 1e6);
  }

  const CampaignOptions& options_;
  Plant plant_;
  const absl::Time end_;
  bool ended_ = false;
  Measurement last_;
  CampaignResult result_;
};

void AddRow(const std::string& name, const Worst& worst, std::string* table) {
  absl::StrAppendFormat(table, "%-44s %6d %8.2f %9.3f %9.1f %9.2f %8.1f\n", name, worst.runs, worst.of_price,
                        double(worst.longest_call) / 1e6, double(worst.device_time) / 1e6,
                        double(worst.peak_bytes) / (1 << 20), worst.of_request);
}

std::string JsonOf(const std::map<std::string, Worst>& rows) {
  std::string json;
  for (const auto& [name, worst] : rows) {
    absl::StrAppendFormat(&json,
                          "%s\n    {\"name\": \"%s\", \"runs\": %d, \"of_price\": %.3f, \"longest_call_ns\": %d, "
                          "\"device_ns\": %d, \"peak_bytes\": %d, \"of_request\": %.3f}",
                          json.empty() ? "" : ",", name, worst.runs, worst.of_price, worst.longest_call,
                          worst.device_time, worst.peak_bytes, worst.of_request);
  }
  return json;
}

}  // namespace

CampaignResult RunCampaign(const CampaignOptions& options) { return Campaign(options).Run(); }

std::string TableOf(const CampaignResult& result) {
  std::string table = absl::StrFormat("%-44s %6s %8s %9s %9s %9s %8s\n", "the worst of", "runs", "of price", "call ms",
                                      "device ms", "peak MiB", "of sent");
  for (const auto& [name, worst] : result.kinds) AddRow(name, worst, &table);
  std::vector<std::pair<std::string, Worst>> options(result.options.begin(), result.options.end());
  std::ranges::stable_sort(options, std::ranges::greater(), [](const auto& row) { return row.second.of_price; });
  table += "\n";
  for (size_t i = 0; i < std::min(options.size(), kMostRows); ++i) AddRow(options[i].first, options[i].second, &table);
  return table;
}

std::string JsonOf(const CampaignOptions& options, const CampaignResult& result) {
  std::string findings;
  for (const Finding& finding : result.findings) {
    absl::StrAppendFormat(&findings, "%s\n    {\"excess\": \"%s\", \"scenario\": \"%s\", \"text\": \"%s\"}",
                          findings.empty() ? "" : ",", kExcessNames[static_cast<size_t>(finding.excess)],
                          finding.scenario.Text(), finding.text);
  }
  return absl::StrFormat(
      "{\n  \"seed\": %d,\n  \"plant\": \"%s\",\n  \"scenarios\": %d,\n  \"measured\": %d,\n"
      "  \"kinds\": [%s],\n  \"options\": [%s],\n  \"findings\": [%s]\n}\n",
      options.seed, kPlantNames[static_cast<size_t>(options.plant)], result.scenarios, result.measured,
      JsonOf(result.kinds), JsonOf(result.options), findings);
}

}  // namespace sortition::costs
