// The server's settings: one plain struct, validated by one function. Flags and the environment fill it (flags.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "service/limits.h"
#include "service/log/log.h"
#include "service/log/step_traces.h"
#include "service/receipt/receipt_settings.h"
#include "service/route/policy.h"

namespace sortition::server {

struct Config {
  // Addresses as ListenAddress::Parse takes them; at least one.
  std::vector<std::string> listen = {"127.0.0.1:50051"};
  // Address of the metrics port, which Prometheus scrapes; empty = none.
  std::string metrics_listen = "127.0.0.1:9464";
  // Address that serves health alone, in plain text, for probes that cannot do TLS; empty = none.
  std::string health_listen;
  // Address that serves operators (admin.proto); empty = none.
  std::string admin_listen;
  // Unix socket where workers on this machine get shared memory: "unix:PATH"; empty = none.
  std::string memory_listen;
  absl::Duration ring_spin = absl::Microseconds(50);  // longest spin of a ring's thread before it sleeps
  // File to which the port of the first TCP listener is written once the server serves; empty = none.
  std::string port_file;

  // Devices to use; at least one.
  std::vector<std::string> devices = {"cpu"};  // see device_list.h
  service::RoutePolicy route;
  double recheck_share = 0;         // share of live rows compared with the law's reference before they are answered
  uint32_t cpu_threads = 0;         // 0 = one for each processor
  std::string cpu_target = "auto";  // instruction set by name (devices/cpu/cpu_device.h)
  std::string vulkan_cache;         // folder that keeps compiled shaders; empty = none

  // Allows plain text beyond this machine. Never a default, because logits reveal what users write.
  bool insecure = false;
  // Serves without the guard of HTTP/2 (http2_guard.h), also beyond this machine.
  bool unguarded_http2 = false;
  std::string tls_certificate;
  std::string tls_key;
  std::string tls_client_ca;
  absl::Duration tls_refresh = absl::Seconds(30);  // period in which these files are looked at
  std::string clients;  // list of clients (authorization.h); empty = all who can connect may call

  TraceSettings traces;
  std::string policies;  // file of the operator's policies (policies.proto); empty = no tenant has one

  // File of the key that seals sampler checkpoints. Replicas share it. Empty = a random key, for this process alone.
  std::string checkpoint_key;
  // Receipts are made if there is a key.
  service::ReceiptSettings receipts;

  uint32_t stream_threads = 1;  // threads that read and write streams
  absl::Duration drain_grace = absl::Seconds(30);
  bool load_reports = false;  // by ORCA (load_reports.h)
  // A step that takes as long is listed on the status page (slow_steps.h); 0 = none is.
  absl::Duration slow_step = absl::Milliseconds(65);
  LogLevel log_level = LogLevel::kInfo;

  service::Limits limits;

  bool uses_tls() const { return !tls_certificate.empty(); }
};

// Returns INVALID_ARGUMENT that names a flag and its range, or two flags that contradict each other.
absl::Status Validate(const Config& config);

}  // namespace sortition::server
