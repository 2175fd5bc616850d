// sortitiond: wiring of configuration, devices, engine, metrics and server.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "monitoring/exposition.h"
#include "monitoring/metrics.h"
#include "service/clock.h"
#include "service/engine.h"
#include "service/hiccups.h"
#include "service/log/log.h"
#include "service/log/slow_steps.h"
#include "service/log/step_traces.h"
#include "service/policy/policy_book.h"
#include "service/process/config.h"
#include "service/process/device_list.h"
#include "service/process/flags.h"
#include "service/process/process.h"
#include "service/receipt/receipt_book.h"
#include "service/server.h"
#include "service/version.h"

namespace sortition::server {
namespace {

std::vector<devices::DeviceDescription> Describe(const std::vector<std::unique_ptr<devices::Device>>& devices) {
  std::vector<devices::DeviceDescription> descriptions;
  for (const auto& device : devices) descriptions.push_back(device->description());
  return descriptions;
}

absl::Status WritePort(const Config& config, const Server& server) {
  if (config.port_file.empty()) return absl::OkStatus();
  for (const ListenAddress& address : server.addresses()) {
    if (!address.is_unix()) return WritePortFile(config.port_file, address.port());
  }
  return absl::OkStatus();
}

void LogServing(const Server& server, const std::vector<devices::DeviceDescription>& devices,
                const std::string& metrics, Log* log) {
  const std::string listen = absl::StrJoin(
      server.addresses(), ",", [](std::string* out, const ListenAddress& address) { out->append(address.ToString()); });
  const std::string names = absl::StrJoin(
      devices, ",", [](std::string* out, const devices::DeviceDescription& device) { out->append(device.name); });
  log->Write(LogLevel::kInfo, "serving",
             {{"version", service::Version()},
              {"listen", listen},
              {"devices", names},
              {"health", server.health_address() ? server.health_address()->ToString() : ""},
              {"admin", server.admin_address() ? server.admin_address()->ToString() : ""},
              {"metrics", metrics}});
}

// Returns null, and says so in the log, where the system denies it.
std::unique_ptr<service::HiccupControl> StartControl(service::Observer* observer, Log* log) {
  // Finds each hiccup of more than 21 ms, a third of a slow step.
  constexpr absl::Duration kPeriod = absl::Milliseconds(20);
  auto control = service::HiccupControl::Start(kPeriod, [observer](absl::Duration machine, absl::Duration threads) {
    observer->ControlWoken(machine, threads);
  });
  if (control.ok()) return *std::move(control);
  log->Write(LogLevel::kWarning, "hiccup_control", {{"message", std::string(control.status().message())}});
  return nullptr;
}

// Serves until a stop signal. The error says why it cannot serve.
absl::Status Serve(const Config& config, const Signals& signals, Log* log) {
  const service::SteadyClock clock;
  // Batches of a lost device run on other devices, but only a new process can use the device again.
  std::atomic<bool> draining = false;
  std::atomic<bool> restart_wanted = false;
  auto started = StartDevices(config, log, [&] {
    if (!restart_wanted.exchange(true) && !draining) signals.RequestStop();
  });
  if (!started.ok()) return started.status();
  if (absl::Status status = CheckRoute(config, started->devices); !status.ok()) return status;
  const auto checkpoint_key = ReadCheckpointKey(config.checkpoint_key);
  if (!checkpoint_key.ok()) return checkpoint_key.status();
  const devices::SelfTest self_test;
  const std::vector<devices::DeviceDescription> descriptions = Describe(started->devices);
  monitoring::PrometheusObserver observer(descriptions);
  std::unique_ptr<StepTraces> traces;
  if (!config.otlp_endpoint.empty()) {
    auto started_traces = StepTraces::Start({.endpoint = config.otlp_endpoint}, &clock, &observer, log);
    if (!started_traces.ok()) return started_traces.status();
    traces = *std::move(started_traces);
  }
  std::unique_ptr<service::HiccupControl> control;
  if (config.hiccup_control && !config.metrics_listen.empty()) control = StartControl(&observer, log);
  std::optional<SlowSteps> slow_steps;
  if (config.slow_step > absl::ZeroDuration() && !config.metrics_listen.empty()) {
    slow_steps.emplace(config.slow_step, &clock, control ? &control->hiccups() : nullptr);
  }
  LoggedEvents event_log(log, traces.get(), slow_steps ? &*slow_steps : nullptr);
  std::unique_ptr<service::ReceiptBook> receipts;
  if (!config.receipt_key.empty()) {
    auto book = service::ReceiptBook::Start({.key_file = config.receipt_key,
                                             .folder = config.receipt_folder,
                                             .all = config.receipt_all,
                                             .required = config.receipt_required,
                                             .file_bytes = config.receipt_file_bytes,
                                             .queue_bytes = config.receipt_queue_bytes},
                                            &observer, &event_log);
    if (!book.ok()) return book.status();
    receipts = *std::move(book);
  }
  std::unique_ptr<service::PolicyBook> policies;
  if (!config.policies.empty()) {
    const bool writes_receipts = receipts != nullptr && receipts->writes();
    auto book = service::PolicyBook::Start(config.policies, config.limits, writes_receipts, &observer, &event_log);
    if (!book.ok()) return book.status();
    policies = *std::move(book);
  }
  service::Engine engine({.limits = config.limits,
                          .devices = std::move(started->devices),
                          .clock = &clock,
                          .observer = &observer,
                          .event_log = &event_log,
                          .checkpoint_key = *checkpoint_key,
                          .slow_step = slow_steps ? config.slow_step : absl::InfiniteDuration(),
                          .route = config.route,
                          .recheck_share = config.recheck_share,
                          .self_test = &self_test,
                          .missing_devices = std::move(started->missing),
                          .receipts = receipts.get(),
                          .policies = policies.get()});
  if (absl::Status status = SelfTestDevices(self_test, &engine); !status.ok()) return status;

  auto server = Server::Start(config, &engine, log, [&] { signals.RequestStop(); });
  if (!server.ok()) return server.status();
  const auto exposition =
      monitoring::Exposition::Start(config.metrics_listen, {.observer = &observer,
                                                            .engine = &engine,
                                                            .draining = [&] { return draining.load(); },
                                                            .certificate = config.tls_certificate,
                                                            .slow_steps = slow_steps ? &*slow_steps : nullptr});
  if (!exposition.ok()) return exposition.status();
  if (absl::Status status = WritePort(config, **server); !status.ok()) return status;
  if (!checkpoint_key->has_value()) {
    log->Write(LogLevel::kInfo, "checkpoint_key_random",
               {{"message",
                 "mirostat and adaptive-p sequences of this process cannot continue on another replica or after a "
                 "restart; set --checkpoint_key"}});
  }
  LogServing(**server, descriptions, (*exposition)->address(), log);
  FreedMemory freed(&clock);
  const Timekeeper freed_keeper(FreedMemory::kPeriod, [&] { freed.Look(); });

  const int stop = signals.AwaitStop([&] {
    (*server)->LookAtFiles();
    if (policies) policies->files().Look();
    if (receipts) receipts->files().Look();
  });
  log->Write(LogLevel::kInfo, "stop_requested", {{"signal", stop}});
  draining = true;
  signals.ExitOnNext();
  (*server)->Drain();
  (*server)->Stop();
  log->Write(LogLevel::kInfo, "stopped");
  if (restart_wanted) return absl::UnavailableError("a device is lost to this process; a new one may get it back");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  TuneAllocator();
  ReadOnStreamThreads();
#ifdef NDEBUG
  // Debian's build of Abseil looks for deadlocks at every locking of a mutex, gRPC's mutexes included, and takes a
  // process-wide lock for it. That costs 6 % of a step of one row over a ring.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  const absl::StatusOr<Config> config = ConfigFromFlags(argc, argv, environ, std::string(service::Version()));
  const absl::Status valid = config.ok() ? Validate(*config) : config.status();
  if (!valid.ok()) {
    std::fprintf(stderr, "sortitiond: %s\n", std::string(valid.message()).c_str());
    return 2;
  }
  const Signals signals;
  Log& log = *new Log(config->log_level);  // gRPC's threads write to it until the process ends
  RedirectLibraryLogs(&log);
  const absl::Status served = Serve(*config, signals, &log);
  if (served.ok()) return 0;
  log.Write(LogLevel::kError, "failed", {{"message", std::string(served.message())}});
  return 1;
}

}  // namespace
}  // namespace sortition::server

int main(int argc, char** argv) { return sortition::server::Main(argc, argv); }
