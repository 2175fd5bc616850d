// Short texts of every setting are the same on the reference, on Vulkan drivers that compute on the CPU, and on an
// emulated CUDA device.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_replace.h"
#include "client/archive/drawer.h"
#include "client/archive/settings.h"
#include "devices/cpu/cpu_device.h"
#include "devices/vulkan/vulkan_device.h"
#include "tests/cuda/device_batch.h"
#include "tests/vulkan/drivers.h"

namespace sortition::archive::devices_test {
namespace {

// Those of the release with texts of 5 tokens.
const Settings& ShortSettings() {
  static const Settings* const settings = [] {
    auto parsed = Settings::Parse(absl::StrReplaceAll(
        Settings::Own().json(), {{"\"tokens\": 256", "\"tokens\": 5"}, {"\"prompt\": 2048", "\"prompt\": 64"}}));
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return new Settings(*std::move(parsed));
  }();
  return *settings;
}

// Returns texts and receipts.
std::string Draw(devices::Device* device) {
  const auto drawn = DrawTexts(ShortSettings(), OnDevice(device).get(), [](uint32_t) {});
  EXPECT_TRUE(drawn.ok()) << drawn.status();
  return drawn.ok() ? drawn->texts + drawn->receipts.records : std::string();
}

std::string Expected() {
  devices::CpuDevice device({.target = "scalar"});
  return Draw(&device);
}

TEST(ArchiveDevices, TextsOfTwoRowsABatchAreTheSame) {
  devices::CpuDevice device({.threads = 2, .max_batch_rows = 2});
  EXPECT_EQ(Draw(&device), Expected());
}

TEST(ArchiveDevices, TextsAreTheSameOnVulkan) {
  for (const testing::Driver& driver : testing::Drivers()) {
    if (testing::ManifestOf(driver).empty()) GTEST_SKIP() << driver.package << " is not installed";
    const auto instance = testing::OpenDriver(driver);
    ASSERT_TRUE(instance.ok()) << instance.status();
    const auto device = devices::VulkanDevice::Start(*instance, (*instance)->hardware().front(), {});
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ(Draw(device->get()), Expected()) << driver.name;
  }
}

TEST(ArchiveDevices, TextsAreTheSameOnCuda) {
  const testing::FakeCudaDriver driver;
  const auto device = testing::StartOn(driver);
  ASSERT_NE(device, nullptr);
  EXPECT_EQ(Draw(device.get()), Expected());
}

}  // namespace
}  // namespace sortition::archive::devices_test
