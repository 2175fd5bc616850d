// Changes lines of PTX in place, so that all others keep their numbers.
#include "tests/ptx/faults.h"

#include <regex>
#include <sstream>
#include <string_view>

namespace sortition::testing::ptx {
namespace {

constexpr int kGigabyte = 1 << 30;

bool Has(const std::string& line, std::string_view text) { return line.find(text) != std::string::npos; }

// An access of shared or global memory. `first` and `rest` are the text before and after its offset.
struct MemoryAccess {
  std::string first, rest;
  bool stores = false;
  int offset = 0;
  int bytes = 0;
};

bool ReadAccess(const std::string& line, MemoryAccess* access) {
  static const std::regex kAccess(R"(^(\s*(?:@!?%p\d+ )?(ld|st)(?:\.volatile)?(?:\.shared|\.global)?(?:\.nc)?)"
                                  R"((?:\.v(\d))?\.[a-z]+(\d+)\s.*\[(?:%r|_Z)[^\]+]*)(?:\+(-?\d+))?(\].*)$)");
  std::smatch match;
  if (!(Has(line, "ld.") || Has(line, "st.")) || !std::regex_match(line, match, kAccess)) return false;
  access->first = match[1];
  access->stores = match[2] == "st";
  access->bytes = (match[3].matched ? std::stoi(match[3]) : 1) * std::stoi(match[4]) / 8;
  access->offset = match[5].matched ? std::stoi(match[5]) : 0;
  access->rest = match[6];
  return true;
}

// Moves the access by `bytes` bytes.
std::string Moved(const MemoryAccess& access, int bytes) {
  return access.first + "+" + std::to_string(access.offset + bytes) + access.rest;
}

// Plants a fault of that kind in the line if it is a place for one.
bool Change(FaultKind kind, std::string* line) {
  static const std::regex kMeets(R"(^(\s*(?:shfl|vote|redux)\.sync\..*, )[^,;]+;\s*$)");
  static const std::regex kComputes(
      R"(^\s*(?:add|sub|and|or|xor|shl|shr|mul|mad|setp|selp|mov)\.[a-z0-9_.]+\s.*;\s*$)");
  std::smatch match;
  MemoryAccess access;
  switch (kind) {
    case FaultKind::kBarrier:
      if (!Has(*line, "bar.sync")) return false;
      line->clear();
      return true;
    case FaultKind::kFence:
      if (!Has(*line, "membar.gl")) return false;
      line->clear();
      return true;
    case FaultKind::kMask:
      if (!Has(*line, ".sync.") || !std::regex_match(*line, match, kMeets)) return false;
      *line = match[1].str() + std::to_string(0xfffffffe) + ";";
      return true;
    case FaultKind::kIndex:
      if (!ReadAccess(*line, &access)) return false;
      *line = Moved(access, access.bytes);
      return true;
    case FaultKind::kStore:
      if (!ReadAccess(*line, &access) || !access.stores) return false;
      line->clear();
      return true;
    case FaultKind::kAlignment:
      if (!ReadAccess(*line, &access) || access.bytes == 1) return false;
      *line = Moved(access, 1);
      return true;
    case FaultKind::kBounds:
      if (!ReadAccess(*line, &access)) return false;
      *line = Moved(access, kGigabyte);
      return true;
    case FaultKind::kUnknown:
      if (!std::regex_match(*line, match, kComputes)) return false;
      *line = "\tlop3.b32 \t%r1, %r1, %r1, %r1, 150;";
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
    case FaultKind::kStore:
      return "store removed";
    case FaultKind::kAlignment:
      return "access off by one byte";
    case FaultKind::kBounds:
      return "access off by a gigabyte";
    case FaultKind::kUnknown:
      return "unknown instruction";
  }
  return "?";
}

std::string Fault::name() const {
  return std::string(NameOf(kind)) + ", place " + std::to_string(nth) + " of " + function + " in " + module + ".cu";
}

ModuleLines::ModuleLines(const std::string& text) {
  static const std::regex kHeading(R"(^(?:\.visible |\.weak )?\.(?:entry|func)(?:\s*\([^)]*\))?\s+(\w+))");
  std::istringstream lines(text);
  std::smatch match;
  std::string heading;
  bool is_inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(".") && std::regex_search(line, match, kHeading)) heading = match[1];
    if (line == "}") is_inside = false;
    functions_.push_back(is_inside ? heading : "");
    if (line == "{") is_inside = true;
    lines_.push_back(line);
  }
}

std::vector<ModuleLines::Place> ModuleLines::Places(FaultKind kind, const std::string& function) const {
  std::vector<Place> places;
  for (uint32_t i = 0; i < lines_.size(); ++i) {
    if (functions_[i].empty() || !Has(functions_[i], function)) continue;
    std::string line = lines_[i];
    if (!Change(kind, &line)) continue;
    const bool is_next = !places.empty() && places.back().function == functions_[i];
    places.push_back({i + 1, functions_[i], is_next ? places.back().nth + 1 : 0});
  }
  return places;
}

std::string ModuleLines::With(FaultKind kind, uint32_t line) const {
  std::string text;
  for (uint32_t i = 0; i < lines_.size(); ++i) {
    std::string changed = lines_[i];
    if (i + 1 == line) Change(kind, &changed);
    text += changed + "\n";
  }
  return text;
}

}  // namespace sortition::testing::ptx
