// The place of a token in the race: the form that leaves out groups against the plain one and against the draw.
#include "kernels/law/race_place.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/law/chain.h"
#include "kernels/law/reference.h"
#include "tests/conformance/random_row.h"

namespace sortition::law::race_place_test {
namespace {

TEST(RacePlace, WithoutGroupsEqualsThePlainOne) {
  int others = 0, absent = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    kernels::RandomRow random(seed, 1 + uint32_t(seed * 0x9e3779b97f4a7c15 >> 33) % 700,
                              seed % 2 == 0 ? kernels::OptionsKind::kChained : kernels::OptionsKind::kPlain);
    kernels::RowRequest request = random.request();
    kernels::RowParameters parameters = *request.parameters;
    parameters.processed_logprob = parameters.kept_tokens = true;
    request.parameters = &parameters;
    request.task = kernels::RowTask::kDraw;
    const kernels::RowOutput output = SampleRowReference(request);
    const bool adapts = !parameters.chain.empty() && parameters.chain.back().kind == kernels::StageKind::kAdaptiveP;
    if (output.error != kernels::RowFault::kNone || adapts) continue;
    const Scale scale = ProcessedScale(parameters, output);
    // The drawn token is the first of the race.
    EXPECT_EQ(RacePlaceOf(output.kept_tokens, scale, request.noise, output.token), (RacePlace{1, 0})) << seed;
    for (uint32_t token = 0; token < request.live_vocabulary; token += 1 + token / 3) {
      const auto distance = [&](u32 bits) { return Distance(bits, scale); };
      const RacePlace place = RacePlaceReference(output.kept_tokens, distance, request.noise, token);
      EXPECT_EQ(RacePlaceOf(output.kept_tokens, scale, request.noise, token), place) << seed << " " << token;
      others += place.rank > 1;
      absent += place.rank == 0;
      EXPECT_EQ(place.rank == 1, token == output.token) << seed;
    }
  }
  EXPECT_GT(others, 1000);
  EXPECT_GT(absent, 1000);
}

// A token draws itself where its logit is raised by the margin, and not before.
TEST(RacePlace, MarginIsTheMissingLogit) {
  std::vector<float> logits(200);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = float(i % 17) / 4;
  kernels::RowParameters parameters;
  parameters.processed_logprob = parameters.kept_tokens = true;
  kernels::RowRequest request;
  request.live_vocabulary = 200;
  request.parameters = &parameters;
  for (uint32_t position = 0; position < 50; ++position) {
    request.noise = {9, position, 0};
    request.logits = logits.data();
    const kernels::RowOutput output = SampleRowReference(request);
    const uint32_t given = (position * 31) % 200;
    const float margin =
        MarginOf(RacePlaceOf(output.kept_tokens, ProcessedScale(parameters, output), request.noise, given));
    for (const float more : {margin * 0.999f, margin * 1.001f + 1e-5f}) {
      std::vector<float> raised = logits;
      raised[given] += more;
      request.logits = raised.data();
      EXPECT_EQ(SampleRowReference(request).token == given, margin == 0 || more > margin) << position;
    }
  }
  EXPECT_TRUE(std::isinf(MarginOf({})));
}

}  // namespace
}  // namespace sortition::law::race_place_test
