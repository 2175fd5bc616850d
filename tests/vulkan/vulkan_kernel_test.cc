// The Vulkan kernels equal the reference in every bit of every answer, on two drivers that have little in common.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "devices/vulkan/vulkan_device.h"
#include "kernels/law/golden/golden_rows.h"
#include "kernels/law/reference.h"
#include "kernels/vulkan/chunk.h"
#include "tests/conformance/comparison.h"
#include "tests/support/run_batch.h"
#include "tests/verifier/published_row.h"
#include "tests/vulkan/drivers.h"

namespace sortition::kernels::vulkan_kernel_test {
namespace {

using devices::BatchOutput;
using devices::DeviceRow;
using devices::VulkanDevice;
using devices::VulkanDeviceOptions;
using testing::ComparedRow;
using testing::Comparison;
using testing::RowKind;
using testing::RunBatch;
using testing::UsualVocabularies;

std::unique_ptr<VulkanDevice> StartOn(const testing::Driver& driver, const VulkanDeviceOptions& options) {
  auto instance = testing::OpenDriver(driver);
  if (!instance.ok()) ADD_FAILURE() << instance.status();
  if (!instance.ok()) return nullptr;
  auto device = VulkanDevice::Start(*instance, (*instance)->hardware().front(), options);
  if (!device.ok()) ADD_FAILURE() << device.status();
  return device.ok() ? *std::move(device) : nullptr;
}

class VulkanBackend : public testing::Backend {
 public:
  explicit VulkanBackend(VulkanDevice* device) : device_(*device) {}
  std::string name() const override { return device_.description().name; }
  uint32_t max_vocabulary() const override { return device_.description().max_vocabulary; }
  Features features() const override { return device_.description().features; }
  size_t batch_rows() const override { return 32; }
  std::vector<RowOutput> Sample(std::span<const ComparedRow> rows) override {
    std::vector<DeviceRow> batch;
    for (const ComparedRow& row : rows) {
      batch.emplace_back();
      batch.back().request = row.request;
      batch.back().segments.push_back({row.tensor.data(), row.tensor.size()});
    }
    BatchOutput result = RunBatch(&device_, std::move(batch));
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_GT(result.kernel_nanoseconds, 0u);
    return std::move(result.outputs);
  }

 private:
  VulkanDevice& device_;
};

class VulkanKernel : public ::testing::TestWithParam<testing::Driver> {
 protected:
  void SetUp() override {
    if (testing::ManifestOf(GetParam()).empty()) {
      GTEST_SKIP() << GetParam().name << " is not installed; Debian's package is " << GetParam().package;
    }
  }

  // Returns the number of rows for this driver: SwiftShader is several times as slow as the other.
  uint64_t Share(uint64_t rows) const { return GetParam().name == "swiftshader" ? rows / 5 : rows; }
};

INSTANTIATE_TEST_SUITE_P(, VulkanKernel, ::testing::ValuesIn(testing::Drivers()),
                         [](const auto& info) { return info.param.name; });

// On one device: a driver may take many seconds to compile its shaders.
TEST_P(VulkanKernel, EqualsReference) {
  const auto started = StartOn(GetParam(), {});
  ASSERT_NE(started, nullptr);
  VulkanBackend backend(started.get());
  EXPECT_GE(backend.max_vocabulary(), 262'144u);
  EXPECT_EQ(backend.features(), kAllFeatures & ~(kFeatureTempered | kFeatureMinKeep | kFeatureBlock | kFeatureRounds));
  Comparison comparison(&backend);
  CompareGoldenRows(&comparison);
  CompareSmallRows(&comparison, RowKind::kPlain, 2'800);
  CompareMiddlingRows(&comparison, RowKind::kPlain, Share(200));
  for (const uint32_t vocabulary : UsualVocabularies()) {
    CompareAtVocabulary(&comparison, RowKind::kPlain, vocabulary, vocabulary <= 1000 ? 20 : 3);
  }
  CompareAtVocabulary(&comparison, RowKind::kPlain, backend.max_vocabulary(), 3);
  // All answers besides the token, and other tasks than a draw.
  CompareSmallRows(&comparison, RowKind::kTasks, Share(900));
  CompareMiddlingRows(&comparison, RowKind::kTasks, Share(60));
  CompareAtVocabulary(&comparison, RowKind::kTasks, 128'256, 3);
  // Any samplers, in any order, in any task.
  CompareSmallRows(&comparison, RowKind::kChained, Share(400));
  CompareSmallRows(&comparison, RowKind::kChainedTasks, Share(400));
  CompareMiddlingRows(&comparison, RowKind::kChained, Share(10));
  CompareMiddlingRows(&comparison, RowKind::kChainedTasks, Share(10));
  CompareAtVocabulary(&comparison, RowKind::kChained, 128'256, 1);
  CompareWhereTopPKeepsMuch(&comparison, Share(10));
  CompareWhereAMaskHidesTheLargest(&comparison, Share(40));
  CompareAroundDistances(&comparison, Share(100));
  CompareTopPAlone(&comparison, Share(100));
  CompareWhereADraftLeavesNoWeight(&comparison, Share(20));
}

// The golden rows, by which a device tests itself, need every form of every shader.
TEST(VulkanShaders, GoldenRowsNeedEach) {
  bool is_needed[vulkan::kShaders][2] = {};
  for (const law::GoldenRow& row : law::GoldenRows()) {
    const std::vector<std::byte> tensor = law::MakeTensor(row);
    const RowRequest request = law::MakeRequest(row, tensor);
    vulkan::Chunk chunk;
    ASSERT_TRUE(chunk.Add(request, 1u << 30));
    for (int shader = 0; shader < vulkan::kShaders; ++shader) {
      for (const bool chained : {false, true}) {
        is_needed[shader][chained] |= chunk.Needs(vulkan::Shader(shader), chained);
      }
    }
  }
  for (int shader = 0; shader < vulkan::kShaders; ++shader) {
    const bool is_of_chains =
        vulkan::Shader(shader) >= vulkan::Shader::kSum && vulkan::Shader(shader) <= vulkan::Shader::kSearch;
    EXPECT_EQ(is_needed[shader][0], !is_of_chains) << shader;
    EXPECT_EQ(is_needed[shader][1], vulkan::TakesWholeRows(vulkan::Shader(shader))) << shader;
  }
}

// Tested on the first driver only: on the other one each device is a minute of compiling shaders.
class VulkanChoices : public VulkanKernel {};

INSTANTIATE_TEST_SUITE_P(, VulkanChoices, ::testing::Values(testing::Drivers().front()),
                         [](const auto& info) { return info.param.name; });

TEST_P(VulkanChoices, AnswersPublishedRows) {
  const auto started = StartOn(GetParam(), {});
  ASSERT_NE(started, nullptr);
  VulkanBackend backend(started.get());
  testing::ComparePublishedRows(&backend);
}

// Other workgroups, smaller buffers, and copies instead of mapped memory: none of them changes the answer.
TEST_P(VulkanChoices, WorkgroupsAndBuffersDoNotMatter) {
  const VulkanDeviceOptions ways[] = {
      {.workgroups = devices::vulkan::Workgroups{256, 64, 64}, .copies = true},
      {.max_buffer_bytes = 300'000, .workgroups = devices::vulkan::Workgroups{64, 256, 256}}};
  for (const VulkanDeviceOptions& options : ways) {
    const auto device = StartOn(GetParam(), options);
    ASSERT_NE(device, nullptr);
    VulkanBackend backend(device.get());
    Comparison comparison(&backend);
    CompareSmallRows(&comparison, RowKind::kMixed, Share(100));
    CompareMiddlingRows(&comparison, RowKind::kMixed, Share(50));
  }
}

// Features that a driver offers beyond the core are used, and may be left alone.
TEST_P(VulkanKernel, VariantsDoNotMatter) {
  const auto instance = testing::OpenDriver(GetParam());
  ASSERT_TRUE(instance.ok()) << instance.status();
  const vulkan::Variant offers = (*instance)->hardware().front().offers;
  for (const vulkan::Variant variant : vulkan::kVariants) {
    if ((variant.int64 && !offers.int64) || (variant.subgroups && !offers.subgroups)) continue;
    SCOPED_TRACE(vulkan::VariantName(variant));
    const auto device = StartOn(GetParam(), {.variant = variant});
    ASSERT_NE(device, nullptr);
    VulkanBackend backend(device.get());
    Comparison comparison(&backend);
    CompareSmallRows(&comparison, RowKind::kMixed, Share(250));
    CompareMiddlingRows(&comparison, RowKind::kMixed, Share(50));
  }
}

}  // namespace
}  // namespace sortition::kernels::vulkan_kernel_test
