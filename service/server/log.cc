// Writing log lines: levels, JSON and the bound on lines a second.
#include "service/server/log.h"

#include <unistd.h>

#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sortition::server {
namespace {

constexpr std::array<const char*, 4> kLevelNames = {"debug", "info", "warning", "error"};

void AppendText(std::string_view text, std::string* line) {
  line->push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      line->push_back('\\');
      line->push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(line, "\\u%04x", static_cast<unsigned>(c));
    } else {
      line->push_back(c);
    }
  }
  line->push_back('"');
}

struct AppendValue {
  std::string* line;
  void operator()(std::string_view text) const { AppendText(text, line); }
  void operator()(int64_t number) const { absl::StrAppend(line, number); }
  void operator()(double number) const {
    // JSON has no NaN and no infinities.
    if (std::isfinite(number)) {
      absl::StrAppend(line, number);
    } else {
      line->append("null");
    }
  }
};

}  // namespace

bool AbslParseFlag(absl::string_view text, LogLevel* level, std::string* error) {
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (text == kLevelNames[i]) {
      *level = static_cast<LogLevel>(i);
      return true;
    }
  }
  *error = "expected debug, info, warning or error";
  return false;
}

std::string AbslUnparseFlag(LogLevel level) { return kLevelNames[static_cast<size_t>(level)]; }

Log::Log(LogLevel least, Sink sink, TimeOfDay time) : least_(least), sink_(std::move(sink)), time_(std::move(time)) {}

void Log::Write(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  if (level < least_.load(std::memory_order_relaxed)) return;
  const absl::Time now = time_();
  const std::optional<uint64_t> suppressed = Admit(event, now);
  if (!suppressed) return;
  std::string line = absl::StrCat("{\"time\":\"", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", now, absl::UTCTimeZone()),
                                  "\",\"level\":\"", kLevelNames[static_cast<size_t>(level)], "\",\"event\":");
  AppendText(event, &line);
  for (const LogField& field : fields) {
    line.push_back(',');
    AppendText(field.key, &line);
    line.push_back(':');
    std::visit(AppendValue{&line}, field.value);
  }
  if (*suppressed > 0) absl::StrAppend(&line, ",\"suppressed\":", *suppressed);
  line.append("}\n");
  sink_(line);
}

std::optional<uint64_t> Log::Admit(std::string_view event, absl::Time now) {
  const int64_t second = absl::ToUnixSeconds(now);
  absl::MutexLock lock(&mutex_);
  auto it = rates_.find(event);
  if (it == rates_.end()) it = rates_.emplace(event, Rate{.second = second}).first;
  Rate& rate = it->second;
  if (rate.second != second) {
    rate.second = second;
    rate.lines = 0;
  }
  if (rate.lines == kLinesPerSecond) {
    ++rate.suppressed;
    return std::nullopt;
  }
  ++rate.lines;
  return std::exchange(rate.suppressed, 0);
}

void Log::ToStandardError(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
    if (written < 0) return;  // nobody is left to read it
    line.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace sortition::server
