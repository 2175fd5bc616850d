// What the commands of sortitionctl share: how to reach the server, and how a command ends.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/options.h"
#include "google/protobuf/message.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"

namespace sortition::cli {

// Exit codes, the same for every command (docs/operations.md).
enum class Outcome : int {
  kDone = 0,
  kWrongUse = 1,     // of flags, arguments or input files; also the flag library's own code
  kUnreachable = 2,  // no answer from the server, or none in time
  kRefused = 3,      // the server answered with an error, or is not serving
};

// Says on stderr why, and which outcome that is: of what was said before a server was asked, or by the client library,
// whose typed errors are the server's; and of what a server said.
Outcome Fail(const absl::Status& status);
Outcome Fail(const grpc::Status& status);

// From the flags --server, --timeout and --tls_*.
std::string ServerAddress();
absl::Duration Timeout();
absl::StatusOr<std::optional<client::TlsOptions>> Tls();
// Of --token_file, or else of the variable SORTITION_TOKEN; empty if there is neither.
absl::StatusOr<std::string> Token();
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel();
// Shows the token to the server of a call.
absl::Status Prepare(grpc::ClientContext* context);
bool WantsJson();

// A message as JSON, with the names of the contract and with every field that has no presence. Ends with a line break.
std::string ToJson(const google::protobuf::Message& message, bool one_line);

// The commands. Each says on stderr what went wrong.
Outcome Info();
Outcome Devices();
Outcome Sample(const std::vector<std::string>& arguments);
Outcome Watch();
Outcome Health();
Outcome Admin(const std::vector<std::string>& arguments);
Outcome Detect(const std::vector<std::string>& arguments);

}  // namespace sortition::cli
