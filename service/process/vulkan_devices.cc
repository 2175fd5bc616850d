// Finds and starts Vulkan devices. vulkan_devices_left_out.cc takes its place in a build without Vulkan.
#include "service/process/vulkan_devices.h"

#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "devices/vulkan/vulkan_device.h"

namespace sortition::server {
namespace {

using devices::vulkan::Hardware;
using devices::vulkan::Instance;

// Returns the Vulkan devices that an entry of --devices names. "vulkan" names all, "vulkan:INDEX" the one at this place
// in the loader's order, "vulkan:TEXT" those whose name contains the text in any case. May be empty.
std::vector<Hardware> Matching(const std::string& entry, const std::vector<Hardware>& hardware) {
  if (entry == "vulkan") return hardware;
  const std::string wanted = entry.substr(sizeof("vulkan"));
  uint32_t index = 0;
  const bool is_index = absl::SimpleAtoi(wanted, &index);
  std::vector<Hardware> matching;
  for (const Hardware& one : hardware) {
    const bool matches = is_index ? one.index == index
                                  : absl::StrContains(absl::AsciiStrToLower(one.name), absl::AsciiStrToLower(wanted));
    if (matches) matching.push_back(one);
  }
  return matching;
}

}  // namespace

void StartVulkan(const std::vector<std::string>& entries, const Config& config, Log* log, StartedDevices* started) {
  const auto instance = Instance::Create();
  std::set<uint32_t> taken;
  for (const std::string& entry : entries) {
    if (!instance.ok()) {
      Miss(entry, "", instance.status(), log, started);
      continue;
    }
    const std::vector<Hardware> matching = Matching(entry, (*instance)->hardware());
    if (matching.empty()) {
      Miss(entry, "", absl::NotFoundError("no Vulkan device has this index or name"), log, started);
    }
    for (const Hardware& hardware : matching) {
      if (!taken.insert(hardware.index).second) continue;
      devices::VulkanDeviceOptions options;
      options.name = absl::StrCat("vulkan", hardware.index);
      options.memory = kVulkanMemory + hardware.index;
      options.pipeline_cache_folder = config.vulkan_cache;
      auto device = devices::VulkanDevice::Start(*instance, hardware, options);
      if (device.ok()) {
        log->Write(LogLevel::kInfo, "device_started",
                   {{"device", options.name},
                    {"hardware", hardware.name},
                    {"shaders", kernels::vulkan::VariantName((*device)->variant())},
                    {"host_import", hardware.host_import_alignment != 0 ? "yes" : "no"}});
        if (const absl::Status status = (*device)->cache_status(); !status.ok()) {
          log->Write(LogLevel::kWarning, "vulkan_cache", {{"reason", std::string(status.message())}});
        }
        started->devices.push_back(*std::move(device));
      } else {
        Miss(options.name, hardware.name, device.status(), log, started);
      }
    }
  }
}

}  // namespace sortition::server
