// The Vulkan device's ways of failing, and its way back. Failures come from functions of the driver that a test
// replaces.
#include "devices/vulkan/vulkan_device.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "devices/self_test/self_test.h"
#include "devices/vulkan/pipeline_cache_file.h"
#include "kernels/law/reference.h"
#include "tests/conformance/answer_printer.h"
#include "tests/conformance/random_row.h"
#include "tests/support/run_batch.h"
#include "tests/vulkan/drivers.h"

namespace sortition::devices::vulkan_device_test {
namespace {

using kernels::RandomRow;
using vulkan::Api;
using vulkan::Hardware;

// The answer planted in the driver, and the number of calls that still get it.
struct Fault {
  std::atomic<int> device_lost = 0;  // of waits
  std::atomic<int> no_memory = 0;    // of allocations
  std::atomic<int> no_device = 0;    // of creations
  std::atomic<int> no_answer = 0;    // of waits; the last one's device then hangs
};
Fault fault;
std::atomic<VkDevice> hanging = VK_NULL_HANDLE;
std::atomic<int> destroyed_hanging = 0;  // things that a device may still use
std::atomic<int> destroyed_devices = 0;
PFN_vkWaitForFences real_wait;
PFN_vkGetFenceStatus real_status;
PFN_vkDestroyFence real_destroy_fence;
PFN_vkFreeMemory real_free;
PFN_vkDestroyCommandPool real_destroy_pool;
PFN_vkDestroyDevice real_destroy;
PFN_vkAllocateMemory real_allocate;
PFN_vkCreateDevice real_create;

bool Take(std::atomic<int>* count) { return count->load() > 0 && count->fetch_sub(1) > 0; }

VkResult Wait(VkDevice device, uint32_t count, const VkFence* fences, VkBool32 all, uint64_t timeout) {
  const VkResult result = real_wait(device, count, fences, all, timeout);
  if (Take(&fault.no_answer)) {
    hanging = device;
    return VK_TIMEOUT;
  }
  return Take(&fault.device_lost) ? VK_ERROR_DEVICE_LOST : result;
}
VkResult Status(VkDevice device, VkFence fence) {
  return device == hanging ? VK_NOT_READY : real_status(device, fence);
}
void NoteDestroyed(VkDevice device) { destroyed_hanging += device == hanging ? 1 : 0; }
void DestroyFence(VkDevice device, VkFence fence, const VkAllocationCallbacks* callbacks) {
  NoteDestroyed(device);
  real_destroy_fence(device, fence, callbacks);
}
void Free(VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks* callbacks) {
  NoteDestroyed(device);
  real_free(device, memory, callbacks);
}
void DestroyPool(VkDevice device, VkCommandPool pool, const VkAllocationCallbacks* callbacks) {
  NoteDestroyed(device);
  real_destroy_pool(device, pool, callbacks);
}
void Destroy(VkDevice device, const VkAllocationCallbacks* callbacks) {
  NoteDestroyed(device);
  ++destroyed_devices;
  real_destroy(device, callbacks);
}
VkResult Allocate(VkDevice device, const VkMemoryAllocateInfo* info, const VkAllocationCallbacks* callbacks,
                  VkDeviceMemory* memory) {
  return Take(&fault.no_memory) ? VK_ERROR_OUT_OF_DEVICE_MEMORY : real_allocate(device, info, callbacks, memory);
}
VkResult Create(VkPhysicalDevice physical, const VkDeviceCreateInfo* info, const VkAllocationCallbacks* callbacks,
                VkDevice* device) {
  return Take(&fault.no_device) ? VK_ERROR_INITIALIZATION_FAILED : real_create(physical, info, callbacks, device);
}

void ReplaceFunctions(Api* api) {
  real_wait = api->WaitForFences;
  real_allocate = api->AllocateMemory;
  real_create = api->CreateDevice;
  real_status = api->GetFenceStatus;
  real_destroy_fence = api->DestroyFence;
  real_free = api->FreeMemory;
  real_destroy_pool = api->DestroyCommandPool;
  real_destroy = api->DestroyDevice;
  api->WaitForFences = Wait;
  api->GetFenceStatus = Status;
  api->DestroyFence = DestroyFence;
  api->FreeMemory = Free;
  api->DestroyCommandPool = DestroyPool;
  api->DestroyDevice = Destroy;
  api->AllocateMemory = Allocate;
  api->CreateDevice = Create;
}

class VulkanDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const testing::Driver& driver = testing::Drivers().front();
    if (testing::ManifestOf(driver).empty()) GTEST_SKIP() << driver.package << " is not installed";
    const auto instance = testing::OpenDriver(driver, ReplaceFunctions);
    ASSERT_TRUE(instance.ok()) << instance.status();
    instance_ = *instance;
  }
  void TearDown() override {
    device_.reset();
    EXPECT_EQ(fault.device_lost + fault.no_memory + fault.no_device + fault.no_answer, 0)
        << "not all that was to fail has failed";
  }

  absl::Status Start(const VulkanDeviceOptions& options = {}) {
    auto device = VulkanDevice::Start(instance_, instance_->hardware().front(), options);
    if (device.ok()) device_ = *std::move(device);
    return device.status();
  }
  static DeviceRow RowOf(const RandomRow& row) {
    DeviceRow device_row;
    device_row.request = row.request();
    // In two pieces, the first of odd length.
    const size_t cut = row.tensor().size() / 3 | 1;
    device_row.segments.push_back({row.tensor().data(), std::min(cut, row.tensor().size())});
    if (cut < row.tensor().size())
      device_row.segments.push_back({row.tensor().data() + cut, row.tensor().size() - cut});
    return device_row;
  }
  BatchOutput RunBatch() { return testing::RunBatch(device_.get(), {RowOf(row_)}); }
  void ExpectRight() {
    const BatchOutput result = RunBatch();
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.outputs.at(0), law::SampleRowReference(row_.request()));
  }

  const RandomRow row_{4, 1000};
  std::shared_ptr<vulkan::Instance> instance_;
  std::unique_ptr<VulkanDevice> device_;
};

TEST_F(VulkanDeviceTest, LostDeviceRestartsWithNextBatch) {
  ASSERT_TRUE(Start({.batches_in_flight = 1}).ok());
  ExpectRight();
  fault.device_lost = 1;
  const BatchOutput lost = RunBatch();
  EXPECT_TRUE(absl::IsUnavailable(lost.status)) << lost.status;
  EXPECT_TRUE(lost.outputs.empty());
  // The driver does not come back at once.
  fault.no_device = 1;
  EXPECT_TRUE(absl::IsInternal(RunBatch().status));
  ExpectRight();
}

// The device may still run the batch: nothing that the batch uses is freed before the device is done.
TEST_F(VulkanDeviceTest, SilentDeviceKeepsItsMemory) {
  ASSERT_TRUE(Start({.batches_in_flight = 1}).ok());
  ExpectRight();
  destroyed_devices = 0;
  fault.no_answer = 1;
  const BatchOutput unanswered = RunBatch();
  EXPECT_TRUE(absl::IsUnavailable(unanswered.status)) << unanswered.status;
  ExpectRight();  // with a separate context
  fault.device_lost = 1;
  EXPECT_TRUE(absl::IsUnavailable(RunBatch().status));
  ExpectRight();
  EXPECT_EQ(destroyed_hanging, 0);
  EXPECT_EQ(destroyed_devices, 1) << "the one that was lost";
  hanging = VK_NULL_HANDLE;
  fault.device_lost = 1;
  EXPECT_TRUE(absl::IsUnavailable(RunBatch().status));
  ExpectRight();
  EXPECT_EQ(destroyed_devices, 3) << "the one that has answered, too";
}

TEST_F(VulkanDeviceTest, MissingMemoryFailsBatchAlone) {
  ASSERT_TRUE(Start({.batches_in_flight = 1}).ok());
  fault.no_memory = 1;
  EXPECT_TRUE(absl::IsResourceExhausted(RunBatch().status));
  ExpectRight();
}

TEST_F(VulkanDeviceTest, DeviceCreationFailureIsAStartError) {
  fault.no_device = 1;
  EXPECT_TRUE(absl::IsInternal(Start()));
}

TEST_F(VulkanDeviceTest, RowLargerThanBufferFailsBatch) {
  ASSERT_TRUE(Start({.max_buffer_bytes = 1000}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(RunBatch().status));
}

TEST_F(VulkanDeviceTest, ConcurrentBatchesAndDestruction) {
  ASSERT_TRUE(Start({.batches_in_flight = 3}).ok());
  const kernels::RowOutput expected = law::SampleRowReference(row_.request());
  constexpr int kBatches = 40;
  std::atomic<int> right = 0;
  absl::BlockingCounter done(kBatches);
  for (int i = 0; i < kBatches; ++i) {
    device_->Submit({RowOf(row_), RowOf(row_)}, [&](BatchOutput result) {
      right += result.status.ok() && result.outputs == std::vector(2, expected);
      done.DecrementCount();
    });
  }
  device_.reset();  // finishes the submitted batches
  done.Wait();
  EXPECT_EQ(right, kBatches);
}

class VulkanCacheTest : public VulkanDeviceTest {
 protected:
  void SetUp() override {
    VulkanDeviceTest::SetUp();
    // Tests of this fixture run at the same time, each in its process.
    folder_ = std::filesystem::path(::testing::TempDir()) / absl::StrCat("vulkan_cache_", getpid());
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override {
    VulkanDeviceTest::TearDown();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  // False for lavapipe since Mesa 26.2: its cache ends within the header.
  bool HasCache() const { return instance_->hardware().front().driver_version < VK_MAKE_API_VERSION(0, 26, 2, 0); }
  std::filesystem::path folder_;
};

TEST_F(VulkanCacheTest, WrittenOnceAndReadAtNextStart) {
  ASSERT_TRUE(Start({.pipeline_cache_folder = folder_}).ok());
  EXPECT_TRUE(device_->cache_status().ok()) << device_->cache_status();
  const Hardware& hardware = instance_->hardware().front();
  const std::filesystem::path path = vulkan::PipelineCachePath(folder_, hardware);
  ASSERT_EQ(std::filesystem::exists(path), HasCache());
  if (!HasCache()) return ExpectRight();
  const auto written = std::filesystem::last_write_time(path);
  // The header alone: these drivers put nothing more into it.
  EXPECT_GE(std::filesystem::file_size(path), sizeof(VkPipelineCacheHeaderVersionOne));
  device_.reset();
  ASSERT_TRUE(Start({.pipeline_cache_folder = folder_}).ok());
  EXPECT_EQ(std::filesystem::last_write_time(path), written);
  ExpectRight();
}

TEST_F(VulkanCacheTest, OtherDriversCacheIsIgnoredAndReplaced) {
  const Hardware& hardware = instance_->hardware().front();
  const std::string path = vulkan::PipelineCachePath(folder_, hardware);
  std::ofstream(path) << std::string(5000, 'x');
  EXPECT_TRUE(vulkan::LoadPipelineCache(path, hardware).empty());
  ASSERT_TRUE(Start({.pipeline_cache_folder = folder_}).ok());
  EXPECT_EQ(vulkan::LoadPipelineCache(path, hardware).empty(), !HasCache());
  ExpectRight();
}

TEST_F(VulkanCacheTest, MissingFolderIsReported) {
  ASSERT_TRUE(Start({.pipeline_cache_folder = folder_ / "nowhere"}).ok());
  EXPECT_EQ(absl::IsUnavailable(device_->cache_status()), HasCache()) << device_->cache_status();
  ExpectRight();
}

TEST_F(VulkanDeviceTest, PassesSelfTest) {
  ASSERT_TRUE(Start().ok());
  const SelfTest self_test;
  const SelfTest::Verdict verdict = self_test.Run(device_.get(), absl::Minutes(2));
  EXPECT_TRUE(verdict.status.ok()) << verdict.status;
  EXPECT_EQ(verdict.timings.size(), 3u);
}

TEST(VulkanLoader, MissingLoaderIsReported) {
  EXPECT_TRUE(absl::IsNotFound(Api::Load("libnosuchvulkan.so.1").status()));
  EXPECT_TRUE(absl::IsNotFound(Api::Load("libm.so.6").status())) << "a library, but no loader";
}

TEST(VulkanLoader, NoDriverMeansNoDevice) {
  const testing::Driver nobody{"nobody", "", {}};
  EXPECT_TRUE(absl::IsNotFound(testing::OpenDriver(nobody).status()));
}

}  // namespace
}  // namespace sortition::devices::vulkan_device_test
