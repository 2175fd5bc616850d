// Ranges of settings and the relations between them.
#include "service/process/config.h"

#include <string>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "service/net/listen_socket.h"

namespace sortition::server {
namespace {

absl::Status Wrong(absl::string_view flag, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", what));
}

template <typename T>
absl::Status CheckRange(const char* flag, T value, std::type_identity_t<T> least, std::type_identity_t<T> most) {
  if (value >= least && value <= most) return absl::OkStatus();
  const auto text = [](T shown) {
    if constexpr (std::is_same_v<T, absl::Duration>) {
      return absl::FormatDuration(shown);
    } else {
      return absl::StrCat(shown);
    }
  };
  return Wrong(flag, absl::StrCat(text(value), " is not in ", text(least), "..", text(most)));
}

absl::Status ValidateRanges(const Config& config) {
#define CHECK_RANGE(name, value, least, most) \
  if (absl::Status status = CheckRange(#name, value, least, most); !status.ok()) return status;
#define NUMBER(type, name, initial, least, most, text) CHECK_RANGE(name, config.name, least, most)
#define LIMIT(type, name, initial, least, most, unit, text) CHECK_RANGE(name, config.limits.name, least, most)
#include "service/limits.inc"
#undef CHECK_RANGE
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
  if (config.receipt_key.empty() && !config.receipt_folder.empty()) {
    return Wrong("receipt_folder", "it needs --receipt_key");
  }
  if (config.receipt_folder.empty() && config.receipt_all) return Wrong("receipt_all", "it needs --receipt_folder");
  if (config.receipt_folder.empty() && config.receipt_required) {
    return Wrong("receipt_required", "it needs --receipt_folder");
  }
  return ValidateListeners(config);
}

}  // namespace sortition::server
