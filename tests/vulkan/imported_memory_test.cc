// Rows in memory that another logical device, or another process, has allocated and shared: the reference's outputs,
// even if the device or the maker is lost. Other memory is refused.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "devices/vulkan/vulkan_device.h"
#include "kernels/law/reference.h"
#include "service/memory/packet.h"
#include "tests/conformance/answer_printer.h"
#include "tests/conformance/random_row.h"
#include "tests/support/run_batch.h"
#include "tests/support/scale.h"
#include "tests/vulkan/drivers.h"
#include "tests/vulkan/exported_memory.h"

namespace sortition::devices::imported_memory_test {
namespace {

using kernels::OptionsKind;
using kernels::RandomRow;
using testing::ExportedMemory;

constexpr uint32_t kMemory = 7;

// Waits that shall end with the loss of the device, or without its answer, and the result that the driver shall return
// for imports.
std::atomic<int> losses;
std::atomic<int> hangs;
std::atomic<bool> is_hanging;
std::atomic<int> destroyed_hanging;  // things that a device may still use
std::atomic<VkResult> refusal;
PFN_vkWaitForFences real_wait;
PFN_vkGetFenceStatus real_status;
PFN_vkDestroyFence real_destroy_fence;
PFN_vkFreeMemory real_free;
PFN_vkAllocateMemory real_import_allocate;

VkResult Wait(VkDevice device, uint32_t count, const VkFence* fences, VkBool32 all, uint64_t timeout) {
  const VkResult result = real_wait(device, count, fences, all, timeout);
  if (hangs > 0 && hangs.fetch_sub(1) > 0) {
    is_hanging = true;
    return VK_TIMEOUT;
  }
  return losses > 0 && losses.fetch_sub(1) > 0 ? VK_ERROR_DEVICE_LOST : result;
}

VkResult Status(VkDevice device, VkFence fence) { return is_hanging ? VK_NOT_READY : real_status(device, fence); }

void DestroyFence(VkDevice device, VkFence fence, const VkAllocationCallbacks* callbacks) {
  destroyed_hanging += is_hanging ? 1 : 0;
  real_destroy_fence(device, fence, callbacks);
}

void Free(VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks* callbacks) {
  destroyed_hanging += is_hanging ? 1 : 0;
  real_free(device, memory, callbacks);
}

// A driver that refuses memory leaves the descriptor to its caller.
VkResult AllocateOrRefuse(VkDevice device, const VkMemoryAllocateInfo* info, const VkAllocationCallbacks* callbacks,
                          VkDeviceMemory* memory) {
  const auto* next = static_cast<const VkBaseInStructure*>(info->pNext);
  const bool is_import = next != nullptr && next->sType == VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR;
  return is_import && refusal != VK_SUCCESS ? refusal.load() : real_import_allocate(device, info, callbacks, memory);
}

// But for the one that SwiftShader's compiler keeps for good.
int OpenDescriptors() {
  int count = 0;
  for (const auto& descriptor : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string file = std::filesystem::read_symlink(descriptor, error);
    count += file.find("swiftshader_jit") == std::string::npos ? 1 : 0;
  }
  return count;
}

class ImportedMemoryTest : public ::testing::TestWithParam<testing::Driver> {
 protected:
  void SetUp() override {
    if (testing::ManifestOf(GetParam()).empty()) GTEST_SKIP() << GetParam().package << " is not installed";
    const auto instance = testing::OpenDriver(GetParam(), [](vulkan::Api* api) {
      real_wait = api->WaitForFences;
      real_status = api->GetFenceStatus;
      real_destroy_fence = api->DestroyFence;
      real_free = api->FreeMemory;
      real_import_allocate = api->AllocateMemory;
      api->WaitForFences = Wait;
      api->GetFenceStatus = Status;
      api->DestroyFence = DestroyFence;
      api->FreeMemory = Free;
      api->AllocateMemory = AllocateOrRefuse;
    });
    ASSERT_TRUE(instance.ok()) << instance.status();
    instance_ = *instance;
    if (!instance_->hardware().front().imports_memory) {
      GTEST_SKIP() << GetParam().name << " has no VK_KHR_external_memory_fd";
    }
    const auto maker = testing::OpenDriver(GetParam());
    ASSERT_TRUE(maker.ok()) << maker.status();
    maker_ = *maker;
    losses = 0;
    refusal = VK_SUCCESS;
    level_ = OpenDescriptors();
  }
  void TearDown() override {
    device_.reset();
    if (IsSkipped()) return;
    EXPECT_EQ(OpenDescriptors(), level_);
  }

  void Start(VulkanDeviceOptions options = {}) {
    options.memory = kMemory;
    options.trusts_makers = true;
    auto device = VulkanDevice::Start(instance_, instance_->hardware().front(), options);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }
  // Zeros.
  std::unique_ptr<ExportedMemory> Export(uint64_t bytes) {
    auto memory = ExportedMemory::Make(maker_, bytes);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.ok() ? *std::move(memory) : nullptr;
  }
  std::shared_ptr<const ImportedMemory> Import(const MemoryHandle& handle) {
    auto memory = device_->Import(handle);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.ok() ? *std::move(memory) : nullptr;
  }
  static DeviceRow RowAt(const RandomRow& row, const ImportedMemory& memory, size_t offset) {
    DeviceRow device_row;
    device_row.request = row.request();
    device_row.request.logits = nullptr;
    device_row.segments.push_back({memory.bytes().data() + offset, row.tensor().size()});
    device_row.memory = memory.memory();
    device_row.imported = &memory;
    device_row.may_change = true;
    return device_row;
  }
  static DeviceRow RowOnHost(const RandomRow& row) {
    DeviceRow device_row;
    device_row.request = row.request();
    device_row.segments.push_back({row.tensor().data(), row.tensor().size()});
    return device_row;
  }
  BatchOutput RunBatch(std::vector<DeviceRow> rows) { return testing::RunBatch(device_.get(), std::move(rows)); }
  void ExpectRight(const RandomRow& row, const ImportedMemory& memory, size_t offset) {
    const BatchOutput result = RunBatch({RowAt(row, memory, offset)});
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.outputs.at(0), law::SampleRowReference(row.request())) << row.description();
  }
  // Random rows of all types, at any offset, together with rows on the host, in one batch.
  enum class Tasks { kDraws, kAny };
  void ExpectReference(Tasks tasks, uint64_t first_seed, int count, uint32_t most_tokens) {
    std::vector<std::unique_ptr<RandomRow>> rows;
    size_t bytes = 0;
    for (int i = 0; i < count; ++i) {
      const uint64_t seed = first_seed + uint64_t(i);
      const uint32_t vocabulary = 1 + uint32_t(seed * 7919 % most_tokens);
      const bool is_any = tasks == Tasks::kAny && i % 2 == 1;
      const bool is_chained = is_any && i % 4 == 1;
      rows.push_back(
          std::make_unique<RandomRow>(seed, vocabulary, is_chained ? OptionsKind::kChained : OptionsKind::kPlain));
      if (is_any) rows.back()->AskForMore();
      bytes += rows.back()->tensor().size() + 1;
    }
    const auto exported = Export(bytes);
    const auto memory = Import(exported->handle());
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(memory->bytes().size(), exported->handle().bytes);
    std::vector<DeviceRow> batch;
    size_t at = 0;
    for (int i = 0; i < count; ++i) {
      const std::vector<std::byte>& tensor = rows[size_t(i)]->tensor();
      if (i % 5 == 3) {
        batch.push_back(RowOnHost(*rows[size_t(i)]));
        continue;
      }
      std::memcpy(exported->mapped() + at, tensor.data(), tensor.size());
      batch.push_back(RowAt(*rows[size_t(i)], *memory, at));
      at += tensor.size() + 1;  // element types alternate, and so do odd and even offsets
    }
    const BatchOutput result = RunBatch(std::move(batch));
    ASSERT_TRUE(result.status.ok()) << result.status;
    ASSERT_EQ(result.outputs.size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      ASSERT_EQ(result.outputs[i], law::SampleRowReference(rows[i]->request())) << rows[i]->description();
    }
  }
  void ExpectRefused(MemoryHandle handle, int descriptor, const std::string& field) {
    handle.descriptor = descriptor;
    const auto memory = device_->Import(handle);
    EXPECT_TRUE(absl::IsInvalidArgument(memory.status())) << memory.status();
    EXPECT_EQ(memory.status().message().substr(0, field.size()), field) << memory.status();
  }

  std::shared_ptr<vulkan::Instance> instance_;
  std::shared_ptr<vulkan::Instance> maker_;
  std::unique_ptr<VulkanDevice> device_;
  int level_ = 0;  // number of descriptors; every test returns to it
  const RandomRow row_{4, 1000};
};

INSTANTIATE_TEST_SUITE_P(, ImportedMemoryTest, ::testing::ValuesIn(testing::Drivers()),
                         [](const auto& info) { return info.param.name; });

TEST_P(ImportedMemoryTest, RowsEqualReference) {
  Start();
  for (uint64_t batch = 0; batch < testing::Scaled(2); ++batch) {
    ExpectReference(Tasks::kAny, 20'000'000 + 100 * batch, 60, 300);
  }
  ExpectReference(Tasks::kDraws, 21'000'000, 5, 40'000);
}

TEST_P(ImportedMemoryTest, RowsBesideHostCopiesEqualReference) {
  Start({.copies = true});
  ExpectReference(Tasks::kDraws, 22'000'000, 40, 300);
  ExpectReference(Tasks::kDraws, 23'000'000, 5, 40'000);  // some of the host's large enough to be fetched
}

TEST_P(ImportedMemoryTest, RowsInChunksEqualReference) {
  Start({.max_buffer_bytes = 100'000});
  ExpectReference(Tasks::kDraws, 24'000'000, 60, 3'000);
}

TEST_P(ImportedMemoryTest, AlternatingMemoriesAndSharedBytes) {
  Start({.batches_in_flight = 2});
  const size_t size = row_.tensor().size();
  const auto exported = Export(2 * size);
  const auto other_exported = Export(size);
  const auto memory = Import(exported->handle());
  const auto twice = Import(exported->handle());
  const auto other = Import(other_exported->handle());
  ASSERT_TRUE(memory != nullptr && twice != nullptr && other != nullptr);
  const RandomRow changed(5, 1000);
  std::memcpy(exported->mapped(), row_.tensor().data(), size);
  std::memcpy(exported->mapped() + size, row_.tensor().data(), size);
  std::memcpy(other_exported->mapped(), row_.tensor().data(), size);
  const std::vector<DeviceRow> batch = {RowAt(row_, *memory, 0), RowAt(row_, *other, 0), RowAt(row_, *memory, 0),
                                        RowAt(row_, *memory, size), RowAt(row_, *twice, size)};
  const std::vector expected(batch.size(), law::SampleRowReference(row_.request()));
  constexpr int kBatches = 20;
  std::atomic<int> right = 0;
  absl::BlockingCounter done(kBatches);
  for (int i = 0; i < kBatches; ++i) {
    device_->Submit(batch, [&](BatchOutput result) {
      right += result.status.ok() && result.outputs == expected;
      done.DecrementCount();
    });
  }
  std::vector<std::byte> read(size);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(other->Read(0, read).ok());
    EXPECT_EQ(read, row_.tensor());
  }
  done.Wait();
  EXPECT_EQ(right, kBatches);
  // Later writes of its maker are seen.
  ASSERT_LE(changed.tensor().size(), exported->handle().bytes);
  std::memcpy(exported->mapped(), changed.tensor().data(), changed.tensor().size());
  ExpectRight(changed, *memory, 0);
}

TEST_P(ImportedMemoryTest, HostReadsItWithoutDevice) {
  Start();
  constexpr size_t kBytes = (8 << 20) + 4099;  // more than is copied at once
  const auto exported = Export(kBytes);
  auto memory = Import(exported->handle());
  ASSERT_NE(memory, nullptr);
  for (size_t i = 0; i < kBytes; ++i) exported->mapped()[i] = std::byte(i * i >> 7);
  const struct { size_t offset, size; } ranges[] = {{0, kBytes}, {1, 3}, {4097, 100'001}, {kBytes - 1, 1}, {5, 0}};
  for (const bool gone : {false, true}) {
    if (gone) device_.reset();
    for (const auto& [offset, size] : ranges) {
      std::vector<std::byte> read(size);
      const absl::Status status = memory->Read(offset, read);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(std::equal(read.begin(), read.end(), exported->mapped() + offset)) << offset << " " << size;
    }
  }
  // Its addresses are its own as long as it lives.
  const auto addresses = memory->bytes();
  std::vector<unsigned char> pages(addresses.size() / 4096 + 1);
  auto* const first = const_cast<std::byte*>(addresses.data());
  EXPECT_EQ(mincore(first, addresses.size(), pages.data()), 0);
  memory.reset();
  EXPECT_EQ(mincore(first, addresses.size(), pages.data()), -1);
}

TEST_P(ImportedMemoryTest, OutlivesALostContext) {
  Start({.batches_in_flight = 1});
  const auto exported = Export(row_.tensor().size());
  const auto memory = Import(exported->handle());
  ASSERT_NE(memory, nullptr);
  std::memcpy(exported->mapped(), row_.tensor().data(), row_.tensor().size());
  ExpectRight(row_, *memory, 0);
  losses = 1;
  EXPECT_TRUE(absl::IsUnavailable(RunBatch({RowAt(row_, *memory, 0)}).status));
  ExpectRight(row_, *memory, 0);
  // A read that loses the device, and one that finds it lost.
  std::vector<std::byte> read(row_.tensor().size());
  losses = 1;
  EXPECT_TRUE(absl::IsUnavailable(memory->Read(0, read)));
  ASSERT_TRUE(memory->Read(0, read).ok());
  EXPECT_EQ(read, row_.tensor());
  ExpectRight(row_, *memory, 0);
}

// The process reads the row from its standard input; its standard output is the socket that carries the memory.
TEST_P(ImportedMemoryTest, OutlivesItsProcess) {
  Start();
  int input[2], output[2];
  ASSERT_EQ(pipe2(input, O_CLOEXEC), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, output), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input[0], 0);
  posix_spawn_file_actions_adddup2(&actions, output[1], 1);
  char* const arguments[] = {const_cast<char*>(SORTITION_MEMORY_MAKER), nullptr};
  pid_t maker;
  ASSERT_EQ(posix_spawn(&maker, SORTITION_MEMORY_MAKER, &actions, nullptr, arguments, environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(input[0]);
  close(output[1]);
  const size_t size = row_.tensor().size();
  EXPECT_EQ(write(input[1], row_.tensor().data(), size), ssize_t(size));
  close(input[1]);

  MemoryHandle handle;
  service::Descriptor descriptor;
  const std::span<char> bytes(reinterpret_cast<char*>(&handle), sizeof(handle));
  const ssize_t received = service::ReceivePacket(output[0], bytes, &descriptor, 0);
  close(output[0]);
  int status = -1;
  ASSERT_EQ(waitpid(maker, &status, 0), maker);
  ASSERT_EQ(status, 0);
  ASSERT_EQ(received, ssize_t(sizeof(handle)));
  ASSERT_TRUE(descriptor);

  handle.descriptor = descriptor.get();
  const auto memory = Import(handle);
  descriptor = service::Descriptor();
  ASSERT_NE(memory, nullptr);
  ExpectRight(row_, *memory, 0);
}

TEST_P(ImportedMemoryTest, ForeignDescriptorIsRefused) {
  Start();
  const auto exported = Export(1 << 20);
  const MemoryHandle handle = exported->handle();
  MemoryHandle wrong = handle;
  for (const uint32_t type : {32u, ~0u}) {
    wrong.memory_type = type;
    ExpectRefused(wrong, handle.descriptor, "memory_type: ");
  }
  wrong = handle;
  for (const uint64_t bytes : {uint64_t{0}, handle.bytes + (1 << 20), uint64_t{1} << 62, ~uint64_t{0}}) {
    wrong.bytes = bytes;
    ExpectRefused(wrong, handle.descriptor, "bytes: ");
  }
  ExpectRefused(handle, -1, "descriptor: ");
  ExpectRefused(handle, 1'000'000, "descriptor: ");

  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  const int zero = open("/dev/zero", O_RDWR | O_CLOEXEC);
  const int program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  for (const int descriptor : {ends[0], ends[1], null, zero, program}) {
    ASSERT_GE(descriptor, 0);
    ExpectRefused(handle, descriptor, "descriptor: ");
    close(descriptor);
  }
  const int memory = memfd_create("short", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(memory, ssize_t(handle.bytes) - 1), 0);
  ExpectRefused(handle, memory, "bytes: ");
  // SwiftShader's memory is any memory, and lavapipe's has a mark.
  ASSERT_EQ(ftruncate(memory, ssize_t(handle.bytes)), 0);
  if (GetParam().name == "lavapipe") ExpectRefused(handle, memory, "descriptor: ");
  close(memory);
}

class ImportedMemoryOnOneDriverTest : public ImportedMemoryTest {};

// One driver suffices for these tests.
INSTANTIATE_TEST_SUITE_P(, ImportedMemoryOnOneDriverTest, ::testing::Values(testing::Drivers().front()),
                         [](const auto& info) { return info.param.name; });

// Resources of a read live on while the device may use them, the memory's buffer among them.
TEST_P(ImportedMemoryOnOneDriverTest, UnansweredReadKeepsItsMemory) {
  Start({.batches_in_flight = 1});
  const auto exported = Export(row_.tensor().size());
  auto memory = Import(exported->handle());
  ASSERT_NE(memory, nullptr);
  std::vector<std::byte> read(row_.tensor().size());
  hangs = 1;
  EXPECT_TRUE(absl::IsUnavailable(memory->Read(0, read)));
  memory.reset();
  EXPECT_EQ(destroyed_hanging, 0);
  is_hanging = false;
}

TEST_P(ImportedMemoryOnOneDriverTest, TakenOnlyIfEnabled) {
  const vulkan::Hardware& hardware = instance_->hardware().front();
  const auto exported = Export(4096);
  ASSERT_TRUE(hardware.is_processor);
  // Devices without separate memory, or without trust in files.
  for (const VulkanDeviceOptions& options :
       {VulkanDeviceOptions{.trusts_makers = true}, VulkanDeviceOptions{.memory = kMemory}}) {
    const auto device = VulkanDevice::Start(instance_, hardware, options);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ((*device)->description().memory, options.memory);
    EXPECT_EQ((*device)->description().identity, MemoryIdentity());
    EXPECT_TRUE(absl::IsUnimplemented((*device)->Import(exported->handle()).status()));
  }
  Start();
  EXPECT_EQ(device_->description().memory, kMemory);
  EXPECT_EQ(device_->description().identity, exported->identity());
  EXPECT_EQ(device_->description().identity.device_uuid.size(), 16u);
  EXPECT_EQ(device_->description().identity.driver_uuid.size(), 16u);
  MemoryHandle handle = exported->handle();
  handle.kind = MemoryKind::kCuda;
  EXPECT_TRUE(absl::IsUnimplemented(device_->Import(handle).status()));
}

TEST_P(ImportedMemoryOnOneDriverTest, DriversRefusalLeavesNothingBehind) {
  Start({.batches_in_flight = 1});
  const auto exported = Export(row_.tensor().size());
  std::memcpy(exported->mapped(), row_.tensor().data(), row_.tensor().size());
  const auto memory = Import(exported->handle());
  ASSERT_NE(memory, nullptr);
  const int level = OpenDescriptors();
  refusal = VK_ERROR_INVALID_EXTERNAL_HANDLE;
  ExpectRefused(exported->handle(), exported->handle().descriptor, "descriptor: ");
  refusal = VK_ERROR_OUT_OF_HOST_MEMORY;
  EXPECT_TRUE(absl::IsResourceExhausted(device_->Import(exported->handle()).status()));
  EXPECT_EQ(OpenDescriptors(), level);
  // The same if it is to be imported again.
  std::vector<std::byte> read(row_.tensor().size());
  losses = 1;
  EXPECT_TRUE(absl::IsUnavailable(memory->Read(0, read)));
  EXPECT_TRUE(absl::IsResourceExhausted(RunBatch({RowAt(row_, *memory, 0)}).status));
  EXPECT_TRUE(absl::IsResourceExhausted(memory->Read(0, read)));
  refusal = VK_SUCCESS;
  ExpectRight(row_, *memory, 0);
}

}  // namespace
}  // namespace sortition::devices::imported_memory_test
