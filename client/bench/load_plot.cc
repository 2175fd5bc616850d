// Panels, their axes and curves.
#include "client/bench/load_plot.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace sortition::bench {
namespace {

constexpr size_t kMostPoints = 600;
constexpr double kMostMarks = 8;  // on an axis of time
constexpr double kLeft = 80;
constexpr double kWidth = 700;
constexpr double kHeight = 180;
constexpr double kGap = 70;
constexpr const char* kColours[] = {"#4878a8", "#c07030", "#508050"};

using Points = std::vector<std::pair<double, double>>;

std::string XmlText(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

// Returns the least of 1, 2 and 5 times a power of ten that is not below `value`.
double RoundUp(double value) {
  if (!(value > 0)) return 1;
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (value <= step * power) return step * power;
  }
  return 10 * power;
}

struct Panel {
  std::string title;
  std::vector<std::pair<double, std::string>> marks;  // of the x axis
  double most_x = 1;
  std::vector<std::pair<std::string, Points>> curves;  // by name; an empty name is not shown
};

void Draw(const Panel& panel, double top, std::string* svg) {
  double most = 0;
  for (const auto& [name, points] : panel.curves) {
    for (const auto& [x, y] : points) most = std::max(most, y);
  }
  most = RoundUp(most);
  const auto at_x = [&](double x) { return kLeft + kWidth * x / panel.most_x; };
  const auto at_y = [&](double y) { return top + kHeight * (1 - y / most); };
  absl::StrAppendFormat(svg, "<text x=\"%g\" y=\"%g\">%s</text>\n", kLeft, top - 8, XmlText(panel.title));
  for (int i = 0; i <= 4; ++i) {
    const double y = most * i / 4;
    absl::StrAppendFormat(svg,
                          "<line x1=\"%g\" y1=\"%.1f\" x2=\"%g\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                          "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                          kLeft, at_y(y), kLeft + kWidth, at_y(y), kLeft - 6, at_y(y) + 4, y);
  }
  for (const auto& [x, text] : panel.marks) {
    absl::StrAppendFormat(svg, "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text>\n", at_x(x),
                          top + kHeight + 16, text);
  }
  for (size_t i = 0; i < panel.curves.size(); ++i) {
    const auto& [name, points] = panel.curves[i];
    absl::StrAppendFormat(svg, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"", kColours[i]);
    for (const auto& [x, y] : points) absl::StrAppendFormat(svg, "%.1f,%.1f ", at_x(x), at_y(y));
    absl::StrAppendFormat(svg, "\"/>\n<text x=\"%g\" y=\"%g\" fill=\"%s\">%s</text>\n", kLeft + 8,
                          top + 16 + 16 * static_cast<double>(i), kColours[i], XmlText(name));
  }
}

// The x axis counts nines: 1 is the 90th percentile, 2 the 99th.
Panel LatencyPanel(const std::vector<LatencyCurve>& curves) {
  Panel panel;
  panel.title = "latency of steps by percentile, ms";
  uint64_t steps = 1;
  for (const LatencyCurve& curve : curves) steps = std::max(steps, curve.latency.count());
  panel.most_x = std::max(std::log10(static_cast<double>(steps)), 1.0);
  for (int nines = 0; nines <= panel.most_x; ++nines) {
    panel.marks.emplace_back(nines, absl::StrFormat("%g%%", 100 - std::pow(10, 2 - nines)));
  }
  for (const LatencyCurve& curve : curves) {
    Points points;
    for (int i = 0; i <= 200; ++i) {
      const double x = panel.most_x * i / 200;
      points.emplace_back(x, static_cast<double>(curve.latency.Percentile(100 - std::pow(10, 2 - x))) / 1e6);
    }
    panel.curves.emplace_back(curve.name, std::move(points));
  }
  return panel;
}

std::vector<LoadInterval> Thinned(const std::vector<LoadInterval>& intervals) {
  const size_t each = intervals.size() / kMostPoints + 1;
  std::vector<LoadInterval> thinned;
  for (size_t i = 0; i < intervals.size(); i += each) {
    const size_t end = std::min(i + each, intervals.size());
    LoadInterval point{intervals[end - 1].end_seconds, 0, 0};
    for (size_t j = i; j < end; ++j) {
      point.tokens_per_second += intervals[j].tokens_per_second / static_cast<double>(end - i);
      point.p99 = std::max(point.p99, intervals[j].p99);
    }
    thinned.push_back(point);
  }
  return thinned;
}

}  // namespace

std::string PlotLoad(const std::string& title, const std::vector<LatencyCurve>& curves,
                     const std::vector<LoadInterval>& intervals) {
  Panel tokens{"tokens/s over seconds", {}, 1, {{"", {}}}};
  Panel p99{"99th percentile of each interval over seconds, ms", {}, 1, {{"", {}}}};
  for (const LoadInterval& point : Thinned(intervals)) {
    tokens.curves[0].second.emplace_back(point.end_seconds, point.tokens_per_second);
    // The warm-up has no latency.
    if (point.p99 > 0) p99.curves[0].second.emplace_back(point.end_seconds, static_cast<double>(point.p99) / 1e6);
  }
  for (Panel* panel : {&tokens, &p99}) {
    if (!intervals.empty()) panel->most_x = std::max(intervals.back().end_seconds, 0.1);
    const double step = RoundUp(panel->most_x / kMostMarks);
    for (int i = 0; i * step <= panel->most_x; ++i)
      panel->marks.emplace_back(i * step, absl::StrFormat("%g", i * step));
  }
  constexpr double kTop = 60;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" font-family=\"sans-serif\" "
      "font-size=\"13\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
      "<text x=\"8\" y=\"20\">%s</text>\n",
      kLeft + kWidth + 40, kTop + 3 * (kHeight + kGap) - kGap / 2, XmlText(title));
  Draw(LatencyPanel(curves), kTop, &svg);
  Draw(tokens, kTop + kHeight + kGap, &svg);
  Draw(p99, kTop + 2 * (kHeight + kGap), &svg);
  return svg + "</svg>\n";
}

}  // namespace sortition::bench
