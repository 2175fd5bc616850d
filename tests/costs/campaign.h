// A campaign: runs scenarios, compares what they cost with their price, and makes what it finds small.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "tests/costs/run.h"
#include "tests/costs/scenario.h"

namespace sortition::costs {

// A way in which a cost has no bound.
enum class Excess : uint8_t {
  kPrice,   // the thread's time is more than kMostOfPrice times the price
  kGrowth,  // the time grows faster than n log n
  kWait,    // one call takes longer than kMostWait, in which others wait
  kMemory,  // more memory than kMostOfCharge times what is accounted, or some is left at the end
  kAnswer,  // the answer is longer than kMostOfRequest times the request, and is not asked for
};
inline constexpr std::string_view kExcessNames[] = {"price", "growth", "wait", "memory", "answer"};

inline constexpr uint64_t kMostOfPrice = 4;
inline constexpr uint64_t kFreeTime = 200'000;     // nanoseconds
inline constexpr uint64_t kMostWait = 20'000'000;  // likewise
inline constexpr int64_t kMostOfCharge = 4;
inline constexpr int64_t kFreeMemory = 4 << 20;  // bytes
inline constexpr uint64_t kMostOfRequest = 64;
inline constexpr uint64_t kFreeAnswer = 4096;  // bytes

struct Finding {
  Excess excess;
  Scenario scenario;
  std::string text;
  Measurement measured;  // the last one that has found it
};

// The largest of what scenarios of one kind, or with one option, have cost.
struct Worst {
  uint64_t runs = 0;
  double of_price = 0;  // time divided by the price with its part of kFreeTime: above kMostOfPrice it is a finding
  uint64_t longest_call = 0;  // nanoseconds
  uint64_t device_time = 0;   // likewise
  int64_t peak_bytes = 0;
  double of_request = 0;  // answer bytes that are not asked for, divided by the request's
};

// With a plant only those findings count that are not there without it.
struct CampaignOptions {
  uint64_t seed = 1;
  Plant plant = Plant::kNone;
  uint64_t scenarios = UINT64_MAX;  // the most
  absl::Duration time = absl::InfiniteDuration();
  uint64_t work = 1 << 18;          // as DrawScenario has it
  std::set<Kind> kinds = {};        // empty: all
  std::set<std::string> with = {};  // options that each scenario has
  int shrink_runs = 100;            // the most that make one finding small
  bool ends_with_first = false;     // finding
};

struct CampaignResult {
  uint64_t scenarios = 0;
  uint64_t measured = 0;
  std::vector<Finding> findings;
  std::map<std::string, Worst> kinds;
  std::map<std::string, Worst> options;
  std::set<std::string> sent;  // names of fields in messages that were not refused
};

CampaignResult RunCampaign(const CampaignOptions& options);
std::string TableOf(const CampaignResult& result);
std::string JsonOf(const CampaignOptions& options, const CampaignResult& result);

}  // namespace sortition::costs
