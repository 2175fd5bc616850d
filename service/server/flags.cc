// The flags. Every setting has exactly one, and a variable of the same name.
#include "service/server/flags.h"

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
          "Unix socket (unix:PATH) where workers on this machine get memory that they share with the service; empty = "
          "none");
ABSL_FLAG(std::string, health_listen, "",
          "Address that serves health alone, in plain text, for probes that cannot do TLS; empty = none");
ABSL_FLAG(std::string, admin_listen, "",
          "Address that serves administration: unix:PATH, or TCP with TLS and --clients; empty = none");
ABSL_FLAG(std::string, port_file, "", "File to write the port of the first TCP listener to, once the server serves");
ABSL_FLAG(Texts, devices, Config().devices,
          "Devices to use, separated by commas: cpu, cuda (all of them), cuda:INDEX or cuda:UUID, vulkan (all), "
          "vulkan:INDEX or vulkan:PART-OF-ITS-NAME");
ABSL_FLAG(RoutePolicy, route, Config().route,
          "How a batch's device is chosen: auto (where it is expected to be done first), round-robin, random or "
          "pinned:DEVICE");
ABSL_FLAG(double, recheck_share, Config().recheck_share,
          "Share of live rows that are compared with the law's reference before they are answered, 0 to 1");
ABSL_FLAG(uint32_t, cpu_threads, Config().cpu_threads, "Threads of the cpu device; 0 = one for each processor");
ABSL_FLAG(std::string, cpu_target, Config().cpu_target,
          "Instruction set of the cpu device: auto, avx512, avx2, sse4, neon or scalar; all give the same answers");
ABSL_FLAG(
    std::string, vulkan_cache, Config().vulkan_cache,
    "Folder in which shaders that Vulkan drivers have compiled are kept, so that the next start is quick; empty = "
    "what the driver keeps by itself");
ABSL_FLAG(bool, insecure, false, "Serve beyond this machine without TLS");
ABSL_FLAG(std::string, tls_certificate, "", "PEM file of the server's certificate chain; followed when replaced");
ABSL_FLAG(std::string, tls_key, "", "PEM file of the server's private key");
ABSL_FLAG(std::string, tls_client_ca, "",
          "PEM file of the authorities that sign client certificates; if set, clients must show one, and the identity "
          "in it is "
          "the namespace of their sequences");
ABSL_FLAG(absl::Duration, tls_refresh, Config().tls_refresh,
          "How often the files of certificates and keys are looked at, in whole seconds");
ABSL_FLAG(std::string, clients, "",
          "File that lists who may call, with which role and proved by what, one line each: IDENTITY ROLE[,ROLE] "
          "sha256:HEX (of a bearer token), certificate:NAME or uid:NUMBER; followed when replaced; empty = all who can "
          "connect");
ABSL_FLAG(std::string, checkpoint_key, "",
          "File of 32 bytes or more, a secret that replicas share: with it they go on with each other's mirostat and "
          "adaptive-p sequences; empty = a key of this process alone");
ABSL_FLAG(uint32_t, max_connections, Config().max_connections,
          "Connections open at once, to --listen and --memory_listen together; 0 = as many as descriptors allow");
ABSL_FLAG(uint32_t, stream_threads, Config().stream_threads, "Threads that read and write streams");
ABSL_FLAG(uint32_t, max_watchers, Config().max_watchers, "Calls of WatchCounters at once");
ABSL_FLAG(uint64_t, max_received_bytes, Config().max_received_bytes,
          "Bytes of messages held, all streams together; while there are more, no stream is read");
ABSL_FLAG(absl::Duration, drain_grace, Config().drain_grace, "How long steps in flight may take to finish at shutdown");
ABSL_FLAG(LogLevel, log_level, Config().log_level, "Least severe log lines to write: debug, info, warning or error");

ABSL_FLAG(uint64_t, max_message_bytes, Limits().max_message_bytes,
          "Bytes of one message of a stream, payloads included");
ABSL_FLAG(uint32_t, max_streams, Limits().max_streams, "Streams open at once");
ABSL_FLAG(uint64_t, stream_unanswered_bytes, Limits().stream_unanswered_bytes,
          "A stream with more unanswered bytes is not read until answers have left");
ABSL_FLAG(uint32_t, stream_unanswered_rows, Limits().stream_unanswered_rows,
          "A stream with more unanswered rows is not read until answers have left");
ABSL_FLAG(uint32_t, stream_sequences, Limits().stream_sequences, "Sequences open on one stream");
ABSL_FLAG(absl::Duration, stalled_write, Limits().stalled_write,
          "A worker that reads nothing for so long loses its stream");
ABSL_FLAG(absl::Duration, max_stream_age, Limits().max_stream_age,
          "A worker is asked to reopen its stream after this; 0 = never");
ABSL_FLAG(uint32_t, max_step_rows, Limits().max_step_rows, "Rows of one step");
ABSL_FLAG(uint32_t, max_queued_rows, Limits().max_queued_rows, "Rows that wait for a device, all streams together");
ABSL_FLAG(
    absl::Duration, max_queue_time, Limits().max_queue_time,
    "A step whose rows would wait longer for a device is refused, with advice when to retry; 0 = none is for that");
ABSL_FLAG(uint32_t, max_vocabulary, Limits().max_vocabulary, "Tokens of one row");
ABSL_FLAG(uint32_t, stream_masks, Limits().stream_masks, "Masks uploaded on one stream");
ABSL_FLAG(uint64_t, stream_mask_bytes, Limits().stream_mask_bytes, "Bytes of the masks uploaded on one stream");
ABSL_FLAG(uint64_t, max_mask_bytes, Limits().max_mask_bytes, "Bytes of uploaded masks, all streams together");
ABSL_FLAG(absl::Duration, shard_wait, Limits().shard_wait,
          "A step that comes in slices of the vocabulary waits so long for the last of them");
ABSL_FLAG(absl::Duration, ready_wait, Limits().ready_wait,
          "A step that was sent before its logits were done waits so long for them");
ABSL_FLAG(uint32_t, max_unready_steps, Limits().max_unready_steps,
          "Steps that wait for their logits, all streams together");
ABSL_FLAG(uint64_t, max_shard_answer_bytes, Limits().max_shard_answer_bytes,
          "Bytes of answers of rows in slices, kept for ranks that lost theirs; beyond it the client with most of them "
          "loses its own");
ABSL_FLAG(uint32_t, max_memory_connections, Limits().max_memory_connections, "Connections to the memory socket");
ABSL_FLAG(uint32_t, max_rings, Limits().max_rings, "Streams over rings in shared memory; each takes a thread");
ABSL_FLAG(
    absl::Duration, ring_spin, Config().ring_spin,
    "How long the thread of a ring looks for the next request before it sleeps, if the last came so soon; 0 = never");
ABSL_FLAG(uint64_t, max_memory_bytes, Limits().max_memory_bytes,
          "Bytes of shared memory, all connections to the memory socket together");
ABSL_FLAG(uint64_t, connection_memory_bytes, Limits().connection_memory_bytes,
          "Bytes of shared memory of one connection to the memory socket");
ABSL_FLAG(uint64_t, connection_device_bytes, Limits().connection_device_bytes,
          "Bytes of devices' memory that one connection to the memory socket may share; 0 = none is taken");
ABSL_FLAG(uint32_t, connection_regions, Limits().connection_regions,
          "Regions of shared memory of one connection to the memory socket");
ABSL_FLAG(uint32_t, max_clients, Limits().max_clients, "Identities with streams or shared memory at once");
ABSL_FLAG(uint32_t, client_streams, Limits().client_streams, "Streams of one client; 0 = as many as there may be");
ABSL_FLAG(uint64_t, client_rows_per_second, Limits().client_rows_per_second,
          "Rows that one client may send in a second, on average; 0 = any");
ABSL_FLAG(uint64_t, client_bytes_per_second, Limits().client_bytes_per_second,
          "Bytes that one client may send in a second, on average; 0 = any");
ABSL_FLAG(uint32_t, client_sequences, Limits().client_sequences,
          "Sequences with state of one client; its idle ones beyond are forgotten; 0 = as many as there may be");
ABSL_FLAG(uint32_t, client_regions, Limits().client_regions, "Regions of memory shared with one client; 0 = any");
ABSL_FLAG(uint64_t, client_memory_bytes, Limits().client_memory_bytes,
          "Bytes of memory shared with one client; 0 = any");
ABSL_FLAG(uint32_t, max_sequences, Limits().max_sequences, "Sequences with state; idle ones beyond are forgotten");
ABSL_FLAG(
    uint64_t, max_state_bytes, Limits().max_state_bytes,
    "Bytes of sequences: states, options, histories and snapshots that are still coming; idle sequences beyond are "
    "forgotten");
ABSL_FLAG(absl::Duration, sequence_ttl, Limits().sequence_ttl, "An idle sequence is forgotten after this");
ABSL_FLAG(uint64_t, replay_tokens_per_second, Limits().replay_tokens_per_second,
          "Tokens of long histories taken in a second, all streams together; a quarter while rows wait for a device");
ABSL_FLAG(absl::Duration, replay_guard, Limits().replay_guard,
          "A history that was sent is not forgotten before its first step for so long");
ABSL_FLAG(uint32_t, max_history, Limits().max_history, "Tokens of prompt and output of one sequence");
ABSL_FLAG(uint32_t, kept_history, Limits().kept_history,
          "Tokens back to which a sequence can be truncated without a replay");
ABSL_FLAG(uint32_t, max_listed_tokens, Limits().max_listed_tokens,
          "Bias, allowed and banned entries of one sequence, each");

namespace sortition::server {
namespace {

constexpr char kUsage[] =
    "sortitiond: token sampling for language-model inference, served over gRPC.\n"
    "\n"
    "Every flag can also be set by the variable SORTITION_<FLAG IN CAPITALS>, and in a file of one flag a line that\n"
    "--flagfile=FILE names. The command line goes before the environment, which goes before the defaults.";
constexpr char kPrefix[] = "SORTITION_";

// Abseil's own flags, and those of libraries, are not settings of the service.
bool IsOurs(absl::string_view file) { return absl::EndsWith(file, "service/server/flags.cc"); }

absl::Status ReadVariable(absl::string_view name, const std::string& value) {
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(absl::AsciiStrToLower(name.substr(sizeof(kPrefix) - 1)));
  if (flag == nullptr || !IsOurs(flag->Filename()) || name != absl::AsciiStrToUpper(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": no setting has this name; sortitiond --help lists them all"));
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
    if (equals == absl::string_view::npos || !absl::StartsWith(entry, kPrefix)) continue;
    absl::Status status = ReadVariable(entry.substr(0, equals), std::string(entry.substr(equals + 1)));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

Config Fill() {
  Config config;
  config.listen = absl::GetFlag(FLAGS_listen);
  config.metrics_listen = absl::GetFlag(FLAGS_metrics_listen);
  config.memory_listen = absl::GetFlag(FLAGS_memory_listen);
  config.health_listen = absl::GetFlag(FLAGS_health_listen);
  config.admin_listen = absl::GetFlag(FLAGS_admin_listen);
  config.port_file = absl::GetFlag(FLAGS_port_file);
  config.devices = absl::GetFlag(FLAGS_devices);
  config.route = absl::GetFlag(FLAGS_route);
  config.recheck_share = absl::GetFlag(FLAGS_recheck_share);
  config.cpu_threads = absl::GetFlag(FLAGS_cpu_threads);
  config.cpu_target = absl::GetFlag(FLAGS_cpu_target);
  config.vulkan_cache = absl::GetFlag(FLAGS_vulkan_cache);
  config.insecure = absl::GetFlag(FLAGS_insecure);
  config.tls_certificate = absl::GetFlag(FLAGS_tls_certificate);
  config.tls_key = absl::GetFlag(FLAGS_tls_key);
  config.checkpoint_key = absl::GetFlag(FLAGS_checkpoint_key);
  config.tls_client_ca = absl::GetFlag(FLAGS_tls_client_ca);
  config.tls_refresh = absl::GetFlag(FLAGS_tls_refresh);
  config.clients = absl::GetFlag(FLAGS_clients);
  config.max_connections = absl::GetFlag(FLAGS_max_connections);
  config.stream_threads = absl::GetFlag(FLAGS_stream_threads);
  config.max_watchers = absl::GetFlag(FLAGS_max_watchers);
  config.max_received_bytes = absl::GetFlag(FLAGS_max_received_bytes);
  config.drain_grace = absl::GetFlag(FLAGS_drain_grace);
  config.log_level = absl::GetFlag(FLAGS_log_level);

  Limits& limits = config.limits;
  limits.max_message_bytes = absl::GetFlag(FLAGS_max_message_bytes);
  limits.max_streams = absl::GetFlag(FLAGS_max_streams);
  limits.stream_unanswered_bytes = absl::GetFlag(FLAGS_stream_unanswered_bytes);
  limits.stream_unanswered_rows = absl::GetFlag(FLAGS_stream_unanswered_rows);
  limits.stream_sequences = absl::GetFlag(FLAGS_stream_sequences);
  limits.stalled_write = absl::GetFlag(FLAGS_stalled_write);
  limits.max_stream_age = absl::GetFlag(FLAGS_max_stream_age);
  limits.max_step_rows = absl::GetFlag(FLAGS_max_step_rows);
  limits.max_queued_rows = absl::GetFlag(FLAGS_max_queued_rows);
  limits.max_queue_time = absl::GetFlag(FLAGS_max_queue_time);
  limits.max_vocabulary = absl::GetFlag(FLAGS_max_vocabulary);
  limits.stream_masks = absl::GetFlag(FLAGS_stream_masks);
  limits.stream_mask_bytes = absl::GetFlag(FLAGS_stream_mask_bytes);
  limits.max_mask_bytes = absl::GetFlag(FLAGS_max_mask_bytes);
  limits.shard_wait = absl::GetFlag(FLAGS_shard_wait);
  limits.ready_wait = absl::GetFlag(FLAGS_ready_wait);
  limits.max_unready_steps = absl::GetFlag(FLAGS_max_unready_steps);
  limits.max_shard_answer_bytes = absl::GetFlag(FLAGS_max_shard_answer_bytes);
  limits.max_memory_connections = absl::GetFlag(FLAGS_max_memory_connections);
  limits.max_rings = absl::GetFlag(FLAGS_max_rings);
  config.ring_spin = absl::GetFlag(FLAGS_ring_spin);
  limits.max_memory_bytes = absl::GetFlag(FLAGS_max_memory_bytes);
  limits.connection_memory_bytes = absl::GetFlag(FLAGS_connection_memory_bytes);
  limits.connection_device_bytes = absl::GetFlag(FLAGS_connection_device_bytes);
  limits.connection_regions = absl::GetFlag(FLAGS_connection_regions);
  limits.max_clients = absl::GetFlag(FLAGS_max_clients);
  limits.client_streams = absl::GetFlag(FLAGS_client_streams);
  limits.client_rows_per_second = absl::GetFlag(FLAGS_client_rows_per_second);
  limits.client_bytes_per_second = absl::GetFlag(FLAGS_client_bytes_per_second);
  limits.client_sequences = absl::GetFlag(FLAGS_client_sequences);
  limits.client_regions = absl::GetFlag(FLAGS_client_regions);
  limits.client_memory_bytes = absl::GetFlag(FLAGS_client_memory_bytes);
  limits.max_sequences = absl::GetFlag(FLAGS_max_sequences);
  limits.max_state_bytes = absl::GetFlag(FLAGS_max_state_bytes);
  limits.sequence_ttl = absl::GetFlag(FLAGS_sequence_ttl);
  limits.replay_tokens_per_second = absl::GetFlag(FLAGS_replay_tokens_per_second);
  limits.replay_guard = absl::GetFlag(FLAGS_replay_guard);
  limits.max_history = absl::GetFlag(FLAGS_max_history);
  limits.kept_history = absl::GetFlag(FLAGS_kept_history);
  limits.max_listed_tokens = absl::GetFlag(FLAGS_max_listed_tokens);
  return config;
}

void SetUsage(const std::string& version) {
  absl::FlagsUsageConfig usage;
  usage.contains_help_flags = IsOurs;
  usage.contains_helpshort_flags = IsOurs;
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
