// Costs of messages: no wait, no memory and no answer is without a bound. Planted causes are found.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "google/protobuf/descriptor.h"
#include "tests/costs/campaign.h"
#include "tests/costs/run.h"
#include "tests/support/scale.h"

namespace sortition::costs::costs_test {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// Fields that no scenario has.
const std::set<std::string> kNotSent = {
    "sortition.v1.OpenSequence.watermark_key_id",  // of an operator's policy
};

void AddReachable(const Descriptor& message, std::set<std::string>* fields) {
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    if (!fields->emplace(field.full_name()).second) continue;
    // An answer is brought as it came.
    const bool is_answer = field.message_type() == v1::RowResult::descriptor();
    if (field.message_type() != nullptr && !is_answer) AddReachable(*field.message_type(), fields);
  }
}

// Under sanitizers neither times nor sizes are those of the service.
bool IsMeasurable() { return testing::TestScale() == 1; }

TEST(Costs, EveryFieldOfTheContractIsSent) {
  if (!IsMeasurable()) return;
  std::set<std::string> fields;
  AddReachable(*v1::StreamRequest::descriptor(), &fields);
  AddReachable(*v1::SampleRequest::descriptor(), &fields);
  CampaignOptions options;
  options.scenarios = 4000;
  options.work = 8;
  const CampaignResult result = RunCampaign(options);
  for (const std::string& field : fields) {
    if (kNotSent.contains(field) || absl::StartsWith(field, "google.protobuf.")) continue;
    EXPECT_TRUE(result.sent.contains(field)) << field << ": let tests/costs/messages.cc set it";
  }
}

TEST(Costs, PrintedScenarioIsRunAgain) {
  for (uint64_t index = 0; index < 200; ++index) {
    const Scenario scenario = DrawScenario(1, index, 1 << 16);
    EXPECT_EQ(Scenario::Parse(scenario.Text()), scenario) << scenario.Text();
  }
  for (const char* text : {"", "no_kind seed=1", "open seed", "open seed=x", "open rows"}) {
    EXPECT_EQ(Scenario::Parse(text), std::nullopt) << text;
  }
}

TEST(Costs, WaitMemoryAnswersAreBounded) {
  if (!IsMeasurable()) return;
  CampaignOptions options;
  options.time = absl::Seconds(20);
  options.work = 1 << 15;
  options.shrink_runs = 20;
  const CampaignResult result = RunCampaign(options);
  EXPECT_GT(result.measured, 0u);
  for (const Finding& finding : result.findings) {
    // Prices, and waits that are near the bound, are judged by `./dev costs` on a machine that does nothing else.
    if (finding.excess == Excess::kPrice || finding.excess == Excess::kGrowth) continue;
    const bool is_wait = finding.excess == Excess::kWait;
    if (is_wait && costs::Run(finding.scenario, Plant::kNone).longest_call < 2 * kMostWait) continue;
    ADD_FAILURE() << finding.text << "\n  " << finding.scenario.Text();
  }
}

struct PlantCase {
  Plant plant;
  std::set<Kind> kinds;
  std::set<std::string> with;  // options at which the cause shows
};
const std::set<Kind> kOpens = {Kind::kOpen, Kind::kLastPiece};
const std::set<Kind> kSteps = {Kind::kDraw, Kind::kScore, Kind::kVerifyDraft, Kind::kVerifyTree};
const PlantCase kPlants[] = {
    {Plant::kInsertedCounts, kOpens, {"history", "presence_penalty"}},
    {Plant::kSearchingFollower, kSteps, {"history", "presence_penalty", "append_tokens"}},
    {Plant::kFreeFork, {Kind::kFork}, {"history", "presence_penalty"}},
    {Plant::kEarlyLookAhead, kSteps, {"history", "presence_penalty", "compact"}},
    {Plant::kMergedBans, kSteps, {"logit_bias", "mask.banned_tokens"}},
    {Plant::kTenthPrice, kSteps, {"logit_bias"}},
    {Plant::kRecountedPhases, kSteps, {"history", "phases.end"}},
};

class CostsOfPlant : public ::testing::TestWithParam<PlantCase> {};

TEST_P(CostsOfPlant, IsFound) {
  if (!IsMeasurable()) return;
  CampaignOptions options;
  options.plant = GetParam().plant;
  options.time = absl::Seconds(60);
  options.work = 1 << 15;
  options.kinds = GetParam().kinds;
  options.with = GetParam().with;
  options.shrink_runs = 0;
  options.ends_with_first = true;
  EXPECT_FALSE(RunCampaign(options).findings.empty());
}

INSTANTIATE_TEST_SUITE_P(All, CostsOfPlant, ::testing::ValuesIn(kPlants), [](const auto& info) {
  std::string name = kPlantNames[static_cast<size_t>(info.param.plant)];
  std::erase(name, '-');
  return name;
});

}  // namespace
}  // namespace sortition::costs::costs_test
