// Texts with drafts, phases and ends over the CPU and a Vulkan device equal texts over the CPU alone.
#include <gtest/gtest.h>

#include "devices/vulkan/vulkan_device.h"
#include "tests/support/device_texts.h"
#include "tests/support/scale.h"
#include "tests/vulkan/drivers.h"

namespace sortition::testing::texts_test {
namespace {

TEST(VulkanTexts, EqualThoseOfTheCpu) {
  const Driver& driver = Drivers().front();
  if (ManifestOf(driver).empty()) GTEST_SKIP() << driver.package << " is not installed";
  const auto instance = OpenDriver(driver);
  ASSERT_TRUE(instance.ok()) << instance.status();
  devices::VulkanDeviceOptions options;
  options.name = "vulkan";
  options.max_batch_rows = 2;
  auto device = devices::VulkanDevice::Start(*instance, (*instance)->hardware().front(), options);
  ASSERT_TRUE(device.ok()) << device.status();
  CompareTexts(*std::move(device), std::max<uint64_t>(Scaled(200), 50));
}

}  // namespace
}  // namespace sortition::testing::texts_test
