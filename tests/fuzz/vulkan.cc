// The Vulkan kernels: a row of the input's bytes on Mesa's lavapipe, against the reference.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "devices/vulkan/vulkan_device.h"
#include "kernels/law/reference.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/row.h"
#include "tests/support/run_batch.h"
#include "tests/vulkan/drivers.h"

namespace sortition::fuzz {
namespace {

using devices::VulkanDevice;

std::unique_ptr<VulkanDevice> Start() {
  const testing::Driver& lavapipe = testing::Drivers().front();
  if (testing::ManifestOf(lavapipe).empty())
    Fail(lavapipe.name + " is not installed; its package is " + lavapipe.package);
  auto instance = testing::OpenDriver(lavapipe);
  if (!instance.ok()) Fail(instance.status().ToString());
  auto device = VulkanDevice::Start(*instance, (*instance)->hardware().front(), {});
  if (!device.ok()) Fail(device.status().ToString());
  return *std::move(device);
}

devices::BatchOutput RunRow(VulkanDevice* device, const kernels::RowRequest& request) {
  devices::DeviceRow row;
  row.request = request;
  row.segments.push_back({static_cast<const std::byte*>(request.logits),
                          size_t{request.live_vocabulary} * kernels::ElementBytes(request.dtype)});
  return testing::RunBatch(device, {row});
}

}  // namespace

// The driver does not give everything back.
extern "C" const char* __lsan_default_suppressions() { return "leak:libvulkan_lvp.so"; }

void Run(Bytes bytes) {
  static VulkanDevice& device = *Start().release();
  Input input(bytes);
  const Row row(&input);
  const kernels::RowRequest request = row.request();
  if ((FeaturesOf(request) & ~device.description().features) != 0) return;
  if (request.live_vocabulary > device.description().max_vocabulary) return;
  const devices::BatchOutput result = RunRow(&device, request);
  if (!result.status.ok()) Fail(result.status.ToString());
  kernels::RowOutput answer = result.outputs.at(0);
  // Planted defect: the kernel takes the second of two equal tokens.
  if (planted && request.parameters->greedy) ++answer.token;
  const kernels::RowOutput expected = law::SampleRowReference(request);
  if (answer != expected) Fail(absl::StrCat("token ", answer.token, ", the reference ", expected.token));
}

}  // namespace sortition::fuzz
