// Faults that are planted in the kernels' PTX are found: the run reports them, or its outputs differ.
#include "tests/ptx/faults.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "kernels/law/reference.h"
#include "tests/cuda/emulated_batch.h"
#include "tests/ptx/modules.h"
#include "tests/ptx/ptx_kernels.h"
#include "tests/support/scale.h"

namespace sortition::testing::ptx {
namespace {

// Rows that reach what the faults break, with their outputs.
class Rows {
 public:
  Rows() {
    Add(RowKind::kPlain, 24, 5'000);
    Add(RowKind::kPlain, 8, 500);
    Add(RowKind::kChained, 16, 500);
    Add(RowKind::kChainedTasks, 8, 500);
  }

  // Returns how the machine's run of the module is found to be wrong, or nothing.
  std::string Judge(const std::string& module, Machine* machine) {
    UseMachine(module, machine);
    std::string found;
    for (size_t first = 0; first < rows_.size() && found.empty(); first += kBatch) {
      EmulatedBatch batch;
      for (size_t i = first; i < first + kBatch; ++i) batch.AddRow(rows_[i]->request());
      batch.Lay();
      batch.Launch(64, first);
      if (!machine->reports().empty()) {
        found = machine->reports()[0].text();
      } else if (!IsExpected(&batch, first)) {
        found = "outputs differ";
      }
    }
    UseMachine(module, nullptr);
    return found;
  }

 private:
  static constexpr size_t kBatch = 8;

  bool IsExpected(EmulatedBatch* batch, size_t first) {
    try {
      const std::vector<kernels::RowOutput> outputs = batch->Answers();
      return std::equal(outputs.begin(), outputs.end(), expected_.begin() + ptrdiff_t(first));
    } catch (const std::bad_alloc&) {
      return false;  // a wrong number of tokens
    }
  }

  void Add(RowKind kind, uint32_t count, uint32_t vocabulary) {
    for (uint32_t i = 0; i < count; ++i) {
      rows_.push_back(MakeRow(kind, 770'000 + rows_.size(), vocabulary + 97 * i));
      expected_.push_back(law::SampleRowReference(rows_.back()->request()));
    }
  }

  std::vector<std::unique_ptr<kernels::RandomRow>> rows_;
  std::vector<kernels::RowOutput> expected_;
};

// Each of these is found. Where a kernel has changed so much that a place is another, SurveyOfPlaces names new ones.
const Fault kNamedFaults[] = {
    {FaultKind::kBarrier, "sample", "SortitionRead", 0},
    {FaultKind::kBarrier, "sample", "FinishRead", 12},
    {FaultKind::kBarrier, "sample", "WeighSectionE", 3},
    {FaultKind::kBarrier, "sample", "DescribeListE", 1},
    {FaultKind::kBarrier, "sample", "TopPOfRow", 1},
    {FaultKind::kBarrier, "sample", "BoundOfNth", 1},
    {FaultKind::kBarrier, "sample", "CollectE", 1},
    {FaultKind::kBarrier, "chain", "SortitionChain", 0},
    {FaultKind::kBarrier, "chain", "CollectE", 4},
    {FaultKind::kBarrier, "chain", "KeepMass", 2},
    {FaultKind::kBarrier, "chain", "KeepDepth", 2},
    {FaultKind::kFence, "sample", "SortitionRead", 0},
    {FaultKind::kFence, "sample", "SortitionRead", 1},
    {FaultKind::kFence, "sample", "SortitionWeigh", 0},
    {FaultKind::kFence, "sample", "SortitionWeigh", 1},
    {FaultKind::kMask, "sample", "FinishRead", 0},
    {FaultKind::kMask, "sample", "ReadTilesILNS0_5DTypeE2", 8},
    {FaultKind::kMask, "sample", "MassFrom", 13},
    {FaultKind::kMask, "sample", "EndOfFirst", 8},
    {FaultKind::kMask, "sample", "RaceOfRow", 33},
    {FaultKind::kMask, "chain", "KeepDepth", 15},
    {FaultKind::kMask, "chain", "RaceOfRowINS1_10ByDistance", 17},
    {FaultKind::kIndex, "sample", "SortitionRead", 0},
    {FaultKind::kIndex, "sample", "WeighSectionE", 109},
    {FaultKind::kIndex, "sample", "FinishWeigh", 36},
    {FaultKind::kIndex, "sample", "ReadTilesILNS0_5DTypeE0", 38},
    {FaultKind::kIndex, "sample", "BoundOfNth", 7},
    {FaultKind::kIndex, "chain", "SortitionChain", 0},
    {FaultKind::kIndex, "chain", "KeepNearest", 19},
};

TEST(PtxFaults, RowsOfFaultsAreRightWithoutOne) {
  Rows rows;
  for (const char* module : {"sample", "chain"}) {
    Machine machine(Module(module));
    EXPECT_EQ(rows.Judge(module, &machine), "") << module;
  }
}

TEST(PtxFaults, NamedFaultsAreFound) {
  Rows rows;
  // A share of the faults, at least four, is spread over all of them.
  const uint64_t tried = std::max<uint64_t>(4, Scaled(std::size(kNamedFaults)));
  for (uint64_t i = 0; i < tried; ++i) {
    const Fault& fault = kNamedFaults[i * std::size(kNamedFaults) / tried];
    uint32_t line = 0;
    const std::string text = Plant(ModuleText(fault.module), fault, &line);
    ASSERT_FALSE(text.empty()) << fault.name();
    const Program program = Parse(text);
    Machine machine(program);
    const std::string found = rows.Judge(fault.module, &machine);
    EXPECT_FALSE(found.empty()) << fault.name();
    std::printf("%s, line %u: %s\n", fault.name().c_str(), line, found.c_str());
  }
}

// Tries places where such a fault can be planted, as PTX_SURVEY names it: KIND MODULE FUNCTION STRIDE. It says
// which are found; a barrier that another one makes superfluous is not.
TEST(PtxFaults, SurveyOfPlaces) {
  const char* const survey = std::getenv("PTX_SURVEY");
  if (survey == nullptr) GTEST_SKIP() << "PTX_SURVEY is not set";
  int kind = 0;
  char module[32] = "";
  char function[256] = "";
  unsigned stride = 1;
  ASSERT_EQ(std::sscanf(survey, "%d %31s %255s %u", &kind, module, function, &stride), 4);
  Rows rows;
  uint32_t found = 0;
  uint32_t places = 0;
  for (uint32_t nth = 0;; nth += stride) {
    const Fault fault = {FaultKind(kind), module, function, nth};
    uint32_t line = 0;
    const std::string text = Plant(ModuleText(module), fault, &line);
    if (text.empty()) break;
    const Program program = Parse(text);
    Machine machine(program);
    const std::string how = rows.Judge(module, &machine);
    ++places;
    found += how.empty() ? 0 : 1;
    std::printf("%u, line %u: %s\n", nth, line, how.c_str());
  }
  std::printf("%u of %u found\n", found, places);
  EXPECT_GT(places, 0u);
}

}  // namespace
}  // namespace sortition::testing::ptx
