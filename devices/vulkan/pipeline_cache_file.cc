// The file's name and its header distinguish drivers.
#include "devices/vulkan/pipeline_cache_file.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace sortition::devices::vulkan {

std::string PipelineCachePath(const std::string& folder, const Hardware& hardware) {
  const absl::string_view uuid(reinterpret_cast<const char*>(hardware.cache_uuid), sizeof(hardware.cache_uuid));
  return absl::StrCat(folder, "/", absl::Hex(hardware.vendor_id), "-", absl::Hex(hardware.device_id), "-",
                      absl::Hex(hardware.driver_version), "-", absl::BytesToHexString(uuid), ".vkcache");
}

std::vector<std::byte> LoadPipelineCache(const std::string& path, const Hardware& hardware) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  std::vector<std::byte> data(size_t(file.tellg()));
  file.seekg(0).read(reinterpret_cast<char*>(data.data()), std::streamsize(data.size()));
  VkPipelineCacheHeaderVersionOne header;
  if (!file || data.size() < sizeof(header)) return {};
  std::memcpy(&header, data.data(), sizeof(header));
  const bool fits = header.headerVersion == VK_PIPELINE_CACHE_HEADER_VERSION_ONE &&
                    header.vendorID == hardware.vendor_id && header.deviceID == hardware.device_id &&
                    std::memcmp(header.pipelineCacheUUID, hardware.cache_uuid, VK_UUID_SIZE) == 0;
  return fits ? data : std::vector<std::byte>();
}

absl::Status SavePipelineCache(const std::string& path, std::span<const std::byte> data) {
  // A file of this process alone until it is complete.
  const std::string draft = absl::StrCat(path, ".", getpid());
  {
    std::ofstream file(draft, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(data.data()), std::streamsize(data.size()));
    file.close();
    if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", draft));
  }
  std::error_code error;
  std::filesystem::rename(draft, path, error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", error.message()));
  return absl::OkStatus();
}

}  // namespace sortition::devices::vulkan
