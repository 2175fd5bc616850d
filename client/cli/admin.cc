// sortitionctl admin: operators' actions on a running server.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/command.h"
#include "client/cli/table.h"
#include "sortition/v1/admin.grpc.pb.h"

namespace sortition::cli {
namespace {

using Stub = v1::AdminService::Stub;
using Arguments = std::vector<std::string>;

// Calls a method and shows its answer as JSON or with `print`.
template <typename Request, typename Response, typename Print>
Outcome Call(Stub* stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
             const Request& request, Print print) {
  grpc::ClientContext context;
  if (absl::Status status = Prepare(&context); !status.ok()) return Fail(status);
  context.set_deadline(absl::ToChronoTime(absl::Now() + Timeout()));
  Response response;
  const grpc::Status status = (stub->*method)(&context, request, &response);
  if (!status.ok()) return Fail(status);
  if (!WantsJson()) return print(response);
  std::printf("%s", ToJson(response, /*one_line=*/false).c_str());
  return Outcome::kDone;
}

Outcome Drain(Stub* stub, const Arguments&) {
  return Call(stub, &Stub::Drain, v1::DrainRequest(), [](const auto&) {
    std::printf("draining\n");
    return Outcome::kDone;
  });
}

Outcome Clients(Stub* stub, const Arguments&) {
  return Call(stub, &Stub::ListClients, v1::ListClientsRequest(), [](const v1::ListClientsResponse& response) {
    std::vector<std::vector<std::string>> rows = {
        {"CLIENT", "STREAMS", "SEQUENCES", "STATE BYTES", "REGIONS", "MEMORY BYTES"}};
    for (const v1::Client& client : response.clients()) {
      rows.push_back({client.identity(), absl::StrCat(client.streams()), absl::StrCat(client.sequences()),
                      absl::StrCat(client.state_bytes()), absl::StrCat(client.regions()),
                      absl::StrCat(client.memory_bytes())});
    }
    std::printf("%s", FormatTable(rows).c_str());
    return Outcome::kDone;
  });
}

Outcome Forget(Stub* stub, const Arguments& arguments) {
  v1::ForgetSequencesRequest request;
  request.set_identity(arguments[0]);
  return Call(stub, &Stub::ForgetSequences, request, [](const v1::ForgetSequencesResponse& response) {
    std::printf("forgotten  %u\nbusy       %u\n", response.forgotten(), response.busy());
    return Outcome::kDone;
  });
}

Outcome SelfTest(Stub* stub, const Arguments& arguments) {
  v1::SelfTestDeviceRequest request;
  request.set_device(arguments[0]);
  return Call(stub, &Stub::SelfTestDevice, request, [](const v1::SelfTestDeviceResponse& response) {
    std::printf("%s%s%s\n", response.passed() ? "passed" : "failed", response.reason().empty() ? "" : ": ",
                response.reason().c_str());
    return response.passed() ? Outcome::kDone : Outcome::kRefused;
  });
}

Outcome Quarantine(Stub* stub, const Arguments& arguments) {
  v1::QuarantineDeviceRequest request;
  request.set_device(arguments[0]);
  if (arguments.size() > 1) request.set_reason(arguments[1]);
  return Call(stub, &Stub::QuarantineDevice, request, [](const auto&) {
    std::printf("quarantined until a self-test passes\n");
    return Outcome::kDone;
  });
}

Outcome LogLevel(Stub* stub, const Arguments& arguments) {
  v1::SetLogLevelRequest request;
  v1::LogLevel level;
  if (!v1::LogLevel_Parse(absl::StrCat("LOG_LEVEL_", absl::AsciiStrToUpper(arguments[0])), &level) ||
      level == v1::LOG_LEVEL_UNSPECIFIED) {
    return Fail(absl::InvalidArgumentError("admin log-level: debug, info, warning or error"));
  }
  request.set_level(level);
  return Call(stub, &Stub::SetLogLevel, request, [](const v1::SetLogLevelResponse& response) {
    std::printf("was %s\n", ToWord(response.previous()).c_str());
    return Outcome::kDone;
  });
}

struct Action {
  const char* name;
  size_t least_arguments, most_arguments;
  Outcome (*run)(Stub*, const Arguments&);
};
constexpr Action kActions[] = {{"drain", 0, 0, Drain},           {"clients", 0, 0, Clients},
                               {"forget", 1, 1, Forget},         {"self-test", 1, 1, SelfTest},
                               {"quarantine", 1, 2, Quarantine}, {"log-level", 1, 1, LogLevel}};

}  // namespace

Outcome Admin(const std::vector<std::string>& arguments) {
  for (const Action& action : kActions) {
    const size_t count = arguments.empty() ? 0 : arguments.size() - 1;
    if (arguments.empty() || arguments[0] != action.name || count < action.least_arguments ||
        count > action.most_arguments) {
      continue;
    }
    const auto channel = MakeChannel();
    if (!channel.ok()) return Fail(channel.status());
    return action.run(v1::AdminService::NewStub(*channel).get(), {arguments.begin() + 1, arguments.end()});
  }
  return Fail(absl::InvalidArgumentError(
      "admin: drain, clients, forget CLIENT, self-test DEVICE, quarantine DEVICE [WHY] or log-level LEVEL"));
}

}  // namespace sortition::cli
