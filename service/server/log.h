// Structured logs: one JSON object a line. Never holds logits, seeds, tokens or history.
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

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// For flags: "debug", "info", "warning", "error".
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

// Thread-safe. A line is written as a whole; writing may block on the sink.
class Log {
 public:
  // Takes one line, newline included.
  using Sink = std::function<void(std::string_view line)>;

  // Lines of one event within one second; the rest is counted, and the event's next line says how many as "suppressed".
  // So a client cannot flood the log, whatever it does.
  static constexpr uint32_t kLinesPerSecond = 50;

  // The time of day, which is what people compare a log with.
  using TimeOfDay = std::function<absl::Time()>;

  // Lines below `least` are dropped.
  explicit Log(LogLevel least, Sink sink = ToStandardError, TimeOfDay time = absl::Now);

  // `event` names what happened and is one of a fixed set of literals. Texts that come from a client are bounded by the
  // caller.
  void Write(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

  // From now on. Returns the level until now.
  LogLevel SetLeast(LogLevel least) { return least_.exchange(least, std::memory_order_relaxed); }

  static void ToStandardError(std::string_view line);

 private:
  struct Rate {
    int64_t second = 0;
    uint32_t lines = 0;
    uint64_t suppressed = 0;
  };

  // How many lines of the event were suppressed since its last one; nothing if this one is to be suppressed too.
  std::optional<uint64_t> Admit(std::string_view event, absl::Time now);

  std::atomic<LogLevel> least_;
  const Sink sink_;
  const TimeOfDay time_;
  absl::Mutex mutex_;
  std::map<std::string, Rate, std::less<>> rates_ ABSL_GUARDED_BY(mutex_);
};

// Thread-safe.
class LoggedEvents : public service::EventLog {
 public:
  // `log` is not owned and outlives this.
  explicit LoggedEvents(Log* log) : log_(*log) {}

  // "step", at level info: the worker asked for it.
  void StepTraced(const service::TracedStep& step) override;
  // "sequence_opened", at level debug.
  void SequenceOpened(const service::OpenedSequence& sequence) override;
  // "device", at level info where it joins, error where it leaves; and "touched_sequence" for the sequences to which a
  // device that gave wrong answers may have given more, several a line, so that the log takes all of them at once.
  void DeviceChanged(const service::DeviceEvent& event) override;

 private:
  Log& log_;
};

// Sends what gRPC and protobuf say into the log, so that standard error holds JSON lines alone and no client can flood
// it with malformed messages. `log` is not owned and outlives every use of gRPC and protobuf in the process. Call once,
// before either is used.
void RedirectLibraryLogs(Log* log);

}  // namespace sortition::server
