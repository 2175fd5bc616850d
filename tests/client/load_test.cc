// Parts of `sortitionctl bench`: counts of times, the page of metrics, the picture.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "client/bench/histogram.h"
#include "client/bench/load_plot.h"
#include "client/bench/metrics_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sortition::bench::load_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(HistogramTest, PercentilesAreWithinOnePercent) {
  std::mt19937_64 random(5);
  std::lognormal_distribution<double> times(13, 2);
  Histogram histogram;
  std::vector<uint64_t> all;
  for (int i = 0; i < 20000; ++i) {
    all.push_back(static_cast<uint64_t>(times(random)));
    histogram.Add(all.back());
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(histogram.count(), all.size());
  EXPECT_EQ(histogram.max(), all.back());
  EXPECT_EQ(histogram.Percentile(100), all.back());
  for (const double percent : {1.0, 50.0, 90.0, 99.0, 99.9}) {
    const auto at = static_cast<size_t>(std::ceil(percent / 100 * static_cast<double>(all.size()))) - 1;
    const auto exact = static_cast<double>(all[at]);
    EXPECT_GE(static_cast<double>(histogram.Percentile(percent)), exact);
    EXPECT_LE(static_cast<double>(histogram.Percentile(percent)), exact * 1.008 + 1);
  }
}

TEST(HistogramTest, SmallTimesAreExactAndLongOnesCapped) {
  Histogram histogram;
  EXPECT_EQ(histogram.Percentile(50), 0u);
  histogram.Add(3);
  histogram.Add(100);
  histogram.Add(~uint64_t{0});
  EXPECT_EQ(histogram.Percentile(30), 3u);
  EXPECT_EQ(histogram.Percentile(60), 100u);
  EXPECT_EQ(histogram.max(), (uint64_t{1} << 43) - 1);
}

TEST(HistogramTest, SinceHasOnlyWhatWasAddedLater) {
  Histogram histogram;
  histogram.Add(1000000, 5);
  const Histogram before = histogram;
  histogram.Add(50, 3);
  const Histogram since = histogram.Since(before);
  EXPECT_EQ(since.count(), 3u);
  EXPECT_EQ(since.max(), 50u);
}

// One stall of 100 among 99 calls of 1: a sender with a call each 1 would have had 99 more waiting.
TEST(HistogramTest, CorrectionAddsOmittedTimes) {
  Histogram histogram;
  histogram.Add(1, 99);
  histogram.Add(100);
  EXPECT_EQ(histogram.Percentile(98), 1u);
  const Histogram corrected = histogram.Corrected(1);
  EXPECT_EQ(corrected.count(), 199u);
  EXPECT_EQ(corrected.Percentile(98), 97u);
  EXPECT_EQ(histogram.Corrected(0).count(), 100u);
}

TEST(MetricsPageTest, ValuesAreSummedOverLabels) {
  const std::string page = "# HELP a_total x\na_total{k=\"1\"} 2\na_total{k=\"2\"} 3.5\na_total_more 9\nb 1e-3\n";
  EXPECT_EQ(*FindMetric(page, "a_total"), 5.5);
  EXPECT_EQ(*FindMetric(page, "b"), 0.001);
  EXPECT_EQ(FindMetric(page, "c").status().code(), absl::StatusCode::kNotFound);
}

TEST(MetricsPageTest, ValuesAreFoundByLabel) {
  const std::string page = "a_total{k=\"one\"} 2\na_total{k=\"two\"} 3\na_total{l=\"x\"} 1\na_total_b{k=\"y\"} 1\n";
  EXPECT_EQ(MetricsBy(page, "a_total", "k"), (std::map<std::string, double>{{"one", 2}, {"two", 3}}));
}

TEST(MetricsPageTest, WrongAddressesAreNamed) {
  EXPECT_EQ(ReadMetricsPage("nowhere", absl::Seconds(1)).status().code(), absl::StatusCode::kInvalidArgument);
  const absl::Status status = ReadMetricsPage("127.0.0.1:1", absl::Seconds(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("http://127.0.0.1:1/metrics"));
}

TEST(LoadPlotTest, CurvesAreDrawnWithAtMost600Points) {
  Histogram latency;
  latency.Add(2000000, 1000);
  std::vector<LoadInterval> intervals;
  for (int i = 1; i <= 5000; ++i) intervals.push_back({i * 0.1, 100.0, 1000000});
  const std::string svg = PlotLoad("a < b", {{"from_call", latency}}, intervals);
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  EXPECT_THAT(svg, HasSubstr("from_call"));
  EXPECT_THAT(svg, HasSubstr("99.9%"));
  EXPECT_LT(svg.size(), 40000u);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

TEST(LoadPlotTest, MarksAreRoundAndWarmUpHasNoLatency) {
  const std::vector<LoadInterval> intervals = {{0.5, 100, 0}, {1.5, 100, 2000000}, {3.501, 100, 3000000}};
  const std::string svg = PlotLoad("load", {}, intervals);
  for (const char* mark : {">0.5<", ">1<", ">3.5<"}) EXPECT_THAT(svg, HasSubstr(mark));
  EXPECT_THAT(svg, Not(HasSubstr("3.501")));
  const std::string last = svg.substr(svg.rfind("points=\""));
  const std::string points = last.substr(0, last.find('/'));
  EXPECT_EQ(std::count(points.begin(), points.end(), ','), 2);
}

}  // namespace
}  // namespace sortition::bench::load_test
