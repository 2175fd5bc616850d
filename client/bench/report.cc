// Forms of a report.
#include "client/bench/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace sortition::bench {
namespace {

std::string JsonString(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) quoted += c;
  }
  return quoted + '"';
}

std::string JsonNumber(std::optional<double> value) {
  if (!value.has_value() || !std::isfinite(*value)) return "null";
  const bool count = *value == std::trunc(*value) && std::fabs(*value) < 0x1p53;  // written exactly
  return absl::StrFormat(count ? "%.0f" : "%.6g", *value);
}

}  // namespace

std::string Report::Json() const {
  std::string json = absl::StrCat("{\n  \"suite\": ", JsonString(suite_), ",\n  \"machine\": ", JsonString(machine_),
                                  ",\n  \"results\": [");
  const char* separator = "\n";
  for (const Result& result : results_) {
    absl::StrAppend(&json, separator, "    {\"name\": ", JsonString(result.name),
                    ", \"value\": ", JsonNumber(result.value), ", \"unit\": ", JsonString(result.unit),
                    ", \"baseline\": ", JsonNumber(result.baseline), ", \"ratio\": ", JsonNumber(result.Ratio()), "}");
    separator = ",\n";
  }
  return json + "\n  ]\n}\n";
}

std::string Report::Table() const {
  size_t width = 0;
  for (const Result& result : results_) width = std::max(width, result.name.size());
  std::string table = absl::StrCat(suite_, " on ", machine_, "\n");
  for (const Result& result : results_) {
    absl::StrAppendFormat(&table, "%-*s %10.2f %-6s", int(width), result.name, result.value, result.unit);
    if (result.baseline.has_value()) absl::StrAppendFormat(&table, " %8.3f x %.2f", *result.Ratio(), *result.baseline);
    table += '\n';
  }
  return table;
}

std::string Report::Svg() const {
  constexpr int kRow = 22;
  constexpr int kLabels = 260;
  constexpr int kBars = 520;
  std::vector<const Result*> bars;
  double most = 1;
  for (const Result& result : results_) {
    if (!result.baseline.has_value()) continue;
    bars.push_back(&result);
    most = std::max(most, *result.Ratio());
  }
  const int height = kRow * (int(bars.size()) + 2);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
      "font-size=\"13\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
      "<text x=\"8\" y=\"16\">%s: time over baseline, %s</text>\n",
      kLabels + kBars + 80, height, XmlText(suite_), XmlText(machine_));
  int y = kRow;
  for (const Result* result : bars) {
    const double length = kBars * *result->Ratio() / most;
    absl::StrAppendFormat(&svg,
                          "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>"
                          "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"#4878a8\"/>"
                          "<text x=\"%.1f\" y=\"%d\">%.2f</text>\n",
                          kLabels - 8, y + 16, XmlText(result->name), kLabels, y + 4, length, kRow - 8,
                          kLabels + length + 6, y + 16, *result->Ratio());
    y += kRow;
  }
  const double one = kLabels + kBars / most;
  absl::StrAppendFormat(&svg, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#a04040\"/>\n</svg>\n", one,
                        kRow, one, y);
  return svg;
}

std::string XmlText(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

bool WriteFile(const std::string& name, const std::string& content) {
  if (name.empty()) return true;
  std::ofstream file(name);
  file << content;
  file.close();
  if (!file) std::cerr << "cannot write " << name << "\n";
  return bool(file);
}

std::string MachineName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

int Publish(const Report& report, const std::string& json_file, const std::string& plot_file) {
  std::cout << report.Table() << std::flush;
  const bool json = WriteFile(json_file, report.Json());
  const bool plot = WriteFile(plot_file, report.Svg());
  return json && plot ? 0 : 1;
}

}  // namespace sortition::bench
