// The structured log: one JSON object a line. It never holds logits, seeds, tokens or history.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "service/event_log.h"

namespace sortition::server {

class SlowSteps;
class StepTraces;

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Parses and prints levels for flags: "debug", "info", "warning", "error".
bool AbslParseFlag(absl::string_view text, LogLevel* level, std::string* error);
std::string AbslUnparseFlag(LogLevel level);

struct LogField {
  LogField(std::string_view key, std::string_view text) : key(key), value(text) {}
  LogField(std::string_view key, const char* text) : key(key), value(std::string_view(text)) {}
  LogField(std::string_view key, const std::string& text) : key(key), value(std::string_view(text)) {}
  LogField(std::string_view key, double number) : key(key), value(number) {}
  template <typename Integer>
  requires std::is_integral_v<Integer> LogField(std::string_view key, Integer number)
      : key(key), value(static_cast<int64_t>(number)) {}

  std::string_view key;
  std::variant<std::string_view, int64_t, double> value;
};

// Writes lines to a descriptor without waiting for a reader: a line is lost if a pipe has no room. The next written
// line has the number of lost ones as "lost". Thread-safe.
class LineWriter {
 public:
  // `descriptor` is not owned.
  explicit LineWriter(int descriptor) : descriptor_(descriptor) {}

  // `line` is a JSON object with its newline.
  void Write(std::string_view line);

 private:
  const int descriptor_;
  std::atomic<uint64_t> lost_ = 0;
};

// Thread-safe. A line is written as a whole; writing may block on the sink, if it is another than standard error.
class Log {
 public:
  // Takes one line, with its newline.
  using Sink = std::function<void(std::string_view line)>;

  // Most lines of one event in one second, so that no client can flood the log. Further lines are only counted; the
  // event's next line has their number as "suppressed".
  static constexpr uint32_t kLinesPerSecond = 50;

  // Returns the wall-clock time, which people compare a log with.
  using TimeOfDay = std::function<absl::Time()>;

  // Lines below `least` are dropped.
  explicit Log(LogLevel least, Sink sink = ToStandardError, TimeOfDay time = absl::Now);

  // Writes a line. `event` is one of a fixed set of literals. The caller bounds the length of texts that come from a
  // client.
  void Write(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

  // Sets the least level of lines that are written. Returns the previous one.
  LogLevel SetLeast(LogLevel least) { return least_.exchange(least, std::memory_order_relaxed); }

  // By a LineWriter.
  static void ToStandardError(std::string_view line);

 private:
  struct Rate {
    int64_t second = 0;
    uint32_t lines = 0;
    uint64_t suppressed = 0;
  };

  // Returns the number of the event's lines suppressed since its last line, or nothing if this one is suppressed too.
  std::optional<uint64_t> Admit(std::string_view event, absl::Time now);

  std::atomic<LogLevel> least_;
  const Sink sink_;
  const TimeOfDay time_;
  absl::Mutex mutex_;
  std::map<std::string, Rate, std::less<>> rates_ ABSL_GUARDED_BY(mutex_);
};

// Writes the service's events into the log. Thread-safe.
class LoggedEvents : public service::EventLog {
 public:
  // `log`, `traces` and `slow_steps` are not owned and outlive this. The last two may be null.
  explicit LoggedEvents(Log* log, StepTraces* traces = nullptr, SlowSteps* slow_steps = nullptr)
      : log_(*log), traces_(traces), slow_steps_(slow_steps) {}

  // Writes "step" at level info for a step that its worker traces, and adds it to the traces. Adds a slow one to the
  // slow steps.
  void StepNoted(const service::NotedStep& step) override;
  // Writes "sequence_opened" at level debug.
  void SequenceOpened(const service::OpenedSequence& sequence) override;
  // "device", at level info where it joins, error where it leaves; and "touched_sequence" for the sequences that may
  // have other wrong answers of this device: several in a line, so that the log takes all at once.
  void DeviceChanged(const service::DeviceEvent& event) override;
  // Writes "receipts", at level error where receipts cannot be written, otherwise info.
  void ReceiptsChanged(bool written, std::string_view why) override;
  // Writes "file", at level error where it cannot be used, otherwise info.
  void FileRead(service::FollowedFile file, std::string_view why) override;

 private:
  Log& log_;
  StepTraces* const traces_;
  SlowSteps* const slow_steps_;
};

// Redirects the messages of gRPC and protobuf into the log, so that standard error holds only JSON lines and no client
// can flood it with malformed messages. `log` is not owned and lives as long as the process. Call once, before they are
// used.
void RedirectLibraryLogs(Log* log);

}  // namespace sortition::server
