// Both processes make the same rows from the seed; their logits travel in the device's memory alone.
#include "tests/conformance/shared_rows.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cpp/cuda/cuda_rows.h"
#include "devices/cuda/cuda_device.h"
#include "kernels/law/reference.h"
#include "tests/conformance/random_row.h"
#include "tests/support/run_batch.h"

namespace sortition {
namespace {

using devices::cuda::Api;
using kernels::RandomRow;
using testing::RunBatch;

constexpr uint64_t kBytes = 32 << 20;
constexpr uint32_t kMemory = devices::kHostMemory + 1;
constexpr int kDescriptor = 3;  // in the other process

struct Placed {
  std::unique_ptr<RandomRow> row;
  uint64_t offset;
};

// Every other row begins at a multiple of 16 bytes, the rest do not.
std::vector<Placed> MakeRows(uint64_t seed) {
  const struct {
    uint32_t vocabulary;
    uint32_t count;
  } parts[] = {{300, 64}, {12'000, 32}, {50'257, 16}, {128'256, 16}};
  std::vector<Placed> rows;
  uint64_t offset = 0;
  for (const auto& [vocabulary, count] : parts) {
    for (uint32_t i = 0; i < count; ++i) {
      const auto options = i % 2 == 1 ? kernels::OptionsKind::kChained : kernels::OptionsKind::kPlain;
      auto row = std::make_unique<RandomRow>(seed * 1'000'000 + vocabulary + i, vocabulary, options);
      if (i % 4 >= 2) row->AskForMore();
      const uint64_t bytes = row->tensor().size();
      rows.push_back({std::move(row), offset + (i % 2 == 0 ? 0 : 4)});
      offset = (rows.back().offset + bytes + 15) / 16 * 16;
    }
  }
  return rows;
}

bool IsGood(const absl::Status& status, const char* what) {
  if (!status.ok()) std::cerr << "shared rows: " << what << ": " << status.message() << "\n";
  return status.ok();
}

absl::Status Write(const Api& api, const devices::cuda::Hardware& hardware, const std::vector<Placed>& rows,
                   const client::CudaRows& memory) {
  devices::cuda::ContextHandle context = nullptr;
  SORTITION_CUDA_RETURN_IF_ERROR(api, DevicePrimaryCtxRetain(&context, hardware.handle));
  const auto copy = [&] {
    const devices::cuda::CurrentContext current(api, context);
    if (!current.status().ok()) return current.status();
    const auto begin = reinterpret_cast<devices::cuda::DevicePointer>(memory.data());
    for (const auto& [row, offset] : rows) {
      SORTITION_CUDA_RETURN_IF_ERROR(
          api, MemcpyHtoDAsync(begin + offset, row->tensor().data(), row->tensor().size(), nullptr));
    }
    return memory.WaitFor(nullptr);
  };
  const absl::Status copied = copy();
  api.DevicePrimaryCtxRelease(hardware.handle);
  return copied;
}

// Ends with CheckSharedRows's result in that process.
bool RunOther(const devices::cuda::Hardware& hardware, int descriptor, uint64_t seed) {
  const std::string device = absl::StrCat("--shared_rows_device=", hardware.index);
  const std::string rows = absl::StrCat("--shared_rows_descriptor=", kDescriptor);
  const std::string seeded = absl::StrCat("--seed=", seed);
  std::vector<const char*> arguments = {"sortition_self_test", device.c_str(), rows.c_str(), seeded.c_str(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, descriptor, kDescriptor);
  pid_t other = 0;
  const int error =
      posix_spawn(&other, "/proc/self/exe", &actions, nullptr, const_cast<char**>(arguments.data()), environ);
  posix_spawn_file_actions_destroy(&actions);
  int ended = -1;
  return error == 0 && waitpid(other, &ended, 0) == other && WIFEXITED(ended) && WEXITSTATUS(ended) == 0;
}

}  // namespace

bool TestSharedRows(const devices::cuda::Hardware& hardware, uint64_t seed, uint64_t* rows) {
  const auto api = Api::Load();
  if (!IsGood(api.status(), "driver")) return false;
  const auto memory = client::CudaRows::CreateOn(*api, hardware, kBytes);
  if (!IsGood(memory.status(), "memory")) return false;
  const std::vector<Placed> made = MakeRows(seed);
  *rows = made.size();
  if (!IsGood(Write(*api, hardware, made, **memory), "rows")) return false;
  return RunOther(hardware, (*memory)->handle().descriptor, seed);
}

bool CheckSharedRows(int index, int descriptor, uint64_t seed) {
  const auto api = Api::Load();
  if (!IsGood(api.status(), "driver")) return false;
  const auto hardware = devices::cuda::FindHardware(*api, index);
  if (!IsGood(hardware.status(), "device")) return false;
  const auto device = devices::CudaDevice::Start(*api, *hardware, {.memory = kMemory});
  if (!IsGood(device.status(), "device")) return false;
  const auto imported =
      (*device)->Import({.kind = devices::MemoryKind::kCuda, .descriptor = descriptor, .bytes = kBytes});
  if (!IsGood(imported.status(), "import")) return false;

  const std::vector<Placed> rows = MakeRows(seed);
  uint64_t wrong = 0;
  for (const bool may_change : {false, true}) {
    std::vector<devices::DeviceRow> batch;
    for (const auto& [row, offset] : rows) {
      devices::DeviceRow& on_device = batch.emplace_back();
      on_device.request = row->request();
      on_device.segments.push_back({(*imported)->bytes().data() + offset, row->tensor().size()});
      on_device.memory = kMemory;
      on_device.imported = imported->get();
      on_device.may_change = may_change;
    }
    const devices::BatchOutput result = RunBatch(device->get(), std::move(batch));
    if (!IsGood(result.status, "batch")) return false;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (result.outputs[i] == law::SampleRowReference(rows[i].row->request())) continue;
      if (++wrong <= 10) std::cerr << "shared rows: wrong: " << rows[i].row->description() << "\n";
    }
  }
  for (const auto& [row, offset] : rows) {
    std::vector<std::byte> read(row->tensor().size());
    if (!IsGood((*imported)->Read(offset, read), "read")) return false;
    wrong += read != row->tensor();
  }
  return wrong == 0;
}

}  // namespace sortition
