// Lines of PTX are changed in place, so that all others keep their numbers.
#include "tests/ptx/faults.h"

#include <regex>
#include <sstream>
#include <string_view>

namespace sortition::testing::ptx {
namespace {

// Changes the line if it is a place of that kind.
bool Change(FaultKind kind, std::string* line) {
  static const std::regex kMeets(R"(^(\s*(?:shfl|vote|redux)\.sync\..*, )[^,;]+;\s*$)");
  static const std::regex kAccess(
      R"(^(\s*(?:ld|st)(?:\.shared|\.global)?(?:\.nc)?\.([a-z]+)(\d+)\s.*\[%r[^\]+]*)(\+(\d+))?(\].*)$)");
  std::smatch match;
  switch (kind) {
    case FaultKind::kBarrier:
      if (line->find("bar.sync") == std::string::npos) return false;
      line->clear();
      return true;
    case FaultKind::kFence:
      if (line->find("membar.gl") == std::string::npos) return false;
      line->clear();
      return true;
    case FaultKind::kMask:
      if (!std::regex_match(*line, match, kMeets)) return false;
      *line = match[1].str() + std::to_string(0xfffffffe) + ";";
      return true;
    case FaultKind::kIndex:
      if (!std::regex_match(*line, match, kAccess)) return false;
      const int offset = match[5].matched ? std::stoi(match[5]) : 0;
      *line = match[1].str() + "+" + std::to_string(offset + std::stoi(match[3]) / 8) + match[6].str();
      return true;
  }
  return false;
}

}  // namespace

const char* NameOf(FaultKind kind) {
  switch (kind) {
    case FaultKind::kBarrier:
      return "barrier removed";
    case FaultKind::kFence:
      return "fence removed";
    case FaultKind::kMask:
      return "mask wrong";
    case FaultKind::kIndex:
      return "index off by one";
  }
  return "?";
}

std::string Fault::name() const {
  return std::string(NameOf(kind)) + ", place " + std::to_string(nth) + " of " + function + " in " + module + ".cu";
}

std::string Plant(const std::string& text, const Fault& fault, uint32_t* line_number) {
  std::istringstream lines(text);
  std::string result;
  std::string heading;
  bool is_inside = false;
  bool is_planted = false;
  uint32_t met = 0;
  uint32_t number = 0;
  for (std::string line; std::getline(lines, line); result += line + "\n") {
    ++number;
    if (line.starts_with(".func") || line.starts_with(".visible")) heading = line;
    if (line == "{") is_inside = heading.find(fault.function) != std::string::npos;
    if (line == "}") is_inside = false;
    if (!is_inside || is_planted) continue;
    std::string changed = line;
    if (!Change(fault.kind, &changed) || met++ != fault.nth) continue;
    line = changed;
    *line_number = number;
    is_planted = true;
  }
  return is_planted ? result : "";
}

}  // namespace sortition::testing::ptx
