// What an operator decides: one plain struct, judged in one function. Flags and the environment only fill it (flags.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "service/limits.h"
#include "service/route/policy.h"
#include "service/server/log.h"

namespace sortition::server {

struct Config {
  // Addresses as ListenAddress::Parse takes them; at least one.
  std::vector<std::string> listen = {"127.0.0.1:50051"};
  // Where Prometheus scrapes; empty = nowhere.
  std::string metrics_listen = "127.0.0.1:9464";
  // Where health alone is served, in plain text, for probes that cannot do TLS; empty = nowhere.
  std::string health_listen;
  // Where operators are served (admin.proto); empty = nowhere.
  std::string admin_listen;
  // Where workers on this machine get shared memory: "unix:PATH"; empty = nowhere.
  std::string memory_listen;
  absl::Duration ring_spin = absl::Microseconds(50);  // before the thread of a ring sleeps
  // If set, the port of the first TCP listener is written there once the server serves.
  std::string port_file;

  // Devices to use; at least one.
  std::vector<std::string> devices = {"cpu"};  // see device_list.h
  service::RoutePolicy route;
  double recheck_share = 0;         // of live rows that are compared with the law's reference before they are answered
  uint32_t cpu_threads = 0;         // 0 = one for each processor
  std::string cpu_target = "auto";  // instruction set by name (devices/cpu/cpu_device.h)
  std::string vulkan_cache;         // folder in which compiled shaders are kept; empty: none

  // Plain text beyond this machine. Logits reveal what users write, so this is never a default.
  bool insecure = false;
  std::string tls_certificate;
  std::string tls_key;
  std::string tls_client_ca;
  absl::Duration tls_refresh = absl::Seconds(30);  // how often these files are looked at
  std::string clients;  // file that lists who may call (client_list.h); empty = all who can connect

  // File of the key under which sampler checkpoints are sealed, which replicas share; empty = one of this process
  // alone.
  std::string checkpoint_key;

  // Connections open at once, those to listeners for health and operators aside; 0 = as many as descriptors allow.
  uint32_t max_connections = 0;
  uint32_t stream_threads = 1;  // threads that read and write streams
  uint32_t max_watchers = 64;   // calls of WatchCounters at once
  // Messages in memory, all streams together; while they hold more, no stream is read.
  uint64_t max_received_bytes = uint64_t{4} << 30;
  absl::Duration drain_grace = absl::Seconds(30);
  LogLevel log_level = LogLevel::kInfo;

  service::Limits limits;

  bool uses_tls() const { return !tls_certificate.empty(); }
};

// INVALID_ARGUMENT naming the flag and what it may be, or the two flags that contradict each other.
absl::Status Validate(const Config& config);

}  // namespace sortition::server
