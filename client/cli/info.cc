// sortitionctl info and devices: a server's versions, limits, parameters and devices.
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/command.h"
#include "client/cli/table.h"
#include "sortition/v1/information.grpc.pb.h"

namespace sortition::cli {
namespace {

// A missing device has no costs.
std::string FigureOf(const v1::DeviceInformation& device, const std::string& figure) {
  return device.state() == v1::DeviceInformation::STATE_MISSING ? "-" : figure;
}

// Returns the operator's rules for the caller's sequences.
std::vector<std::vector<std::string>> PolicyRows(const v1::ServerInformation& information) {
  const v1::Policy& policy = information.policy();
  std::vector<std::vector<std::string>> rows = {{"POLICY", "RULE", "BEYOND IT"}};
  rows.push_back({"tenant", policy.tenant(), ""});
  if (policy.has_watermark()) {
    const char* const skips = policy.watermark().skip_repeated_contexts() ? "; repeated contexts are not marked" : "";
    rows.push_back(
        {"watermark", absl::StrCat("keys ", absl::StrJoin(information.watermark_key_ids(), " "), skips), "refused"});
  }
  if (policy.receipts()) rows.push_back({"receipts", "required", ""});
  if (policy.has_max_priority()) rows.push_back({"priority", absl::StrCat("<= ", policy.max_priority()), "refused"});
  if (policy.has_defaults()) rows.push_back({"defaults", ToJson(policy.defaults(), /*one_line=*/true), ""});
  for (const v1::ParameterLimit& limit : policy.limits()) {
    std::vector<std::string> bounds;
    if (limit.has_min()) bounds.push_back(absl::StrCat(">= ", limit.min()));
    if (limit.has_max()) bounds.push_back(absl::StrCat("<= ", limit.max()));
    if (limit.banned()) bounds.push_back("absent");
    rows.push_back({limit.field(), absl::StrJoin(bounds, ", "),
                    limit.violation() == v1::ParameterLimit::VIOLATION_APPLY ? "applied" : "refused"});
  }
  return rows;
}

void PrintTables(const v1::ServerInformation& information) {
  std::printf("server     %s at %s (gRPC %s)\n", information.version().c_str(), ServerAddress().c_str(),
              information.grpc_version().c_str());
  std::printf("contracts  %s\n", absl::StrJoin(information.contracts(), " ").c_str());
  std::printf("laws       %s\n", absl::StrJoin(information.law_versions(), " ").c_str());

  std::vector<std::vector<std::string>> devices = {{"DEVICE", "KIND", "STATE", "BATCH ROWS", "HARDWARE"}};
  for (const auto& device : information.devices()) {
    devices.push_back({device.name(), ToWord(device.kind()), ToWord(device.state()),
                       FigureOf(device, absl::StrCat(device.max_batch_rows())), device.hardware()});
  }
  // There is no table if all devices have all features.
  std::vector<std::vector<std::string>> lacks = {{"DEVICE", "LACKS"}};
  for (const auto& device : information.devices()) {
    if (device.lacks_size() > 0) lacks.push_back({device.name(), absl::StrJoin(device.lacks(), " ")});
  }
  std::vector<std::vector<std::string>> limits = {{"LIMIT", "VALUE", "UNIT", "MEANING"}};
  for (const auto& limit : information.limits()) {
    limits.push_back({limit.name(), absl::StrCat(limit.value()), limit.unit(), limit.description()});
  }
  std::vector<std::vector<std::string>> parameters = {
      {"PARAMETER", "RANGE", "DEFAULT", "SCOPE", "IN PHASES", "MEANING"}};
  for (const auto& parameter : information.parameters()) {
    parameters.push_back({parameter.name(), parameter.range(), parameter.default_value(), ToWord(parameter.scope()),
                          parameter.in_phases() ? "yes" : "no", parameter.description()});
  }
  std::vector<std::vector<std::string>> policy;
  if (information.has_policy()) policy = PolicyRows(information);
  std::printf("\n%s", FormatTable(devices).c_str());
  if (lacks.size() > 1) std::printf("\n%s", FormatTable(lacks).c_str());
  for (const auto& table : {limits, parameters}) std::printf("\n%s", FormatTable(table).c_str());
  if (!policy.empty()) std::printf("\n%s", FormatTable(policy).c_str());
}

void PrintDevices(const v1::ServerInformation& information) {
  std::vector<std::vector<std::string>> rows = {
      {"DEVICE", "KIND", "STATE", "WHY", "MAX VOCABULARY", "LAUNCH US", "ROW US", "BYTE NS", "HARDWARE"}};
  for (const auto& device : information.devices()) {
    rows.push_back({device.name(), ToWord(device.kind()), ToWord(device.state()), device.reason(),
                    FigureOf(device, absl::StrCat(device.max_vocabulary())),
                    FigureOf(device, absl::StrFormat("%.1f", device.launch_nanoseconds() / 1000)),
                    FigureOf(device, absl::StrFormat("%.1f", device.row_nanoseconds() / 1000)),
                    FigureOf(device, absl::StrFormat("%.3f", device.byte_nanoseconds())), device.hardware()});
  }
  std::printf("%s", FormatTable(rows).c_str());
}

Outcome Show(void (*print)(const v1::ServerInformation&)) {
  const auto channel = MakeChannel();
  if (!channel.ok()) return Fail(channel.status());
  const auto stub = v1::InformationService::NewStub(*channel);
  grpc::ClientContext context;
  if (absl::Status status = Prepare(&context); !status.ok()) return Fail(status);
  context.set_deadline(absl::ToChronoTime(absl::Now() + Timeout()));
  v1::ServerInformation information;
  const grpc::Status status = stub->GetServerInformation(&context, {}, &information);
  if (!status.ok()) return Fail(status);
  if (WantsJson()) {
    std::printf("%s", ToJson(information, /*one_line=*/false).c_str());
  } else {
    print(information);
  }
  return Outcome::kDone;
}

}  // namespace

Outcome Info() { return Show(PrintTables); }
Outcome Devices() { return Show(PrintDevices); }

}  // namespace sortition::cli
