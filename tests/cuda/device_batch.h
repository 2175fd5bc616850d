// Batches for a CUDA device over the fake driver.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "devices/cuda/cuda_device.h"
#include "devices/device.h"
#include "kernels/law/reference.h"
#include "tests/conformance/answer_printer.h"
#include "tests/conformance/random_row.h"
#include "tests/cuda/fake_driver.h"
#include "tests/support/run_batch.h"

namespace sortition::testing {

// The driver's first device, with the emulated kernels.
inline std::unique_ptr<devices::CudaDevice> StartOn(const FakeCudaDriver& driver,
                                                    devices::CudaDeviceOptions options = {}) {
  options.images = FakeCudaDriver::Images();
  const devices::cuda::Api api = driver.api();
  const auto hardware = devices::cuda::FindHardware(api);
  if (!hardware.ok()) ADD_FAILURE() << hardware.status();
  auto device = devices::CudaDevice::Start(api, hardware->at(0), options);
  if (!device.ok()) ADD_FAILURE() << device.status();
  return device.ok() ? *std::move(device) : nullptr;
}

// Rows of every kind and type, with the reference's outputs.
struct Rows {
  explicit Rows(int count, uint32_t vocabulary = 700, uint64_t seed = 1) {
    for (int i = 0; i < count; ++i) {
      const auto options = i % 3 == 1 ? kernels::OptionsKind::kChained : kernels::OptionsKind::kPlain;
      rows.push_back(std::make_unique<kernels::RandomRow>(seed + uint64_t(i), vocabulary, options));
      if (i % 3 == 2) rows.back()->AskForMore();
    }
  }

  std::vector<devices::DeviceRow> Batch() const {
    std::vector<devices::DeviceRow> batch;
    for (const auto& random : rows) {
      devices::DeviceRow row;
      row.request = random->request();
      const std::vector<std::byte>& tensor = random->tensor();
      const size_t cut = tensor.size() / 3;
      row.segments.push_back({tensor.data(), cut});
      row.segments.push_back({tensor.data() + cut, tensor.size() - cut});
      batch.push_back(std::move(row));
    }
    return batch;
  }

  void ExpectRight(const devices::BatchOutput& result) const {
    ASSERT_TRUE(result.status.ok()) << result.status;
    ASSERT_EQ(result.outputs.size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(result.outputs[i], law::SampleRowReference(rows[i]->request())) << rows[i]->description();
    }
  }

  std::vector<std::unique_ptr<kernels::RandomRow>> rows;
};

}  // namespace sortition::testing
