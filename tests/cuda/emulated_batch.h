// Batches of rows through the CUDA kernels without a GPU, as a device would run them.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/chunk.h"
#include "tests/conformance/comparison.h"
#include "tests/cuda/emulated_kernels.h"

namespace sortition::testing {

// A device's memory with the emulator for a device: aligned as a driver aligns it, noise where nothing was written.
inline constexpr uintptr_t kAlignment = 256;
inline std::vector<uint64_t> Noise(uint64_t bytes) {
  return std::vector<uint64_t>((bytes + kAlignment) / 8 + 1, 0xcdcdcdcdcdcdcdcd);
}
inline std::byte* Aligned(std::vector<uint64_t>& memory) {
  auto* const bytes = reinterpret_cast<std::byte*>(memory.data());
  return bytes + (kAlignment - reinterpret_cast<uintptr_t>(bytes) % kAlignment) % kAlignment;
}
inline uint64_t Address(std::vector<uint64_t>& memory) { return reinterpret_cast<uint64_t>(Aligned(memory)); }

// Rows of one chunk, and the memory that its launches get. Not thread-safe.
class EmulatedBatch {
 public:
  void AddRow(const kernels::RowRequest& request) {
    requests_.push_back(&request);
    ASSERT_TRUE(chunk_.Add(request, ~uint64_t{0}));
  }

  // Runs the batch as a device of `multiprocessors` multiprocessors would.
  std::vector<kernels::RowOutput> Run(uint32_t multiprocessors, uint64_t seed) {
    Lay();
    Launch(multiprocessors, seed);
    return Answers();
  }

  void Lay() {
    upload_ = Noise(chunk_.upload_bytes());
    work_ = Noise(chunk_.work_bytes());
    download_ = Noise(chunk_.download_bytes());
    std::memset(Aligned(work_), 0, chunk_.states_bytes());
    memory_ = {{Address(upload_), chunk_.upload_bytes(), true, true},
               {Address(work_), chunk_.states_bytes(), false, true},
               {Address(work_) + chunk_.states_bytes(), chunk_.work_bytes() - chunk_.states_bytes(), false, false},
               {Address(download_), chunk_.download_bytes(), false, false}};
    chunk_.WriteInputs(Aligned(upload_), Address(upload_), Address(work_), Address(download_));
    for (uint32_t row = 0; row < chunk_.rows(); ++row) {
      size_t bytes = 0;
      std::byte* const to = chunk_.LogitsOf(row, Aligned(upload_), &bytes);
      std::memcpy(to, requests_[row]->logits, bytes);
    }
  }

  void Launch(uint32_t multiprocessors, uint64_t seed) {
    const kernels::cuda::BatchView view = View(multiprocessors);
    const uint32_t sections = chunk_.geometry(multiprocessors).sections;
    RunEmulated(CudaKernel::kRead, view, chunk_.rows(), sections, seed, &memory_);
    const uint32_t rows = chunk_.rows();
    if (chunk_.needed().weigh) RunEmulated(CudaKernel::kWeigh, view, rows, sections, seed + 1, &memory_);
    if (chunk_.needed().chain) RunEmulated(CudaKernel::kChain, view, rows, 1, seed + 2, &memory_);
  }

  kernels::cuda::BatchView View(uint32_t multiprocessors) {
    return chunk_.MakeView(Address(upload_), Address(work_), Address(download_), multiprocessors);
  }

  std::vector<kernels::RowOutput> Answers() {
    std::vector<kernels::RowOutput> answers;
    for (uint32_t row = 0; row < chunk_.rows(); ++row) answers.push_back(chunk_.ReadOutput(row, Aligned(download_)));
    return answers;
  }

  const kernels::cuda::RawOutput& output(uint32_t row) {
    return reinterpret_cast<const kernels::cuda::RawOutput*>(Aligned(download_))[row];
  }
  // The state that the kernels have left.
  const kernels::cuda::RowState& state(uint32_t row) {
    return reinterpret_cast<const kernels::cuda::RowState*>(Aligned(work_))[row];
  }
  const kernels::cuda::TopToken* raw_top(uint32_t row) { return Input(row).raw_top; }
  const kernels::cuda::TopToken* processed_top(uint32_t row) { return Input(row).processed_top; }

 private:
  const kernels::cuda::RowInput& Input(uint32_t row) {
    return reinterpret_cast<const kernels::cuda::RowInput*>(Aligned(upload_))[row];
  }

  kernels::cuda::Chunk chunk_;
  std::vector<const kernels::RowRequest*> requests_;
  std::vector<uint64_t> upload_;
  std::vector<uint64_t> work_;
  std::vector<uint64_t> download_;
  std::vector<MemoryRange> memory_;
};

// The kernels on a device with a given number of multiprocessors. Each batch runs its threads in another order.
class EmulatedBackend : public Backend {
 public:
  explicit EmulatedBackend(uint32_t multiprocessors) : multiprocessors_(multiprocessors) {}
  std::string name() const override { return "launch seed " + std::to_string(seed_); }
  size_t batch_rows() const override { return 8; }
  std::vector<kernels::RowOutput> Sample(std::span<const ComparedRow> rows) override {
    EmulatedBatch batch;
    for (const ComparedRow& row : rows) batch.AddRow(row.request);
    return batch.Run(multiprocessors_, ++seed_);
  }

 private:
  const uint32_t multiprocessors_;
  uint64_t seed_ = 0;
};

}  // namespace sortition::testing
