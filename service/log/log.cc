// The structured log: levels, JSON, the bound on lines a second, and the lines of the service and of libraries.
#include "service/log/log.h"

#include <google/protobuf/stubs/common.h>
#include <grpc/support/log.h>
#include <grpcpp/version_info.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "service/log/json_text.h"
#include "service/log/slow_steps.h"
#include "service/log/step_traces.h"

// gRPC logs through Abseil since 1.66, and protobuf since 22.
#define SORTITION_GRPC_HAS_LOG_FUNCTION (GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 66)
#define SORTITION_PROTOBUF_HAS_LOG_HANDLER (GOOGLE_PROTOBUF_VERSION < 4022000)
#if SORTITION_PROTOBUF_HAS_LOG_HANDLER
#include <google/protobuf/stubs/logging.h>
#endif
#define SORTITION_LIBRARIES_USE_ABSEIL_LOG (!SORTITION_GRPC_HAS_LOG_FUNCTION || !SORTITION_PROTOBUF_HAS_LOG_HANDLER)
#if SORTITION_LIBRARIES_USE_ABSEIL_LOG
#include "absl/log/globals.h"
#include "absl/log/initialize.h"
#include "absl/log/log_sink.h"
#include "absl/log/log_sink_registry.h"
#endif

namespace sortition::server {
namespace {

constexpr std::array<const char*, 4> kLevelNames = {"debug", "info", "warning", "error"};

struct AppendValue {
  std::string* line;
  void operator()(std::string_view text) const { AppendJsonText(text, line); }
  void operator()(int64_t number) const { absl::StrAppend(line, number); }
  void operator()(double number) const { AppendJsonNumber(number, line); }
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
  AppendJsonText(event, &line);
  for (const LogField& field : fields) {
    line.push_back(',');
    AppendJsonText(field.key, &line);
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

void LineWriter::Write(std::string_view line) {
  pollfd look = {.fd = descriptor_, .events = POLLOUT, .revents = 0};
  if (poll(&look, 1, 0) == 0) {
    lost_.fetch_add(1);
    return;
  }
  std::string noted;
  if (const uint64_t lost = lost_.exchange(0); lost > 0) {
    noted = line;
    noted.resize(noted.size() - std::strlen("}\n"));
    absl::StrAppend(&noted, ",\"lost\":", lost, "}\n");
    line = noted;
  }
  while (!line.empty()) {
    const ssize_t written = write(descriptor_, line.data(), line.size());
    if (written < 0) return;  // no process reads it any more, or the disk is full
    line.remove_prefix(static_cast<size_t>(written));
  }
}

void Log::ToStandardError(std::string_view line) {
  static LineWriter writer(STDERR_FILENO);
  writer.Write(line);
}

namespace {

// Large enough that one second's lines hold all names of two devices.
constexpr size_t kNamesInLine = 2 * service::DeviceEvent::kMostSequences / Log::kLinesPerSecond;

}  // namespace

void LoggedEvents::StepNoted(const service::NotedStep& step) {
  if (step.slow && slow_steps_ != nullptr) slow_steps_->Add(step);
  if (!step.traced) return;
  if (traces_ != nullptr) traces_->Add(step);
  log_.Write(LogLevel::kInfo, "step",
             {{"traceparent", step.traceparent},
              {"tracestate", step.tracestate},
              {"worker_session", step.worker_session},
              {"batch_id", step.batch_id},
              {"rows", step.rows},
              {"refused_rows", step.refused_rows},
              {"refused_for", step.refused_for},
              {"latency_seconds", absl::ToDoubleSeconds(step.latency())}});
}

void LoggedEvents::SequenceOpened(const service::OpenedSequence& sequence) {
  log_.Write(LogLevel::kDebug, "sequence_opened",
             {{"worker_session", sequence.worker_session},
              {"model", sequence.model},
              {"vocabulary_size", sequence.vocabulary},
              {"stateful", sequence.stateful}});
}

void LoggedEvents::DeviceChanged(const service::DeviceEvent& event) {
  const bool serves = event.state == service::DeviceState::kServing;
  log_.Write(serves ? LogLevel::kInfo : LogLevel::kError, "device",
             {{"device", event.device},
              {"state", service::DeviceStateName(event.state)},
              {"reason", event.reason},
              {"unchecked_rows", event.unchecked_rows},
              {"touched_sequences", event.sequences.size()}});
  for (size_t first = 0; first < event.sequences.size(); first += kNamesInLine) {
    const size_t end = std::min(first + kNamesInLine, event.sequences.size());
    const std::string names =
        absl::StrJoin(event.sequences.begin() + ptrdiff_t(first), event.sequences.begin() + ptrdiff_t(end), " ");
    log_.Write(LogLevel::kError, "touched_sequence", {{"device", event.device}, {"request_ids", names}});
  }
}

void LoggedEvents::ReceiptsChanged(bool written, std::string_view why) {
  log_.Write(written ? LogLevel::kInfo : LogLevel::kError, "receipts",
             {{"state", written ? "written_again" : "not_written"}, {"reason", why}});
}

void LoggedEvents::FileRead(service::FollowedFile file, std::string_view why) {
  log_.Write(why.empty() ? LogLevel::kInfo : LogLevel::kError, "file",
             {{"file", service::kFollowedFileNames[static_cast<size_t>(file)]},
              {"state", why.empty() ? "replaced" : "refused"},
              {"reason", why}});
}

namespace {

[[maybe_unused]] constexpr size_t kMaxMessageBytes = 1024;

#if SORTITION_GRPC_HAS_LOG_FUNCTION

Log* grpc_log = nullptr;

void ForwardGrpc(gpr_log_func_args* args) {
  const LogLevel level = args->severity == GPR_LOG_SEVERITY_ERROR  ? LogLevel::kWarning
                         : args->severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo
                                                                   : LogLevel::kDebug;
  grpc_log->Write(level, "grpc",
                  {{"message", std::string_view(args->message).substr(0, kMaxMessageBytes)},
                   {"file", std::string_view(args->file)},
                   {"line", args->line}});
}

void RedirectGrpc(Log* log) {
  grpc_log = log;
  gpr_set_log_function(ForwardGrpc);
}

#else

void RedirectGrpc(Log*) {}

#endif

#if SORTITION_PROTOBUF_HAS_LOG_HANDLER

Log* protobuf_log = nullptr;

void ForwardProtobuf(google::protobuf::LogLevel, const char* file, int line, const std::string& message) {
  protobuf_log->Write(LogLevel::kWarning, "protobuf",
                      {{"message", std::string_view(message).substr(0, kMaxMessageBytes)},
                       {"file", std::string_view(file)},
                       {"line", line}});
}

void RedirectProtobuf(Log* log) {
  protobuf_log = log;
  google::protobuf::SetLogHandler(ForwardProtobuf);
}

#else

void RedirectProtobuf(Log*) {}

#endif

#if SORTITION_LIBRARIES_USE_ABSEIL_LOG

class AbseilSink : public absl::LogSink {
 public:
  explicit AbseilSink(Log* log) : log_(*log) {}
  void Send(const absl::LogEntry& entry) override {
    const std::string_view file = entry.source_filename();
    const bool is_protobuf = file.find("google/protobuf") != file.npos;
    log_.Write(entry.log_severity() == absl::LogSeverity::kInfo ? LogLevel::kInfo : LogLevel::kWarning,
               is_protobuf ? "protobuf" : "grpc",
               {{"message", std::string_view(entry.text_message()).substr(0, kMaxMessageBytes)},
                {"file", file},
                {"line", entry.source_line()}});
  }

 private:
  Log& log_;
};

void RedirectAbseil(Log* log) {
  absl::InitializeLog();
  absl::SetStderrThreshold(absl::LogSeverityAtLeast::kInfinity);
  absl::AddLogSink(new AbseilSink(log));  // other threads log until the process ends
}

#else

void RedirectAbseil(Log*) {}

#endif

}  // namespace

void RedirectLibraryLogs(Log* log) {
  RedirectGrpc(log);
  RedirectProtobuf(log);
  RedirectAbseil(log);
}

}  // namespace sortition::server
