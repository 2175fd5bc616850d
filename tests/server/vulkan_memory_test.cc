// Rows in a Vulkan device's memory, with real drivers on both sides of a real socket: the worker's makes and exports
// the memory, the server's imports it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/transport/device_rows.h"
#include "devices/vulkan/vulkan_device.h"
#include "sortition/client.h"
#include "tests/client/reference_sequence.h"
#include "tests/client/rows.h"
#include "tests/server/test_server.h"
#include "tests/vulkan/drivers.h"
#include "tests/vulkan/exported_memory.h"

namespace sortition::server::vulkan_memory_test {
namespace {

using testing::ExportedMemory;

constexpr uint32_t kVocabulary = 3001;
constexpr uint64_t kRowBytes = kVocabulary * 2;

class VulkanMemoryTest : public ::testing::TestWithParam<testing::Driver> {};

TEST_P(VulkanMemoryTest, RowsEqualReferenceWithoutHostRead) {
  const auto instance = testing::OpenDriver(GetParam());
  if (!instance.ok()) GTEST_SKIP() << instance.status();
  const auto makers = testing::OpenDriver(GetParam());
  ASSERT_TRUE(makers.ok()) << makers.status();
  const auto memory = ExportedMemory::Make(*makers, 64 << 10);
  if (absl::IsUnimplemented(memory.status())) GTEST_SKIP() << memory.status();
  ASSERT_TRUE(memory.ok()) << memory.status();
  devices::VulkanDeviceOptions device_options;
  device_options.name = "cpu0";
  device_options.memory = 1;
  device_options.trusts_makers = true;  // they are this process
  auto device = devices::VulkanDevice::Start(*instance, (*instance)->hardware().front(), device_options);
  ASSERT_TRUE(device.ok()) << device.status();

  Config config = TestConfig();
  config.memory_listen = absl::StrCat("unix:", ::testing::TempDir(), "sortition_", getpid(), "_vulkan.sock");
  config.limits.connection_device_bytes = (*memory)->handle().bytes;
  TestServer server(config, *std::move(device));
  client::ClientOptions options;
  options.targets = {server.target()};
  const auto client = client::Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  std::byte* const data = (*memory)->mapped();
  std::atomic<int> reads = 0;
  const auto shared = (*client)->ShareDevice({.identity = (*memory)->identity(),
                                              .handle = (*memory)->handle(),
                                              .data = data,
                                              .bytes = (*memory)->handle().bytes,
                                              .read = [&](uint64_t offset, std::span<std::byte> to) {
                                                ++reads;
                                                std::memcpy(to.data(), data + offset, to.size());
                                                return absl::OkStatus();
                                              }});
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ((*shared)->sharing(), absl::OkStatus());

  client::SequenceOptions sequence;
  sequence.vocabulary_size = kVocabulary;
  sequence.seed = 5;
  sequence.parameters.set_top_p(0.9f);
  std::vector<std::unique_ptr<client::Sequence>> sequences;
  std::vector<testing::ReferenceSequence> references;
  for (int i = 0; i < 3; ++i) {
    sequence.request_id = absl::StrCat("r", i);
    auto opened = (*client)->Open(sequence);
    ASSERT_TRUE(opened.ok()) << opened.status();
    sequences.push_back(*std::move(opened));
    references.emplace_back(sequence.parameters, 5, 0, kVocabulary, kVocabulary, std::vector<uint32_t>());
  }
  for (uint64_t step = 0; step < 5; ++step) {
    client::Batch batch{v1::DTYPE_BF16, kVocabulary, {}};
    for (size_t i = 0; i < 3; ++i) {
      const std::vector<std::byte> row = testing::MakeRow(v1::DTYPE_BF16, kVocabulary, step * 3 + i);
      std::memcpy(data + i * kRowBytes, row.data(), row.size());
      batch.rows.push_back({sequences[i].get(), data + i * kRowBytes});
    }
    const auto outcomes = (*client)->Step(batch);
    ASSERT_TRUE(outcomes.ok()) << outcomes.status();
    for (size_t i = 0; i < 3; ++i) {
      const auto* const draw = std::get_if<v1::DrawResult>(&(*outcomes)[i]);
      ASSERT_NE(draw, nullptr) << client::Describe(std::get<client::RowError>((*outcomes)[i]));
      EXPECT_EQ(draw->token(), references[i].Step(v1::DTYPE_BF16, data + i * kRowBytes).token());
    }
  }
  EXPECT_EQ(reads, 0);
}

INSTANTIATE_TEST_SUITE_P(Drivers, VulkanMemoryTest, ::testing::ValuesIn(testing::Drivers()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sortition::server::vulkan_memory_test
