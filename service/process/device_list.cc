// Parsing of device entries, and starting of each kind of device that this build has.
#include "service/process/device_list.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "devices/cpu/cpu_device.h"
#include "devices/cuda/cuda_device.h"
#include "service/process/vulkan_devices.h"

namespace sortition::server {
namespace {

constexpr char kCuda[] = "cuda";
constexpr char kVulkan[] = "vulkan";
constexpr absl::Duration kSelfTestTimeout = absl::Minutes(2);  // includes the compiling of shaders

// True if the entry is "KIND" or "KIND:WHICH".
bool IsOf(const char* kind, const std::string& entry) {
  return entry == kind || absl::StartsWith(entry, absl::StrCat(kind, ":"));
}

// Returns the entries of the kind.
std::vector<std::string> EntriesOf(const char* kind, const std::vector<std::string>& entries) {
  std::vector<std::string> of;
  for (const std::string& entry : entries) {
    if (IsOf(kind, entry)) of.push_back(entry);
  }
  return of;
}

absl::Status CheckEntries(const std::vector<std::string>& entries) {
  std::set<std::string> seen;
  for (const std::string& entry : entries) {
    if (!seen.insert(entry).second) {
      return absl::InvalidArgumentError(absl::StrCat("--devices: \"", entry, "\" is named twice"));
    }
    if (entry != "cpu" && ((!IsOf(kVulkan, entry) && !IsOf(kCuda, entry)) || absl::EndsWith(entry, ":"))) {
      return absl::InvalidArgumentError(
          absl::StrCat("--devices: this build has no \"", entry,
                       "\"; it has cpu, cuda, cuda:INDEX, cuda:UUID, vulkan, vulkan:INDEX, vulkan:NAME"));
    }
  }
  return absl::OkStatus();
}

// Starts the CUDA devices that the entries name, each once.
void StartCuda(const std::vector<std::string>& entries, const std::function<void()>& restart_wanted, Log* log,
               StartedDevices* started) {
  const absl::Status built = devices::cuda::CheckImages(kernels::cuda::CompiledImages());
  const auto api = built.ok() ? devices::cuda::Api::Load() : built;
  std::vector<devices::cuda::UnusableDevice> unusable;
  const auto hardware = api.ok() ? devices::cuda::FindHardware(*api, &unusable) : api.status();
  std::set<uint32_t> taken;
  for (const std::string& entry : entries) {
    if (!hardware.ok()) {
      Miss(entry, "", hardware.status(), log, started);
      continue;
    }
    const std::string wanted = entry == kCuda ? "" : entry.substr(sizeof(kCuda));
    const auto matching = devices::cuda::Matching(wanted, *hardware);
    bool is_known = !matching.empty();
    for (const auto& [index, why] : unusable) {
      if (!wanted.empty() && wanted != absl::StrCat(index)) continue;
      is_known = true;
      if (taken.insert(index).second) Miss(absl::StrCat(kCuda, index), "", why, log, started);
    }
    if (!is_known) Miss(entry, "", absl::NotFoundError("no CUDA device has this index, UUID or name"), log, started);
    for (const devices::cuda::Hardware& one : matching) {
      if (!taken.insert(one.index).second) continue;
      devices::CudaDeviceOptions options;
      options.name = absl::StrCat("cuda", one.index);
      options.memory = kCudaMemory + one.index;
      options.lost = [log, restart_wanted, name = options.name](const absl::Status& why) {
        log->Write(LogLevel::kError, "restart_wanted", {{"device", name}, {"reason", std::string(why.message())}});
        if (restart_wanted != nullptr) restart_wanted();
      };
      auto device = devices::CudaDevice::Start(*api, one, options);
      if (device.ok()) {
        started->devices.push_back(*std::move(device));
      } else {
        Miss(options.name, one.name, device.status(), log, started);
      }
    }
  }
}

}  // namespace

void Miss(const std::string& name, const std::string& hardware, const absl::Status& why, Log* log,
          StartedDevices* started) {
  const std::string reason(why.message());
  log->Write(LogLevel::kWarning, "device_missing",
             {{"devices", hardware.empty() ? name : absl::StrCat(name, " (", hardware, ")")}, {"reason", reason}});
  started->missing.push_back({name, absl::StartsWith(name, kCuda) ? kCuda : kVulkan, hardware, reason});
}

absl::StatusOr<StartedDevices> StartDevices(const Config& config, Log* log, std::function<void()> restart_wanted) {
  if (absl::Status status = CheckEntries(config.devices); !status.ok()) return status;
  StartedDevices started;
  if (std::find(config.devices.begin(), config.devices.end(), "cpu") != config.devices.end()) {
    if (!devices::IsCpuTarget(config.cpu_target)) {
      return absl::InvalidArgumentError(absl::StrCat("--cpu_target: this machine runs no \"", config.cpu_target,
                                                     "\"; it runs ", devices::CpuTargetNames()));
    }
    started.devices.push_back(std::make_unique<devices::CpuDevice>(
        devices::CpuDeviceOptions{.threads = config.cpu_threads, .target = config.cpu_target}));
  }
  if (const auto entries = EntriesOf(kCuda, config.devices); !entries.empty()) {
    StartCuda(entries, restart_wanted, log, &started);
  }
  if (const auto entries = EntriesOf(kVulkan, config.devices); !entries.empty()) {
    StartVulkan(entries, config, log, &started);
  }
  if (started.devices.empty()) {
    return absl::InvalidArgumentError("--devices: none of them is present, and at least one is needed");
  }
  return started;
}

absl::Status CheckRoute(const Config& config, const std::vector<std::unique_ptr<devices::Device>>& devices) {
  if (config.route.pinned.empty()) return absl::OkStatus();
  for (const auto& device : devices) {
    if (device->description().name == config.route.pinned) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--route: there is no device \"", config.route.pinned, "\""));
}

absl::Status SelfTestDevices(const devices::SelfTest& self_test, service::Engine* engine) {
  std::string reasons;
  bool any = false;
  for (const auto& device : engine->devices()) {
    const devices::SelfTest::Verdict verdict = self_test.Run(device.get(), kSelfTestTimeout);
    engine->batcher().keeper().SetSelfTested(device.get(), verdict);
    any = any || verdict.status.ok();
    absl::StrAppend(&reasons, "; ", device->description().name, ": ", verdict.status.message());
  }
  if (any) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("no device has passed its self-test", reasons));
}

}  // namespace sortition::server
