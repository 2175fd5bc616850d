// The flags for operators, and the reading of all flags. Each setting has one flag and one variable of the same name.
#include "service/process/flags.h"

#include <mutex>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

using sortition::server::Config;
using sortition::server::LogLevel;
using sortition::service::Limits;
using sortition::service::RoutePolicy;
using Texts = std::vector<std::string>;

ABSL_FLAG(Texts, listen, Config().listen,
          "Addresses to serve on, separated by commas: IPV4:PORT, [IPV6]:PORT or unix:PATH; port 0 = any free one");
ABSL_FLAG(std::string, metrics_listen, Config().metrics_listen,
          "Address that Prometheus scrapes at /metrics; empty = none");
ABSL_FLAG(std::string, memory_listen, "",
          "Unix socket (unix:PATH) where workers on this machine get memory to share with the service; empty = none");
ABSL_FLAG(std::string, health_listen, "",
          "Address that serves health alone, in plain text, for probes that cannot do TLS; empty = none");
ABSL_FLAG(std::string, admin_listen, "",
          "Address that serves administration: unix:PATH, or TCP with TLS and --clients; empty = none");
ABSL_FLAG(Texts, devices, Config().devices,
          "Devices to use, separated by commas: cpu, cuda (all of them), cuda:INDEX or cuda:UUID, vulkan (all), "
          "vulkan:INDEX or vulkan:PART-OF-ITS-NAME");
ABSL_FLAG(uint32_t, cpu_threads, Config().cpu_threads, "Threads of the cpu device; 0 = one for each processor");
ABSL_FLAG(bool, insecure, false, "Serve beyond this machine without TLS");
ABSL_FLAG(bool, unguarded_http2, false,
          "Serve without the guard that bounds what callers cost before they are authorised, also beyond this machine");
ABSL_FLAG(std::string, tls_certificate, "", "PEM file of the server's certificate chain; followed when replaced");
ABSL_FLAG(std::string, tls_key, "", "PEM file of the server's private key");
ABSL_FLAG(std::string, tls_client_ca, "",
          "PEM file of the authorities that sign client certificates; if set, clients must show one, and the identity "
          "in it is the tenant that owns their sequences");
ABSL_FLAG(std::string, clients, "",
          "File that lists who may call, one line each: IDENTITY ROLE[,ROLE] PROOF, where PROOF is "
          "sha256:HEX (of a bearer token), certificate:NAME or uid:NUMBER; followed when replaced; empty = all who can "
          "connect");
ABSL_FLAG(std::string, checkpoint_key, "",
          "File of 32 bytes or more, a secret that replicas share: with it they continue each other's mirostat and "
          "adaptive-p sequences; empty = a random key, for this process alone");
ABSL_FLAG(
    std::string, otlp_endpoint, "",
    "HOST:PORT of a collector that gets spans of traced steps by OTLP over gRPC; https:// before it for TLS; empty "
    "= no spans");
ABSL_FLAG(
    std::string, policies, "",
    "File of rules for tenants' sequences that no client can turn off (watermark, receipts, limits of parameters); "
    "followed when replaced; empty = none");
ABSL_FLAG(std::string, receipt_key, "",
          "PEM file of an Ed25519 private key that signs receipts; followed when replaced; empty = no receipts");
ABSL_FLAG(std::string, receipt_folder, "", "Folder in which receipts are written; empty = only workers get them");
ABSL_FLAG(bool, receipt_all, false, "Write a receipt of every token, whether or not the worker asks for it");
ABSL_FLAG(bool, receipt_required, false,
          "While receipts cannot be written, refuse the rows that need one; otherwise they are answered, and receipts "
          "are lost");
ABSL_FLAG(uint32_t, max_connections, Config().limits.max_connections,
          "Connections open at once, to --listen and --memory_listen together; 0 = as many as descriptors allow");
ABSL_FLAG(uint32_t, max_streams, Limits().max_streams, "Streams open at once");
ABSL_FLAG(absl::Duration, max_stream_age, Limits().max_stream_age,
          "A worker is asked to reopen its stream after this; 0 = never");
ABSL_FLAG(uint64_t, max_received_bytes, Config().limits.max_received_bytes,
          "Bytes of messages held, all streams together; while there are more, no stream is read");
ABSL_FLAG(absl::Duration, drain_grace, Config().drain_grace, "How long steps in flight may take to finish at shutdown");
ABSL_FLAG(absl::Duration, slow_step, Config().slow_step,
          "The status page lists steps that take as long, and where their time went; 0 = none");
ABSL_FLAG(bool, load_reports, false,
          "Tell balancers this server's load by ORCA: in the trailers of calls, and to those that ask for reports");
ABSL_FLAG(LogLevel, log_level, Config().log_level, "Least severe log lines to write: debug, info, warning or error");
ABSL_FLAG(absl::Duration, max_queue_time, Limits().max_queue_time,
          "A step whose rows would wait longer for a device is refused, with advice when to retry; 0 = no bound");
ABSL_FLAG(uint64_t, max_memory_bytes, Limits().max_memory_bytes,
          "Bytes of shared memory, all connections to the memory socket together");
ABSL_FLAG(uint64_t, connection_device_bytes, Limits().connection_device_bytes,
          "Bytes of devices' memory that one connection to the memory socket may share; 0 = none is taken");
ABSL_FLAG(uint32_t, client_streams, Limits().client_streams, "Streams open at once by one client; 0 = no bound");
ABSL_FLAG(uint64_t, client_rows_per_second, Limits().client_rows_per_second,
          "Rows that one client may send in a second, on average; 0 = no bound");
ABSL_FLAG(uint32_t, max_sequences, Limits().max_sequences, "Sequences with state; beyond it idle ones are forgotten");
ABSL_FLAG(uint64_t, max_state_bytes, Limits().max_state_bytes,
          "Bytes of sequences: states, options and histories in transfer; beyond it idle sequences are forgotten");
ABSL_FLAG(double, recheck_share, Config().recheck_share,
          "Share of live rows that are compared with the law's reference before they are answered, 0 to 1");

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

bool IsForOperators(absl::string_view file) { return absl::EndsWith(file, "service/process/flags.cc"); }

// Returns false for the flags of Abseil and other libraries, which are not settings of the service.
bool IsOurs(absl::string_view file) {
  return IsForOperators(file) || absl::EndsWith(file, "service/process/tuning_flags.cc");
}

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

Config Fill() {
  Config config;
  ReadTuningFlags(&config);
  config.listen = absl::GetFlag(FLAGS_listen);
  config.metrics_listen = absl::GetFlag(FLAGS_metrics_listen);
  config.memory_listen = absl::GetFlag(FLAGS_memory_listen);
  config.health_listen = absl::GetFlag(FLAGS_health_listen);
  config.admin_listen = absl::GetFlag(FLAGS_admin_listen);
  config.devices = absl::GetFlag(FLAGS_devices);
  config.cpu_threads = absl::GetFlag(FLAGS_cpu_threads);
  config.insecure = absl::GetFlag(FLAGS_insecure);
  config.unguarded_http2 = absl::GetFlag(FLAGS_unguarded_http2);
  config.tls_certificate = absl::GetFlag(FLAGS_tls_certificate);
  config.tls_key = absl::GetFlag(FLAGS_tls_key);
  config.tls_client_ca = absl::GetFlag(FLAGS_tls_client_ca);
  config.clients = absl::GetFlag(FLAGS_clients);
  config.traces.endpoint = absl::GetFlag(FLAGS_otlp_endpoint);
  config.policies = absl::GetFlag(FLAGS_policies);
  config.checkpoint_key = absl::GetFlag(FLAGS_checkpoint_key);
  config.receipts.key_file = absl::GetFlag(FLAGS_receipt_key);
  config.receipts.folder = absl::GetFlag(FLAGS_receipt_folder);
  config.receipts.all = absl::GetFlag(FLAGS_receipt_all);
  config.receipts.required = absl::GetFlag(FLAGS_receipt_required);
  config.limits.max_connections = absl::GetFlag(FLAGS_max_connections);
  config.limits.max_received_bytes = absl::GetFlag(FLAGS_max_received_bytes);
  config.drain_grace = absl::GetFlag(FLAGS_drain_grace);
  config.slow_step = absl::GetFlag(FLAGS_slow_step);
  config.load_reports = absl::GetFlag(FLAGS_load_reports);
  config.log_level = absl::GetFlag(FLAGS_log_level);
  config.recheck_share = absl::GetFlag(FLAGS_recheck_share);

  Limits& limits = config.limits;
  limits.max_streams = absl::GetFlag(FLAGS_max_streams);
  limits.max_stream_age = absl::GetFlag(FLAGS_max_stream_age);
  limits.max_queue_time = absl::GetFlag(FLAGS_max_queue_time);
  limits.max_memory_bytes = absl::GetFlag(FLAGS_max_memory_bytes);
  limits.connection_device_bytes = absl::GetFlag(FLAGS_connection_device_bytes);
  limits.client_streams = absl::GetFlag(FLAGS_client_streams);
  limits.client_rows_per_second = absl::GetFlag(FLAGS_client_rows_per_second);
  limits.max_sequences = absl::GetFlag(FLAGS_max_sequences);
  limits.max_state_bytes = absl::GetFlag(FLAGS_max_state_bytes);
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
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  if (arguments.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(arguments[1], ": not a flag; flags begin with --"));
  }
  return Fill();
}

}  // namespace sortition::server
