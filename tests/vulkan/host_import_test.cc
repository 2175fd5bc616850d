// Rows that the device reads in place, on drivers that offer it, have the same answers as rows that are copied.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "devices/vulkan/vulkan_device.h"
#include "kernels/law/reference.h"
#include "tests/conformance/answer_printer.h"
#include "tests/conformance/random_row.h"
#include "tests/support/run_batch.h"
#include "tests/vulkan/drivers.h"

namespace sortition::devices::host_import_test {
namespace {

using kernels::RandomRow;

// Number of imports that the driver was asked to make, and whether it refuses them.
std::atomic<int> imports;
std::atomic<bool> refused;
PFN_vkAllocateMemory host_import_allocate;

VkResult AllocateForHostImport(VkDevice device, const VkMemoryAllocateInfo* info,
                               const VkAllocationCallbacks* callbacks, VkDeviceMemory* memory) {
  const auto* next = static_cast<const VkBaseInStructure*>(info->pNext);
  if (next != nullptr && next->sType == VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT) {
    ++imports;
    if (refused) return VK_ERROR_INVALID_EXTERNAL_HANDLE;
  }
  return host_import_allocate(device, info, callbacks, memory);
}

void VKAPI_CALL ImportNothing(VkPhysicalDevice, const VkPhysicalDeviceExternalBufferInfo*,
                              VkExternalBufferProperties* properties) {
  properties->externalMemoryProperties = {};
}

const testing::Driver& Lavapipe() { return testing::Drivers().front(); }

// On lavapipe alone: SwiftShader has the extension, but does not say that it imports buffers.
class HostImportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::ManifestOf(Lavapipe()).empty()) GTEST_SKIP() << Lavapipe().package << " is not installed";
    const auto instance = testing::OpenDriver(Lavapipe(), [](vulkan::Api* api) {
      host_import_allocate = api->AllocateMemory;
      api->AllocateMemory = AllocateForHostImport;
    });
    ASSERT_TRUE(instance.ok()) << instance.status();
    const vulkan::Hardware& hardware = (*instance)->hardware().front();
    ASSERT_NE(hardware.host_import_alignment, 0u) << "lavapipe offers it";
    VulkanDeviceOptions options;
    options.batches_in_flight = 1;
    options.copies = true;  // as on hardware whose memory the host cannot map
    auto device = VulkanDevice::Start(*instance, hardware, options);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    imports = 0;
    refused = false;
  }

  // Rows of 40,000 live tokens, `gap` bytes apart, the first of them `before` bytes into the memory.
  void MakeRows(int count, size_t before, size_t gap) {
    std::vector<size_t> offsets;
    size_t at = before;
    for (uint64_t seed = 700; rows_.size() < static_cast<size_t>(count); ++seed) {
      auto row = std::make_unique<RandomRow>(seed, 40'000);
      if (row->request().live_vocabulary < 40'000) continue;
      rows_.push_back(std::move(row));
      offsets.push_back(at);
      // A tensor's rows have one type. These may have several, but their elements are aligned as elements must be.
      at = (at + rows_.back()->tensor().size() + gap + 3) / 4 * 4;
    }
    memory_.resize(at);
    for (int row = 0; row < count; ++row) {
      const auto& tensor = rows_[row]->tensor();
      std::memcpy(memory_.data() + offsets[row], tensor.data(), tensor.size());
      DeviceRow device_row;
      device_row.request = rows_[row]->request();
      device_row.segments.push_back({memory_.data() + offsets[row], tensor.size()});
      batch_.push_back(device_row);
    }
  }

  void ExpectRight() {
    const BatchOutput result = testing::RunBatch(device_.get(), batch_);
    ASSERT_TRUE(result.status.ok()) << result.status;
    for (size_t row = 0; row < rows_.size(); ++row) {
      ASSERT_EQ(result.outputs.at(row), law::SampleRowReference(rows_[row]->request())) << rows_[row]->description();
    }
  }

  std::unique_ptr<VulkanDevice> device_;
  std::vector<std::unique_ptr<RandomRow>> rows_;
  std::vector<std::byte> memory_;
  std::vector<DeviceRow> batch_;
};

TEST_F(HostImportTest, AdjacentRowsAreOneImport) {
  MakeRows(6, 12, 100);
  ExpectRight();
  EXPECT_EQ(imports, 1);
  ExpectRight();
  EXPECT_EQ(imports, 2) << "nothing is kept beyond the batch";
}

TEST_F(HostImportTest, DistantRowsAreSeparateImports) {
  MakeRows(3, 0, 70'000);
  // f16 and bf16 rows have fewer bytes than are worth it.
  int worth = 0;
  for (const auto& row : rows_) worth += row->tensor().size() >= (128 << 10) ? 1 : 0;
  ASSERT_GT(worth, 0);
  ExpectRight();
  EXPECT_EQ(imports, worth);
}

TEST_F(HostImportTest, RowsInPiecesAreCopied) {
  MakeRows(3, 0, 0);
  for (DeviceRow& row : batch_) {
    const ByteSegment whole = row.segments.front();
    row.segments = {{whole.data, 5}, {whole.data + 5, whole.size - 5}};
  }
  ExpectRight();
  EXPECT_EQ(imports, 0);
}

TEST_F(HostImportTest, MemoryDriverRefusesIsCopied) {
  MakeRows(3, 0, 0);
  refused = true;
  ExpectRight();
  EXPECT_EQ(imports, 1);
}

// The validation layer of Vulkan 1.4 complains of an import that the driver has not said it does.
TEST_F(HostImportTest, DriverThatSaysNoIsNotAsked) {
  const auto instance = testing::OpenDriver(
      Lavapipe(), [](vulkan::Api* api) { api->GetPhysicalDeviceExternalBufferProperties = ImportNothing; });
  ASSERT_TRUE(instance.ok()) << instance.status();
  EXPECT_EQ((*instance)->hardware().front().host_import_alignment, 0u);
  EXPECT_FALSE((*instance)->hardware().front().imports_memory);
}

}  // namespace
}  // namespace sortition::devices::host_import_test
