// The flags of limits.inc, and their reading. Each setting has one flag and one variable of the same name.
#include "service/process/flags.h"

#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "service/followed_files.h"

using sortition::server::LogLevel;
using sortition::server::RoutePolicy;
using sortition::server::Texts;

#define SETTING(type, name, initial, text) ABSL_FLAG(type, name, initial, text);
#define NUMBER(type, name, initial, least, most, text) ABSL_FLAG(type, name, initial, text);
#define LIMIT(type, name, initial, least, most, unit, text) ABSL_FLAG(type, name, initial, unit ": " text);
#define TIME_LIMIT(name, initial, least, most, text) ABSL_FLAG(absl::Duration, name, initial, text);
#include "service/limits.inc"

namespace sortition::server {
namespace {

constexpr char kUsage[] =
    "token sampling for language-model inference, served over gRPC.\n"
    "\n"
    "Every flag can also be set by the variable SORTITIOND_<FLAG IN CAPITALS>, and in a file of one flag a line that\n"
    "--flagfile=FILE names. The command line overrides the environment, which overrides the defaults.\n"
    "--helpmatch=tuning_flags lists the other flags: limits, waits and choices for tuning and tests.\n"
    "\n"
    "Exit codes: 0 drained, 2 a setting is wrong, 1 anything else.";
constexpr char kPrefix[] = "SORTITIOND_";
// Begins the variables of clients, which may share an environment with the server.
constexpr char kClientPrefix[] = "SORTITION_";

bool IsForOperators(absl::string_view file) { return absl::EndsWith(file, "service/flags.inc"); }

// Returns false for the flags of Abseil and other libraries, which are not settings of the service.
bool IsOurs(absl::string_view file) { return IsForOperators(file) || absl::EndsWith(file, "service/tuning_flags.inc"); }

// Returns the flag of a setting whose name in capitals is `setting`, or null.
absl::CommandLineFlag* FindSetting(absl::string_view setting) {
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(absl::AsciiStrToLower(setting));
  if (flag == nullptr || !IsOurs(flag->Filename()) || setting != absl::AsciiStrToUpper(setting)) return nullptr;
  return flag;
}

absl::Status ReadVariable(absl::string_view name, const std::string& value) {
  absl::CommandLineFlag* flag = FindSetting(name.substr(sizeof(kPrefix) - 1));
  if (flag == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": no setting has this name; sortitiond --help and --helpmatch=tuning_flags list them"));
  }
  std::string error;
  if (!flag->ParseFrom(value, &error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": \"", value, "\" is no value of --", flag->Name(), ": ", error));
  }
  return absl::OkStatus();
}

absl::Status ReadEnvironment(const char* const* environment) {
  for (; *environment != nullptr; ++environment) {
    const absl::string_view entry = *environment;
    const size_t equals = entry.find('=');
    if (equals == absl::string_view::npos) continue;
    const absl::string_view name = entry.substr(0, equals);
    if (absl::StartsWith(name, kPrefix)) {
      absl::Status status = ReadVariable(name, std::string(entry.substr(equals + 1)));
      if (!status.ok()) return status;
    } else if (absl::StartsWith(name, kClientPrefix) && FindSetting(name.substr(sizeof(kClientPrefix) - 1))) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": the variables of the server begin with ", kPrefix));
    }
  }
  return absl::OkStatus();
}

// Reads the flag files that arguments name, and those that they name, before Abseil does. Each may be named once, so
// that there is an end.
absl::Status CheckFlagFiles(const std::vector<std::string>& arguments, std::set<std::string>* named) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view argument = arguments[i];
    if (!absl::ConsumePrefix(&argument, "-")) continue;
    absl::ConsumePrefix(&argument, "-");
    if (argument.empty()) break;  // no flag follows "--"
    if (argument == "flagfile" && i + 1 < arguments.size()) {
      argument = arguments[++i];
    } else if (!absl::ConsumePrefix(&argument, "flagfile=")) {
      continue;
    }
    for (const absl::string_view path : absl::StrSplit(argument, ',', absl::SkipEmpty())) {
      const auto wrong = [&](absl::string_view what) {
        return absl::InvalidArgumentError(absl::StrCat("--flagfile: ", path, ": ", what));
      };
      if (!named->emplace(path).second) return wrong("is named twice");
      const auto text = service::ReadRegularFile(std::string(path));
      if (!text.ok()) return wrong(text.status().message());
      std::vector<std::string> lines;
      for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
        lines.emplace_back(absl::StripAsciiWhitespace(line));
      }
      if (absl::Status status = CheckFlagFiles(lines, named); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

Config Fill() {
  Config config;
#define SETTING(type, name, initial, text) config.name = absl::GetFlag(FLAGS_##name);
#define NUMBER(type, name, initial, least, most, text) config.name = absl::GetFlag(FLAGS_##name);
#define LIMIT(type, name, initial, least, most, unit, text) config.limits.name = absl::GetFlag(FLAGS_##name);
#include "service/limits.inc"
  return config;
}

void SetUsage(const std::string& version) {
  absl::FlagsUsageConfig usage;
  usage.contains_help_flags = IsForOperators;
  usage.contains_helpshort_flags = IsForOperators;
  usage.version_string = [version] { return absl::StrCat("sortitiond ", version, "\n"); };
  absl::SetFlagsUsageConfig(usage);
  absl::SetProgramUsageMessage(kUsage);
}

}  // namespace

absl::StatusOr<Config> ConfigFromFlags(int argc, char** argv, const char* const* environment,
                                       const std::string& version) {
  static std::once_flag once;  // Abseil takes the usage text only once in a process
  std::call_once(once, SetUsage, version);
  if (absl::Status status = ReadEnvironment(environment); !status.ok()) return status;
  std::set<std::string> flag_files;
  if (absl::Status status = CheckFlagFiles({argv + 1, argv + argc}, &flag_files); !status.ok()) return status;
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  if (arguments.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(arguments[1], ": not a flag; flags begin with --"));
  }
  return Fill();
}

}  // namespace sortition::server
