// A row's answer depends only on the row: not on its batch, thread, segments or alignment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>

#include "devices/cpu/cpu_device.h"
#include "kernels/law/reference.h"
#include "tests/conformance/answer_printer.h"
#include "tests/conformance/random_row.h"
#include "tests/support/run_batch.h"
#include "tests/support/scale.h"

namespace sortition::kernels::invariance_test {
namespace {

using devices::BatchOutput;
using devices::CpuDevice;
using devices::DeviceRow;
using testing::RunBatch;

// Random rows and the reference's answers.
struct Rows {
  explicit Rows(uint64_t count) {
    for (uint64_t seed = 0; seed < count; ++seed) {
      rows.push_back(std::make_unique<RandomRow>(3'000'000 + seed, 1 + uint32_t(seed * 7919 % 3000)));
      expected.push_back(law::SampleRowReference(rows.back()->request()));
    }
  }
  std::vector<std::unique_ptr<RandomRow>> rows;
  std::vector<RowOutput> expected;
};

DeviceRow Whole(const RandomRow& row) {
  DeviceRow device_row;
  device_row.request = row.request();
  device_row.segments.push_back({row.tensor().data(), row.tensor().size()});
  return device_row;
}

TEST(Invariance, BatchAndThreadsDoNotMatter) {
  const Rows rows(testing::Scaled(600));
  const size_t count = rows.rows.size();
  for (const uint32_t threads : {1u, 2u, 5u}) {
    CpuDevice device({.threads = threads});
    for (const size_t batch : {size_t{1}, size_t{7}, size_t{64}, count}) {
      for (size_t begin = 0; begin < count; begin += batch) {
        std::vector<DeviceRow> part;
        for (size_t i = begin; i < std::min(count, begin + batch); ++i) part.push_back(Whole(*rows.rows[i]));
        const BatchOutput result = RunBatch(&device, std::move(part));
        ASSERT_TRUE(result.status.ok());
        for (size_t i = 0; i < result.outputs.size(); ++i) {
          ASSERT_EQ(result.outputs[i], rows.expected[begin + i]) << threads << " threads, batches of " << batch;
        }
      }
    }
  }
}

TEST(Invariance, SegmentsAndAlignmentDoNotMatter) {
  const Rows rows(testing::Scaled(600));
  std::mt19937_64 random(5);
  CpuDevice device({.threads = 2});
  for (size_t i = 0; i < rows.rows.size(); ++i) {
    const std::vector<std::byte>& tensor = rows.rows[i]->tensor();
    DeviceRow row;
    row.request = rows.rows[i]->request();
    std::vector<std::unique_ptr<std::byte[]>> pieces;
    for (size_t begin = 0; begin < tensor.size() || row.segments.empty();) {
      const size_t most = tensor.size() - begin;
      const size_t size =
          random() % 3 == 0 ? most : std::min<size_t>(most, random() % 999);  // none, an odd number, or all
      const size_t shift = random() % 8;
      pieces.push_back(std::make_unique<std::byte[]>(size + shift));
      std::memcpy(pieces.back().get() + shift, tensor.data() + begin, size);
      row.segments.push_back({pieces.back().get() + shift, size});
      begin += size;
    }
    std::vector<DeviceRow> batch;
    batch.push_back(std::move(row));
    const BatchOutput result = RunBatch(&device, std::move(batch));
    ASSERT_EQ(result.outputs.at(0), rows.expected[i]) << rows.rows[i]->description();
  }
}

}  // namespace
}  // namespace sortition::kernels::invariance_test
