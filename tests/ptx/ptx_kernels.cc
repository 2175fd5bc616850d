// A machine for each module, which lasts for the process.
#include "tests/ptx/ptx_kernels.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "kernels/cuda/image.h"
#include "kernels/cuda/layout.h"
#include "tests/cuda/emulated_kernels.h"
#include "tests/ptx/modules.h"

namespace sortition::testing {
namespace {

std::map<std::string, std::unique_ptr<ptx::Machine>, std::less<>> machines;
std::map<std::string, ptx::Machine*, std::less<>> others;

// Returns the environment's PTX_SCHEDULE, a number. Each gives the launches other schedules.
uint64_t Schedule() {
  static const char* const text = std::getenv("PTX_SCHEDULE");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

void Run(std::string_view module, std::string_view kernel, std::span<const std::byte> parameters, uint32_t rows,
         uint32_t sections, uint64_t seed, std::vector<MemoryRange>* memory) {
  ptx::Machine& machine = ptx::MachineOf(module);
  ptx::LaunchOptions options;
  options.blocks_x = sections;
  options.blocks_y = rows;
  options.threads = kernels::cuda::kThreads;
  options.seed = seed + 1'000'003 * Schedule();
  if (others.contains(module)) {
    // Ends a launch that would run for ever, and reports it.
    options.max_steps = 50'000'000;
    machine.Launch(kernel, parameters, options, memory);
    return;
  }
  machine.Launch(kernel, parameters, options, memory);
  for (const ptx::Report& report : machine.reports()) ADD_FAILURE() << module << ".cu: " << report.text();
  machine.ClearReports();
}

// Writes the instructions that the process has run to the file that PTX_COVERAGE names: a line `module NAME`, then a
// line `entry NAME` or `function NAME` for each function, and after it a `1` for each instruction that was reached,
// else `0`. Runs with planted faults do not count.
class Coverage : public ::testing::Environment {
 public:
  void TearDown() override {
    const char* const path = std::getenv("PTX_COVERAGE");
    if (path == nullptr) return;
    std::ofstream file(path);
    for (const auto& [module, machine] : machines) {
      file << "module " << module << "\n";
      for (const ptx::Function& function : ptx::Module(module).functions) {
        file << (function.is_entry ? "entry " : "function ") << function.name << " ";
        for (uint32_t pc = function.first; pc < function.end; ++pc) file << (machine->counts()[pc].warps != 0 ? 1 : 0);
        file << "\n";
      }
    }
    EXPECT_TRUE(file.good()) << path;
  }
};
[[maybe_unused]] ::testing::Environment* const coverage = ::testing::AddGlobalTestEnvironment(new Coverage);

}  // namespace

namespace ptx {

void UseMachine(std::string_view module, Machine* machine) {
  others.erase(std::string(module));
  if (machine != nullptr) others[std::string(module)] = machine;
}

Machine& MachineOf(std::string_view module) {
  if (const auto other = others.find(module); other != others.end()) return *other->second;
  std::unique_ptr<Machine>& machine = machines[std::string(module)];
  if (machine == nullptr) machine = std::make_unique<Machine>(Module(module));
  return *machine;
}

}  // namespace ptx

void RunEmulated(CudaKernel kernel, const kernels::cuda::BatchView& view, uint32_t rows, uint32_t sections,
                 uint64_t seed, std::vector<MemoryRange>* memory) {
  const char* const name = kernel == CudaKernel::kRead    ? kernels::cuda::kReadKernel
                           : kernel == CudaKernel::kWeigh ? kernels::cuda::kWeighKernel
                                                          : kernels::cuda::kChainKernel;
  Run(kernel == CudaKernel::kChain ? "chain" : "sample", name, std::as_bytes(std::span(&view, 1)), rows, sections, seed,
      memory);
}

void RunEmulatedAdvance(const kernels::cuda::SequenceView& view, uint32_t rows, uint64_t seed,
                        std::vector<MemoryRange>* memory) {
  Run("sequence", kernels::cuda::kAdvanceKernel, std::as_bytes(std::span(&view, 1)), rows, 1, seed, memory);
}

}  // namespace sortition::testing
