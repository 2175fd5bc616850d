// Forms of a report.
#include "client/bench/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/bench/histogram.h"

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

void AddPercentiles(const std::string& name, const std::string& variant, const Histogram& times,
                    const Histogram* baseline, Report* report) {
  if (times.count() == 0) return;
  for (const auto& [suffix, percent] : {std::pair("_p50", 50.0), std::pair("_p90", 90.0), std::pair("_p99", 99.0),
                                        std::pair("_p99_9", 99.9), std::pair("_max", 100.0)}) {
    const auto microseconds = [percent = percent](const Histogram& histogram) {
      return static_cast<double>(histogram.Percentile(percent)) / 1e3;
    };
    report->Add({absl::StrCat(name, suffix, variant.empty() ? "" : "/", variant), microseconds(times), "us",
                 baseline == nullptr ? std::nullopt : std::optional(microseconds(*baseline))});
  }
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

int Publish(const Report& report, const std::string& json_file) {
  std::cout << report.Table() << std::flush;
  return WriteFile(json_file, report.Json()) ? 0 : 1;
}

}  // namespace sortition::bench
