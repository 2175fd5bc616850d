// The libraries' messages as log lines.
#include "service/server/library_log.h"

#include <google/protobuf/stubs/common.h>
#include <grpc/support/log.h>
#include <grpcpp/version_info.h>

#include <string>
#include <string_view>

// From 1.66 on gRPC logs through Abseil, and so does protobuf from 22 on; these lines are left as they are.
#define SORTITION_GRPC_HAS_LOG_FUNCTION (GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 66)
#define SORTITION_PROTOBUF_HAS_LOG_HANDLER (GOOGLE_PROTOBUF_VERSION < 4022000)
#if SORTITION_PROTOBUF_HAS_LOG_HANDLER
#include <google/protobuf/stubs/logging.h>
#endif

namespace sortition::server {

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

}  // namespace

void RedirectLibraryLogs(Log* log) {
  RedirectGrpc(log);
  RedirectProtobuf(log);
}

}  // namespace sortition::server
