// Shared parts of sortitionctl's commands: reaching the server, output, and exit codes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"
#include "sortition/client.h"
#include "sortition/options.h"

namespace sortition::cli {

// Exit codes, the same for every command (docs/operations.md).
enum class Outcome : int {
  kDone = 0,
  kWrongUse = 1,     // wrong flags, arguments or input files; also the flag library's exit code
  kUnreachable = 2,  // no answer from the server, or none in time
  kRefused = 3,      // the server answered with an error, or is not serving
  kDiffers = 4,      // verify, replay: something differs; bench: a row is lost
  kIncomplete = 5,   // verify: no difference, but a requested check was not made for all receipts
};

// Prints the error to stderr and returns its outcome. The first is for errors found before a call, and for the client
// library's, which may be typed errors of the server; the second is for a server's status.
Outcome Fail(const absl::Status& status);
Outcome Fail(const grpc::Status& status);

// Return the values of the flags --server, --timeout and --tls_*.
std::string ServerAddress();
absl::Duration Timeout();
absl::StatusOr<std::optional<client::TlsOptions>> Tls();
// Returns the token in --token_file, or else in the variable SORTITION_TOKEN; empty if there is neither.
absl::StatusOr<std::string> Token();
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel();
// Returns the options of a client of that server.
absl::StatusOr<client::ClientOptions> Connection();
// Returns a client of that server. Blocks until it is connected, at most for Timeout().
absl::StatusOr<std::unique_ptr<client::Client>> Connect();
// Adds the token to a call.
absl::Status Prepare(grpc::ClientContext* context);
bool WantsJson();

// Returns a message as JSON, with the contract's names and all fields without presence. Ends with a line break.
std::string ToJson(const google::protobuf::Message& message, bool one_line);

// The commands. Each prints its errors to stderr.
Outcome Info();
Outcome Devices();
Outcome Sample(const std::vector<std::string>& arguments);
Outcome Watch();
Outcome Health();
Outcome Bench(const std::vector<std::string>& arguments);
Outcome Admin(const std::vector<std::string>& arguments);
Outcome Detect(const std::vector<std::string>& arguments);
Outcome Verify(const std::vector<std::string>& arguments);
Outcome Replay(const std::vector<std::string>& arguments);
Outcome Receipts(const std::vector<std::string>& arguments);

}  // namespace sortition::cli
