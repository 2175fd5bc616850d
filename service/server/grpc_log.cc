// gRPC's messages as log lines.
#include "service/server/grpc_log.h"

#include <grpc/support/log.h>
#include <grpcpp/version_info.h>

#include <string>
#include <string_view>

// From 1.66 on gRPC logs through Abseil, whose lines are left as they are.
#define SORTITION_GRPC_HAS_LOG_FUNCTION (GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR < 66)

namespace sortition::server {

#if SORTITION_GRPC_HAS_LOG_FUNCTION

namespace {

constexpr size_t kMaxMessageBytes = 1024;

Log* grpc_log = nullptr;

void Forward(gpr_log_func_args* args) {
  const LogLevel level = args->severity == GPR_LOG_SEVERITY_ERROR  ? LogLevel::kWarning
                         : args->severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo
                                                                   : LogLevel::kDebug;
  grpc_log->Write(level, "grpc",
                  {{"message", std::string_view(args->message).substr(0, kMaxMessageBytes)},
                   {"file", std::string_view(args->file)},
                   {"line", args->line}});
}

}  // namespace

void RedirectGrpcLog(Log* log) {
  grpc_log = log;
  gpr_set_log_function(Forward);
}

#else

void RedirectGrpcLog(Log*) {}

#endif

}  // namespace sortition::server
