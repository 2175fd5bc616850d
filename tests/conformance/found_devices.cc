// Devices that each kind's driver finds.
#include "tests/conformance/found_devices.h"

#include <algorithm>
#include <iostream>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "devices/cpu/cpu_device.h"
#include "devices/cuda/cuda_device.h"
#include "devices/vulkan/vulkan_device.h"
#include "kernels/law/reference.h"
#include "tests/conformance/piped_device.h"

namespace sortition {
namespace {

using devices::Device;

void Skip(const std::string& kind, absl::string_view why) { std::cerr << kind << ": skipped: " << why << "\n"; }

void Fail(const std::string& name, absl::string_view why, FoundDevices* found) {
  std::cerr << name << ": does not start: " << why << "\n";
  ++found->failed;
}

// A kind's driver that does not start: it may just not be there.
void MissDriver(const char* kind, const absl::Status& why, FoundDevices* found) {
  absl::IsNotFound(why) ? Skip(kind, why.message()) : Fail(kind, why.message(), found);
}

template <typename Started>
bool Take(const std::string& name, absl::StatusOr<std::unique_ptr<Started>> device, FoundDevices* found) {
  if (device.ok()) {
    found->started.push_back(*std::move(device));
  } else {
    Fail(name, device.status().message(), found);
  }
  return device.ok();
}

void StartCuda(const kernels::cuda::Images& images, FoundDevices* found) {
  const auto api = devices::cuda::Api::Load();
  std::vector<devices::cuda::UnusableDevice> unusable;
  const auto hardware = api.ok() ? devices::cuda::FindHardware(*api, &unusable) : api.status();
  if (!hardware.ok()) return MissDriver("cuda", hardware.status(), found);
  if (hardware->empty() && unusable.empty()) Skip("cuda", "the CUDA driver has no device");
  for (const auto& [index, why] : unusable) {
    const std::string name = absl::StrCat("cuda", index);
    absl::IsFailedPrecondition(why) ? Skip(name, why.message()) : Fail(name, why.message(), found);
  }
  for (const auto& one : *hardware) {
    const std::string name = absl::StrCat("cuda", one.index);
    if (Take(name, devices::CudaDevice::Start(*api, one, {.name = name, .images = images}), found))
      found->cuda.push_back(one);
  }
}

void StartVulkan(FoundDevices* found) {
  const auto instance = devices::vulkan::Instance::Create();
  if (!instance.ok()) return MissDriver("vulkan", instance.status(), found);
  if ((*instance)->hardware().empty()) Skip("vulkan", "no device of Vulkan 1.1 or later");
  for (const auto& one : (*instance)->hardware()) {
    devices::VulkanDeviceOptions options;
    options.name = absl::StrCat("vulkan", one.index);
    Take(options.name, devices::VulkanDevice::Start(*instance, one, options), found);
  }
}

// The law's reference as a device.
class ReferenceDevice final : public Device {
 public:
  const devices::DeviceDescription& description() const override { return description_; }
  void Submit(std::vector<devices::DeviceRow> rows, Done done) override {
    devices::BatchOutput output;
    for (const devices::DeviceRow& row : rows) {
      kernels::RowRequest request = row.request;
      request.logits = row.segments.front().data;  // the only one
      output.outputs.push_back(law::SampleRowReference(request));
    }
    done(std::move(output));
  }

 private:
  const devices::DeviceDescription description_ = [] {
    devices::DeviceDescription description;
    description.name = "reference";
    description.kind = "reference";
    description.hardware = "the law's reference";
    description.max_batch_rows = 1024;
    description.features = kernels::kAllFeatures;
    return description;
  }();
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> StartDevice(const std::string& name) {
  if (absl::StartsWith(name, "pipe:")) return StartPipedDevice(name.substr(5));
  if (name == "reference") return std::make_unique<ReferenceDevice>();
  if (absl::StartsWith(name, "cpu")) {
    devices::CpuDeviceOptions options;
    const bool is_best = name == "cpu" || name == options.name;
    if (!is_best) options.target = name.substr(std::min(name.size(), size_t{4}));
    if (!is_best && (name[3] != ':' || !devices::IsCpuTarget(options.target))) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": cpu:TARGET has one of ", devices::CpuTargetNames()));
    }
    return std::make_unique<devices::CpuDevice>(options);
  }
  FoundDevices found = StartFoundDevices({name.substr(0, name.find_first_of("0123456789"))});
  for (std::unique_ptr<Device>& device : found.started) {
    if (device->description().name == name) return std::move(device);
  }
  return absl::NotFoundError(absl::StrCat(name, ": there is no such device"));
}

FoundDevices StartFoundDevices(const std::vector<std::string>& kinds, const kernels::cuda::Images& images) {
  FoundDevices found;
  for (const std::string& kind : kinds) {
    if (kind == "cpu") {
      found.started.push_back(std::make_unique<devices::CpuDevice>(devices::CpuDeviceOptions()));
    } else if (kind == "cuda") {
      StartCuda(images, &found);
    } else if (kind == "vulkan") {
      StartVulkan(&found);
    } else {
      Fail(kind, "there are cpu, cuda and vulkan", &found);
    }
  }
  return found;
}

}  // namespace sortition
