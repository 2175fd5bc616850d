// Queries the driver for its devices.
#include "devices/cuda/hardware.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace sortition::devices::cuda {
namespace {

constexpr uint32_t kLeastCapability = 80;

std::string UuidText(const Uuid& uuid) {
  const std::string hex = absl::BytesToHexString({reinterpret_cast<const char*>(uuid.bytes), std::size(uuid.bytes)});
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-", hex.substr(16, 4),
                      "-", hex.substr(20));
}

absl::StatusOr<Hardware> Describe(const Api& api, int ordinal) {
  Hardware hardware;
  hardware.index = uint32_t(ordinal);
  SORTITION_CUDA_RETURN_IF_ERROR(api, DeviceGet(&hardware.handle, ordinal));
  char name[256] = {};
  SORTITION_CUDA_RETURN_IF_ERROR(api, DeviceGetName(name, sizeof(name) - 1, hardware.handle));
  hardware.name = name;
  Uuid uuid = {};
  SORTITION_CUDA_RETURN_IF_ERROR(api, DeviceGetUuid(&uuid, hardware.handle));
  hardware.uuid = UuidText(uuid);
  hardware.uuid_bytes.assign(std::begin(uuid.bytes), std::end(uuid.bytes));
  size_t bytes = 0;
  SORTITION_CUDA_RETURN_IF_ERROR(api, DeviceTotalMem(&bytes, hardware.handle));
  hardware.memory_bytes = bytes;
  int value = 0;
  SORTITION_CUDA_RETURN_IF_ERROR(api, DeviceGetAttribute(&value, DeviceAttribute::kMultiprocessors, hardware.handle));
  hardware.multiprocessors = uint32_t(value);
  int minor = 0;
  SORTITION_CUDA_RETURN_IF_ERROR(api,
                                 DeviceGetAttribute(&value, DeviceAttribute::kComputeCapabilityMajor, hardware.handle));
  SORTITION_CUDA_RETURN_IF_ERROR(api,
                                 DeviceGetAttribute(&minor, DeviceAttribute::kComputeCapabilityMinor, hardware.handle));
  hardware.capability = uint32_t(10 * value + minor);
  if (hardware.capability < kLeastCapability) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " has compute capability ", value, ".", minor, "; the CUDA kernels need 8.0 or later"));
  }
  int manages = 0;
  int exports = 0;
  int pools = 0;
  SORTITION_CUDA_RETURN_IF_ERROR(
      api, DeviceGetAttribute(&manages, DeviceAttribute::kVirtualMemoryManagement, hardware.handle));
  SORTITION_CUDA_RETURN_IF_ERROR(
      api, DeviceGetAttribute(&exports, DeviceAttribute::kFileDescriptorHandles, hardware.handle));
  SORTITION_CUDA_RETURN_IF_ERROR(api, DeviceGetAttribute(&pools, DeviceAttribute::kMemoryPools, hardware.handle));
  hardware.shares_memory = manages != 0 && exports != 0;
  hardware.has_memory_pools = pools != 0;
  return hardware;
}

}  // namespace

absl::StatusOr<std::vector<Hardware>> FindHardware(const Api& api, std::vector<UnusableDevice>* unusable) {
  int count = 0;
  SORTITION_CUDA_RETURN_IF_ERROR(api, DeviceGetCount(&count));
  std::vector<Hardware> hardware;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    auto one = Describe(api, ordinal);
    if (one.ok()) {
      hardware.push_back(*std::move(one));
    } else if (unusable != nullptr) {
      unusable->push_back({uint32_t(ordinal), one.status()});
    }
  }
  return hardware;
}

absl::StatusOr<Hardware> FindHardware(const Api& api, int index) {
  int count = 0;
  SORTITION_CUDA_RETURN_IF_ERROR(api, DeviceGetCount(&count));
  if (index < 0 || index >= count) {
    return absl::NotFoundError(absl::StrCat("no CUDA device ", index, "; the driver has ", count));
  }
  return Describe(api, index);
}

MemoryIdentity IdentityOf(const Hardware& hardware) {
  if (!hardware.shares_memory) return {};
  return {MemoryKind::kCuda, hardware.uuid_bytes, ""};
}

std::vector<Hardware> Matching(const std::string& wanted, const std::vector<Hardware>& hardware) {
  uint32_t index = 0;
  const bool is_index = absl::SimpleAtoi(wanted, &index);
  const std::string text = absl::AsciiStrToLower(wanted);
  const std::string digits(absl::StripPrefix(text, "mig-"));
  std::vector<Hardware> matching;
  for (const Hardware& one : hardware) {
    const std::string uuid = absl::AsciiStrToLower(one.uuid);
    const bool matches =
        wanted.empty() || (is_index ? one.index == index
                                    : absl::StartsWith(uuid, text) || absl::StartsWith(uuid, "gpu-" + digits) ||
                                          absl::StrContains(absl::AsciiStrToLower(one.name), text));
    if (matches) matching.push_back(one);
  }
  return matching;
}

}  // namespace sortition::devices::cuda
