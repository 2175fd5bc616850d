// Ranges of settings and the relations between them.
#include "service/process/config.h"

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "service/net/listen_socket.h"

namespace sortition::server {
namespace {

absl::Status Wrong(absl::string_view flag, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", what));
}

struct NumberRange {
  const char* flag;
  uint64_t value, least, most;
};

struct DurationRange {
  const char* flag;
  absl::Duration value, least, most;
};

absl::Status ValidateRanges(const Config& config) {
  const service::Limits& limits = config.limits;
  constexpr uint64_t kTera = uint64_t{1} << 40;
  // gRPC counts message sizes in int, and its bound is set to twice ours.
  constexpr uint64_t kMostMessageBytes = (uint64_t{1} << 30) - 1;
  const NumberRange numbers[] = {
      {"cpu_threads", config.cpu_threads, 0, 1024},
      {"max_connections", limits.max_connections, 0, 1000000},
      {"stream_threads", config.stream_threads, 1, 64},
      {"max_watchers", limits.max_watchers, 1, 10000},
      {"receipt_file_bytes", config.receipts.file_bytes, 1024, kTera},
      {"receipt_queue_bytes", config.receipts.queue_bytes, 1 << 20, kTera},
      {"max_received_bytes", limits.max_received_bytes, 1024, kTera},
      {"max_message_bytes", limits.max_message_bytes, 1024, kMostMessageBytes},
      {"max_streams", limits.max_streams, 1, 1000000},
      {"stream_unanswered_bytes", limits.stream_unanswered_bytes, 1024, kTera},
      {"stream_unanswered_rows", limits.stream_unanswered_rows, 1, 1000000},
      {"stream_sequences", limits.stream_sequences, 1, 10000000},
      {"max_step_positions", limits.max_step_positions, 1, service::kMostStepPositions},
      {"max_queued_rows", limits.max_queued_rows, 1, 10000000},
      {"max_vocabulary", limits.max_vocabulary, 1, service::Limits().max_vocabulary},
      {"max_compact_tokens", limits.max_compact_tokens, 1, service::Limits().max_vocabulary},
      {"max_compact_bytes", limits.max_compact_bytes, 1024, kMostMessageBytes},
      {"stream_masks", limits.stream_masks, 0, 10000000},
      {"stream_mask_bytes", limits.stream_mask_bytes, 0, kTera},
      {"max_mask_bytes", limits.max_mask_bytes, 0, kTera},
      {"max_unready_steps", limits.max_unready_steps, 1, 1000000},
      {"max_shard_answer_bytes", limits.max_shard_answer_bytes, 1 << 20, kTera},
      {"max_memory_connections", limits.max_memory_connections, 1, 10000},
      {"max_rings", limits.max_rings, 0, 1024},
      {"max_memory_bytes", limits.max_memory_bytes, 4096, kTera},
      {"connection_memory_bytes", limits.connection_memory_bytes, 4096, kTera},
      {"connection_device_bytes", limits.connection_device_bytes, 0, kTera},
      {"connection_regions", limits.connection_regions, 1, 10000},
      {"max_clients", limits.max_clients, 1, 1000000},
      {"client_streams", limits.client_streams, 0, 1000000},
      {"client_rows_per_second", limits.client_rows_per_second, 0, kTera},
      {"client_bytes_per_second", limits.client_bytes_per_second, 0, kTera},
      {"client_sequences", limits.client_sequences, 0, 100000000},
      {"client_regions", limits.client_regions, 0, 1000000},
      {"client_memory_bytes", limits.client_memory_bytes, 0, kTera},
      {"max_sequences", limits.max_sequences, 1, 100000000},
      {"max_state_bytes", limits.max_state_bytes, 1 << 20, kTera},
      {"max_history", limits.max_history, 1, 1u << 30},
      {"replay_tokens_per_second", limits.replay_tokens_per_second, 1000, kTera},
      {"kept_history", limits.kept_history, 1, 1u << 30},
      {"max_listed_tokens", limits.max_listed_tokens, 0, service::kMostListedTokens},
  };
  for (const NumberRange& number : numbers) {
    if (number.value < number.least || number.value > number.most) {
      return Wrong(number.flag, absl::StrCat(number.value, " is not in ", number.least, "..", number.most));
    }
  }
  const DurationRange durations[] = {
      {"tls_refresh", config.tls_refresh, absl::Seconds(1), absl::Hours(24)},
      {"drain_grace", config.drain_grace, absl::ZeroDuration(), absl::Hours(24)},
      {"slow_step", config.slow_step, absl::ZeroDuration(), absl::Hours(1)},
      {"stalled_write", limits.stalled_write, absl::Milliseconds(100), absl::Hours(24)},
      {"max_queue_time", limits.max_queue_time, absl::ZeroDuration(), absl::Hours(1)},
      {"max_stream_age", limits.max_stream_age, absl::ZeroDuration(), absl::Hours(24 * 365)},
      {"replay_guard", limits.replay_guard, absl::ZeroDuration(), absl::Minutes(10)},
      {"ring_spin", config.ring_spin, absl::ZeroDuration(), absl::Seconds(1)},
      {"shard_wait", limits.shard_wait, absl::Milliseconds(1), absl::Hours(1)},
      {"ready_wait", limits.ready_wait, absl::Milliseconds(1), absl::Hours(1)},
      {"sequence_ttl", limits.sequence_ttl, absl::Seconds(1), absl::Hours(24 * 365)},
  };
  for (const DurationRange& duration : durations) {
    if (duration.value < duration.least || duration.value > duration.most) {
      return Wrong(duration.flag,
                   absl::StrCat(absl::FormatDuration(duration.value), " is not in ",
                                absl::FormatDuration(duration.least), "..", absl::FormatDuration(duration.most)));
    }
  }
  return absl::OkStatus();
}

// Checks that one message or step of the largest allowed size fits the bounds on many.
absl::Status ValidateRelations(const Config& config) {
  const service::Limits& limits = config.limits;
  if (limits.max_received_bytes < limits.stream_unanswered_bytes) {
    return Wrong("max_received_bytes",
                 absl::StrCat(limits.max_received_bytes,
                              " is less than --stream_unanswered_bytes=", limits.stream_unanswered_bytes));
  }
  if (limits.max_memory_bytes < limits.connection_memory_bytes) {
    return Wrong("max_memory_bytes", absl::StrCat(limits.max_memory_bytes, " is less than --connection_memory_bytes=",
                                                  limits.connection_memory_bytes));
  }
  if (limits.stream_unanswered_bytes < limits.max_message_bytes) {
    return Wrong(
        "stream_unanswered_bytes",
        absl::StrCat(limits.stream_unanswered_bytes, " is less than --max_message_bytes=", limits.max_message_bytes));
  }
  if (limits.stream_unanswered_rows < limits.max_step_positions) {
    return Wrong(
        "stream_unanswered_rows",
        absl::StrCat(limits.stream_unanswered_rows, " is less than --max_step_positions=", limits.max_step_positions));
  }
  if (limits.max_queued_rows < limits.max_step_positions) {
    return Wrong("max_queued_rows", absl::StrCat(limits.max_queued_rows,
                                                 " is less than --max_step_positions=", limits.max_step_positions));
  }
  if (limits.max_history < limits.kept_history) {
    return Wrong("kept_history", absl::StrCat(limits.kept_history, " is more than --max_history=", limits.max_history));
  }
  return absl::OkStatus();
}

absl::Status ValidateOptionalTcp(const char* flag, const std::string& text) {
  if (text.empty()) return absl::OkStatus();
  const absl::StatusOr<ListenAddress> address = ListenAddress::Parse(text);
  if (!address.ok()) return Wrong(flag, address.status().message());
  if (address->is_unix()) return Wrong(flag, "a TCP address is needed");
  return absl::OkStatus();
}

absl::Status ValidateListeners(const Config& config) {
  if (config.listen.empty()) return Wrong("listen", "at least one address is needed");
  bool any_tcp = false;
  for (const std::string& text : config.listen) {
    const absl::StatusOr<ListenAddress> address = ListenAddress::Parse(text);
    if (!address.ok()) return Wrong("listen", address.status().message());
    any_tcp = any_tcp || !address->is_unix();
    if (!address->is_local() && !config.uses_tls() && !config.insecure) {
      return Wrong("listen",
                   absl::StrCat(text,
                                " can be reached from other machines: set --tls_certificate and --tls_key, or "
                                "--insecure if the network is trusted"));
    }
  }
  if (!config.port_file.empty() && !any_tcp) return Wrong("port_file", "no TCP address in --listen");
  if (config.tls_certificate.empty() != config.tls_key.empty()) {
    return Wrong(config.tls_key.empty() ? "tls_key" : "tls_certificate",
                 "certificate and key are given together or not at all");
  }
  if (!config.tls_client_ca.empty() && !config.uses_tls()) {
    return Wrong("tls_client_ca", "client certificates need --tls_certificate and --tls_key");
  }
  if (config.memory_listen.empty() && config.limits.connection_device_bytes != 0) {
    return Wrong("connection_device_bytes", "devices' memory is passed over --memory_listen, which is not set");
  }
  if (!config.memory_listen.empty()) {
    const auto address = ListenAddress::Parse(config.memory_listen);
    if (!address.ok()) return Wrong("memory_listen", address.status().message());
    if (!address->is_unix()) return Wrong("memory_listen", "memory is shared over a Unix socket only: unix:PATH");
  }
  if (!config.admin_listen.empty()) {
    const auto address = ListenAddress::Parse(config.admin_listen);
    if (!address.ok()) return Wrong("admin_listen", address.status().message());
    if (!address->is_unix() && (!config.uses_tls() || config.clients.empty())) {
      return Wrong("admin_listen", "over TCP it needs TLS and a list of --clients; or give unix:PATH");
    }
  }
  if (absl::Status status = ValidateOptionalTcp("health_listen", config.health_listen); !status.ok()) return status;
  return ValidateOptionalTcp("metrics_listen", config.metrics_listen);
}

}  // namespace

absl::Status Validate(const Config& config) {
  if (absl::Status status = ValidateRanges(config); !status.ok()) return status;
  if (absl::Status status = ValidateRelations(config); !status.ok()) return status;
  if (!(config.recheck_share >= 0 && config.recheck_share <= 1)) {
    return Wrong("recheck_share", absl::StrCat(config.recheck_share, " is not in 0..1"));
  }
  const service::ReceiptSettings& receipts = config.receipts;
  if (receipts.key_file.empty() && !receipts.folder.empty()) return Wrong("receipt_folder", "it needs --receipt_key");
  if (receipts.folder.empty() && receipts.all) return Wrong("receipt_all", "it needs --receipt_folder");
  if (receipts.folder.empty() && receipts.required) return Wrong("receipt_required", "it needs --receipt_folder");
  return ValidateListeners(config);
}

}  // namespace sortition::server
