// Connection flags, error output and exit codes.
#include "client/cli/command.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cpp/transport/grpc_channel.h"
#include "client/cpp/transport/wire_errors.h"
#include "google/protobuf/stubs/common.h"
#include "google/protobuf/util/json_util.h"
#include "grpcpp/create_channel.h"
#include "kernels/check.h"
#include "sortition/client.h"

ABSL_FLAG(std::string, server, "127.0.0.1:50051", "Server to talk to, HOST:PORT or unix:PATH");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(10), "How long to wait for the server");
ABSL_FLAG(bool, tls, false, "Talk TLS to the server");
ABSL_FLAG(std::string, tls_ca, "", "PEM file of the certificates to trust, for --tls; empty = the system's");
ABSL_FLAG(std::string, tls_certificate, "", "PEM file of our own certificate chain, for --tls");
ABSL_FLAG(std::string, tls_key, "", "PEM file of our own private key, for --tls");
ABSL_FLAG(std::string, token_file, "",
          "File of the bearer token to show to the server; empty = that of the variable SORTITION_TOKEN, if any");
ABSL_FLAG(bool, json, false, "Print JSON, with the names of the wire contract; bench writes it to a file");

namespace sortition::cli {
namespace {

absl::StatusOr<std::string> ReadFile(const absl::Flag<std::string>& flag) {
  const std::string path = absl::GetFlag(flag);
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return absl::InvalidArgumentError(absl::StrCat("--", flag.Name(), ": cannot read ", path));
  return text.str();
}

}  // namespace

Outcome Fail(const absl::Status& status) {
  const auto typed = client::ErrorOf(status);  // its text names its kind
  const std::string text =
      typed ? std::string(status.message()) : status.ToString(absl::StatusToStringMode::kWithNoExtraData);
  std::fprintf(stderr, "sortitionctl: %s\n", text.c_str());
  if (typed) return typed->reason == v1::DEADLINE_PASSED ? Outcome::kUnreachable : Outcome::kRefused;
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return Outcome::kWrongUse;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return Outcome::kUnreachable;
    default:
      return Outcome::kRefused;
  }
}

Outcome Fail(const grpc::Status& status) {
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  const Outcome outcome = Fail(absl::Status(code, absl::StrCat(ServerAddress(), ": ", status.error_message())));
  return outcome == Outcome::kWrongUse ? Outcome::kRefused : outcome;
}

std::string ServerAddress() { return absl::GetFlag(FLAGS_server); }

absl::Duration Timeout() { return absl::GetFlag(FLAGS_timeout); }

absl::StatusOr<std::optional<client::TlsOptions>> Tls() {
  client::TlsOptions options;
  const std::pair<const absl::Flag<std::string>&, std::string*> files[] = {
      {FLAGS_tls_ca, &options.root_certificates},
      {FLAGS_tls_certificate, &options.certificate_chain},
      {FLAGS_tls_key, &options.private_key}};
  for (const auto& [flag, text] : files) {
    absl::StatusOr<std::string> pem = ReadFile(flag);
    if (!pem.ok()) return pem.status();
    *text = *std::move(pem);
    if (!text->empty() && !absl::GetFlag(FLAGS_tls)) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag.Name(), " needs --tls"));
    }
  }
  if (!absl::GetFlag(FLAGS_tls)) return std::optional<client::TlsOptions>();
  return std::optional<client::TlsOptions>(std::move(options));
}

absl::StatusOr<std::string> Token() {
  absl::StatusOr<std::string> token = ReadFile(FLAGS_token_file);
  if (!token.ok()) return token;
  const char* const variable = std::getenv("SORTITION_TOKEN");
  if (absl::GetFlag(FLAGS_token_file).empty() && variable != nullptr) *token = variable;
  absl::StripTrailingAsciiWhitespace(&*token);
  // gRPC ends the process if a token has other characters.
  if (!std::all_of(token->begin(), token->end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError("--token_file: a token has printable characters of ASCII alone");
  }
  return token;
}

absl::StatusOr<client::ClientOptions> Connection() {
  auto tls = Tls();
  if (!tls.ok()) return tls.status();
  auto token = Token();
  if (!token.ok()) return token.status();
  client::ClientOptions connection;
  connection.targets = {ServerAddress()};
  connection.name = "sortitionctl";
  connection.transport.tls = *std::move(tls);
  connection.transport.token = *std::move(token);
  connection.retry.connect_timeout = connection.default_timeout = Timeout();
  return connection;
}

absl::StatusOr<std::unique_ptr<client::Client>> Connect() {
  auto connection = Connection();
  if (!connection.ok()) return connection.status();
  return client::Client::Connect(*std::move(connection));
}

absl::Status Prepare(grpc::ClientContext* context) {
  const absl::StatusOr<std::string> token = Token();
  if (token.ok()) client::AddToken(*token, context);
  return token.status();
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel() {
  const auto tls = Tls();
  if (!tls.ok()) return tls.status();
  client::KeepGrpcRunning();
  return grpc::CreateChannel(ServerAddress(), client::MakeCredentials(*tls));
}

bool WantsJson() { return absl::GetFlag(FLAGS_json); }

std::string ToJson(const google::protobuf::Message& message, bool one_line) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = !one_line;
#if GOOGLE_PROTOBUF_VERSION < 5026000
  options.always_print_primitive_fields = true;
#else
  options.always_print_fields_with_no_presence = true;
#endif
  options.preserve_proto_field_names = true;
  std::string text;
  // A message of the contract always has a JSON form.
  SORTITION_CHECK(google::protobuf::util::MessageToJsonString(message, &text, options).ok());
  return one_line ? text + "\n" : text;
}

}  // namespace sortition::cli
