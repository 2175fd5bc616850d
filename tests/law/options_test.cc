// Options at the ends of their ranges, and beyond them.
#include "kernels/law/options.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace sortition::law::options_test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// An option with the least and the greatest value that it accepts, except 0 if that means off.
struct Ends {
  const char* field;
  float SamplingParameters::*value;
  float least;
  float greatest;
  const char* limit;
};
const float kTiny = std::nextafter(0.0f, 1.0f);
const Ends kEnds[] = {
    {"temperature", &SamplingParameters::temperature, 0.01f, 100, "0 or 0.01..100"},
    {"top_p", &SamplingParameters::top_p, kTiny, 1, "(0, 1]"},
    {"min_p", &SamplingParameters::min_p, 0, 1, "0..1"},
    {"frequency_penalty", &SamplingParameters::frequency_penalty, -100, 100, "-100..100"},
    {"typical_p", &SamplingParameters::typical_p, kTiny, 1, "(0, 1]"},
    {"top_n_sigma", &SamplingParameters::top_n_sigma, 0.01f, 100, "0 or 0.01..100"},
    {"xtc.threshold", &SamplingParameters::xtc_threshold, kTiny, 1, "(0, 1]"},
    {"quadratic_smoothing.curve", &SamplingParameters::smoothing_curve, 1, 3, "1..3"},
    {"mirostat.tau", &SamplingParameters::mirostat_tau, kTiny, 20, "(0, 20]"},
    {"adaptive_p.decay", &SamplingParameters::adaptive_decay, 0, 0.99f, "0..0.99"},
};

TEST(Options, DefaultsAreInRange) { EXPECT_FALSE(FindOutOfRange(SamplingParameters()).has_value()); }

TEST(Options, EndsAreInRangeAndNothingBeyond) {
  for (const Ends& ends : kEnds) {
    SamplingParameters parameters;
    for (const float accepted : {ends.least, ends.greatest}) {
      parameters.*ends.value = accepted;
      EXPECT_FALSE(FindOutOfRange(parameters).has_value()) << ends.field << " " << accepted;
    }
    const float below = std::nextafter(ends.least, -std::numeric_limits<float>::infinity());
    const float above = std::nextafter(ends.greatest, std::numeric_limits<float>::infinity());
    for (const float refused : {below == 0 ? -kTiny : below, above, kNaN}) {
      parameters.*ends.value = refused;
      const auto found = FindOutOfRange(parameters);
      ASSERT_TRUE(found.has_value()) << ends.field << " " << refused;
      EXPECT_EQ(found->field, ends.field);
      EXPECT_EQ(found->limit, ends.limit);
    }
  }
}

TEST(Options, OpenEndsAndOffValues) {
  for (const Ends& ends : kEnds) {
    SamplingParameters parameters;
    parameters.*ends.value = 0;
    const bool is_refused = ends.limit[0] == '(' || ends.least > 0.01f;
    EXPECT_EQ(FindOutOfRange(parameters).has_value(), is_refused) << ends.field;
  }
}

TEST(Options, CountsAreShownInFull) {
  SamplingParameters parameters;
  parameters.top_k = (1u << 20) - 1;
  EXPECT_FALSE(FindOutOfRange(parameters).has_value());
  parameters.top_k = (1u << 20);
  EXPECT_EQ(FindOutOfRange(parameters)->limit, "0..1048575");
  EXPECT_EQ(FindOutOfRange(parameters)->value, "1048576");
  parameters.top_k = 0;
  parameters.mirostat_m = 1;
  EXPECT_EQ(FindOutOfRange(parameters)->limit, "2..1000");
  parameters.mirostat_m = 100;
  parameters.mirostat = 3;
  EXPECT_EQ(FindOutOfRange(parameters)->field, "mirostat.version");
}

}  // namespace
}  // namespace sortition::law::options_test
