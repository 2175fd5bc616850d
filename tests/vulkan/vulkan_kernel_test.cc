// The Vulkan kernels equal the reference in every bit of every answer, on two drivers that have little in common.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "devices/vulkan/vulkan_device.h"
#include "kernels/law/golden_rows.h"
#include "kernels/law/reference.h"
#include "kernels/vulkan/slice.h"
#include "tests/conformance/answer_printer.h"
#include "tests/conformance/random_row.h"
#include "tests/support/run_batch.h"
#include "tests/support/scale.h"
#include "tests/vulkan/drivers.h"

namespace sortition::kernels {
namespace {

using devices::BatchOutput;
using devices::DeviceRow;
using devices::VulkanDevice;
using devices::VulkanDeviceOptions;
using testing::RunBatch;

std::unique_ptr<VulkanDevice> StartOn(const testing::Driver& driver, const VulkanDeviceOptions& options) {
  auto instance = testing::OpenDriver(driver);
  if (!instance.ok()) ADD_FAILURE() << instance.status();
  if (!instance.ok()) return nullptr;
  auto device = VulkanDevice::Start(*instance, (*instance)->hardware().front(), options);
  if (!device.ok()) ADD_FAILURE() << device.status();
  return device.ok() ? *std::move(device) : nullptr;
}

DeviceRow Whole(const RowRequest& request, const std::vector<std::byte>& tensor) {
  DeviceRow row;
  row.request = request;
  row.segments.push_back({tensor.data(), tensor.size()});
  return row;
}

std::unique_ptr<RandomRow> RowInAnyTask(uint64_t seed, uint32_t vocabulary, RowOptions options) {
  auto row = std::make_unique<RandomRow>(seed, vocabulary, options);
  row->AskForMore();
  return row;
}

// Most of them as rows are every day; the others in any task, some with a chain.
std::unique_ptr<RandomRow> AnyRow(uint64_t seed, uint32_t vocabulary) {
  if (seed % 3 != 0) return std::make_unique<RandomRow>(seed, vocabulary);
  return RowInAnyTask(seed, vocabulary, seed % 2 == 0 ? RowOptions::kChained : RowOptions::kPlain);
}

// Compares rows with the reference, a batch at a time.
class Comparison {
 public:
  explicit Comparison(VulkanDevice* device) : device_(device) {}
  ~Comparison() { Flush(); }

  void Add(std::unique_ptr<RandomRow> row) {
    if (row->request().live_vocabulary > device_->description().max_vocabulary) return;
    if ((FeaturesOf(row->request()) & ~device_->description().features) != 0) return;
    bytes_ += row->tensor().size();
    rows_.push_back(std::move(row));
    ++count_;
    if (rows_.size() == 32 || bytes_ > 2u << 20) Flush();
  }
  int count() const { return count_; }

  void Flush() {
    if (rows_.empty()) return;
    std::vector<DeviceRow> batch;
    for (const auto& row : rows_) batch.push_back(Whole(row->request(), row->tensor()));
    const BatchOutput result = RunBatch(device_, std::move(batch));
    ASSERT_TRUE(result.status.ok()) << result.status;
    ASSERT_EQ(result.outputs.size(), rows_.size());
    EXPECT_GT(result.kernel_nanoseconds, 0u);
    for (size_t i = 0; i < rows_.size(); ++i) {
      ASSERT_EQ(result.outputs[i], law::SampleRowReference(rows_[i]->request())) << rows_[i]->description();
    }
    rows_.clear();
    bytes_ = 0;
  }

 private:
  VulkanDevice* const device_;
  std::vector<std::unique_ptr<RandomRow>> rows_;
  size_t bytes_ = 0;
  int count_ = 0;
};

class VulkanKernel : public ::testing::TestWithParam<testing::Driver> {
 protected:
  // SwiftShader is several times as slow as the other.
  uint64_t Rows(uint64_t rows) const { return testing::Scaled(GetParam().name == "swiftshader" ? rows / 5 : rows); }
  void SetUp() override {
    if (testing::ManifestOf(GetParam()).empty()) {
      GTEST_SKIP() << GetParam().name << " is not installed; Debian's package is " << GetParam().package;
    }
  }

  // The shapes, options and vocabularies of the CPU kernel's test, fewer of each.
  void CompareEverydayRows(VulkanDevice* device) const {
    SCOPED_TRACE("everyday rows");
    Comparison comparison(device);
    for (uint64_t seed = testing::Scaled(2800); seed > 0; --seed) {
      comparison.Add(std::make_unique<RandomRow>(seed, 1 + uint32_t(seed * 7919 % 400)));
    }
    for (uint64_t seed = Rows(200); seed > 0; --seed) {
      comparison.Add(std::make_unique<RandomRow>(1'000'000 + seed, 400 + uint32_t(seed * 104729 % 12'000)));
    }
    for (const uint32_t vocabulary : {1, 2, 63, 64, 65, 127, 128, 1000, 32768, 50257, 128256, 151936, 262144}) {
      for (uint64_t seed = 0; seed < testing::Scaled(vocabulary <= 1000 ? 20 : 3); ++seed) {
        comparison.Add(std::make_unique<RandomRow>(2'000'000 + seed, vocabulary));
      }
    }
    comparison.Flush();
    EXPECT_GE(comparison.count(), int(testing::Scaled(2900)));
  }

  // Everything beside the token that can be asked for, and other tasks than a draw.
  void CompareTasks(VulkanDevice* device) const {
    SCOPED_TRACE("tasks");
    Comparison comparison(device);
    const auto add = [&](uint64_t seed, uint32_t vocabulary) {
      comparison.Add(RowInAnyTask(seed, vocabulary, RowOptions::kPlain));
    };
    for (uint64_t seed = Rows(900); seed > 0; --seed) add(7'000'000 + seed, 1 + uint32_t(seed * 7919 % 400));
    for (uint64_t seed = Rows(30); seed > 0; --seed) {
      add(8'000'000 + seed, 400 + uint32_t(seed * 104729 % 30'000));
    }
    for (uint64_t seed = testing::Scaled(3); seed > 0; --seed) add(9'000'000 + seed, 128'256);
    comparison.Flush();
    EXPECT_GE(comparison.count(), int(Rows(900)));
  }

  // Any samplers, in any order, in any task.
  void CompareChains(VulkanDevice* device) const {
    SCOPED_TRACE("chains");
    Comparison comparison(device);
    const auto add = [&](uint64_t seed, uint32_t vocabulary) {
      if (seed % 2 == 0) comparison.Add(std::make_unique<RandomRow>(seed, vocabulary, RowOptions::kChained));
      if (seed % 2 == 1) comparison.Add(RowInAnyTask(seed, vocabulary, RowOptions::kChained));
    };
    for (uint64_t seed = Rows(800); seed > 0; --seed) add(10'000'000 + seed, 1 + uint32_t(seed * 7919 % 400));
    for (uint64_t seed = Rows(20); seed > 0; --seed) {
      add(11'000'000 + seed, 400 + uint32_t(seed * 104729 % 12'000));
    }
    for (uint64_t seed = testing::Scaled(1); seed > 0; --seed) add(12'000'000 + seed, 128'256);
    comparison.Flush();
    EXPECT_GE(comparison.count(), int(Rows(800)));
  }

  void CompareGoldenRows(VulkanDevice* device) const {
    for (const law::GoldenRow& row : law::GoldenRows()) {
      const std::vector<std::byte> tensor = law::TensorOf(row);
      const RowRequest request = law::RequestOf(row, tensor);
      if ((FeaturesOf(request) & ~device->description().features) != 0) continue;
      const BatchOutput result = RunBatch(device, {Whole(request, tensor)});
      ASSERT_TRUE(result.status.ok()) << result.status;
      ASSERT_EQ(result.outputs.at(0), law::SampleRowReference(request)) << row.name;
    }
  }

  void CompareTheLargestVocabulary(VulkanDevice* device) const {
    SCOPED_TRACE("the largest vocabulary");
    const uint32_t vocabulary = device->description().max_vocabulary;
    EXPECT_GE(vocabulary, 262'144u);
    Comparison comparison(device);
    for (uint64_t seed = 7; seed < 10; ++seed) comparison.Add(std::make_unique<RandomRow>(seed, vocabulary));
  }
};

INSTANTIATE_TEST_SUITE_P(, VulkanKernel, ::testing::ValuesIn(testing::Drivers()),
                         [](const auto& info) { return info.param.name; });

// On one device: a driver may take many seconds to compile its shaders.
TEST_P(VulkanKernel, EqualsReference) {
  const auto started = StartOn(GetParam(), {});
  ASSERT_NE(started, nullptr);
  VulkanDevice* const device = started.get();
  CompareGoldenRows(device);
  CompareEverydayRows(device);
  CompareTasks(device);
  CompareChains(device);
  CompareTheLargestVocabulary(device);
}

// In each form that rows can ask for: by them a device proves itself.
TEST(VulkanShaders, GoldenRowsNeedEach) {
  bool is_needed[vulkan::kShaders][2] = {};
  for (const law::GoldenRow& row : law::GoldenRows()) {
    const std::vector<std::byte> tensor = law::TensorOf(row);
    const RowRequest request = law::RequestOf(row, tensor);
    vulkan::Slice slice;
    ASSERT_TRUE(slice.Add(request, 1u << 30));
    for (int shader = 0; shader < vulkan::kShaders; ++shader) {
      for (const bool chained : {false, true}) {
        is_needed[shader][chained] |= slice.Needs(vulkan::Shader(shader), chained);
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

// Of our own choices, on the first driver: on the other one each choice is half a minute of compiling shaders.
class VulkanChoices : public VulkanKernel {};

INSTANTIATE_TEST_SUITE_P(, VulkanChoices, ::testing::Values(testing::Drivers().front()),
                         [](const auto& info) { return info.param.name; });

// Other workgroups, smaller buffers, and copies where the host could map: none of them can be told from the answer.
TEST_P(VulkanChoices, WorkgroupsAndBuffersDoNotMatter) {
  const VulkanDeviceOptions ways[] = {
      {.workgroups = devices::vulkan::Workgroups{256, 64, 64}, .copies = true},
      {.max_buffer_bytes = 300'000, .workgroups = devices::vulkan::Workgroups{64, 256, 256}}};
  for (const VulkanDeviceOptions& options : ways) {
    const auto device = StartOn(GetParam(), options);
    ASSERT_NE(device, nullptr);
    Comparison comparison(device.get());
    for (uint64_t seed = Rows(150); seed > 0; --seed) {
      comparison.Add(AnyRow(4'000'000 + seed, 1 + uint32_t(seed * 7919 % 3000)));
    }
  }
}

// What a driver offers beyond the core is made use of, and may be left alone.
TEST_P(VulkanKernel, VariantsDoNotMatter) {
  const auto instance = testing::OpenDriver(GetParam());
  ASSERT_TRUE(instance.ok()) << instance.status();
  const vulkan::Variant offers = (*instance)->hardware().front().offers;
  for (const vulkan::Variant variant : vulkan::kVariants) {
    if ((variant.int64 && !offers.int64) || (variant.subgroups && !offers.subgroups)) continue;
    SCOPED_TRACE(vulkan::VariantName(variant));
    const auto device = StartOn(GetParam(), {.variant = variant});
    ASSERT_NE(device, nullptr);
    Comparison comparison(device.get());
    for (uint64_t seed = Rows(300); seed > 0; --seed) {
      comparison.Add(AnyRow(5'000'000 + seed, 1 + uint32_t(seed * 7919 % 1500)));
    }
  }
}

}  // namespace
}  // namespace sortition::kernels
