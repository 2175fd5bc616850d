// Plants faults in the kernels' PTX and expects that each is found: the run reports it, or its outputs differ.
#include "tests/ptx/faults.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/law/reference.h"
#include "tests/cuda/emulated_batch.h"
#include "tests/cuda/emulated_sequences.h"
#include "tests/ptx/modules.h"
#include "tests/ptx/ptx_kernels.h"
#include "tests/support/scale.h"

namespace sortition::testing::ptx::faults_test {
namespace {

constexpr char kDiffers[] = "outputs differ";

// Rows and sequences that run the faulty code, with their right outputs.
class Subjects {
 public:
  Subjects() {
    Add(RowKind::kPlain, 24, 5'000);
    Add(RowKind::kPlain, 8, 500);
    Add(RowKind::kChained, 16, 500);
    Add(RowKind::kChainedTasks, 8, 500);
    Add(RowKind::kChained, 16, 2'500);
  }

  // Returns the findings of the machine's run of the module; empty if it is right.
  std::vector<std::string> Judge(const std::string& module, Machine* machine) {
    UseMachine(module, machine);
    const bool is_right = module == "sequence" ? AreSequencesRight(*machine) : AreRowsRight(*machine);
    UseMachine(module, nullptr);
    std::vector<std::string> found;
    for (const Report& report : machine->reports()) found.push_back(report.text());
    if (found.empty() && !is_right) found.push_back(kDiffers);
    return found;
  }

 private:
  static constexpr size_t kBatch = 8;
  static constexpr int kSteps = 12;

  bool AreRowsRight(const Machine& machine) {
    for (size_t first = 0; first < rows_.size(); first += kBatch) {
      EmulatedBatch batch;
      for (size_t i = first; i < first + kBatch; ++i) batch.AddRow(rows_[i]->request());
      batch.Lay();
      batch.Launch(64, first);
      if (!machine.reports().empty() || !IsExpected(&batch, first)) return false;
    }
    return true;
  }

  static bool AreSequencesRight(const Machine& machine) {
    CountedSequences sequences;
    for (int step = 0; step < kSteps; ++step) {
      if (!sequences.Step().empty() || !machine.reports().empty()) return false;
    }
    return true;
  }

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

Subjects& TheSubjects() {
  static auto* const subjects = new Subjects();
  return *subjects;
}

// Judges a run of the module with the fault.
std::vector<std::string> Judge(const std::string& module, const std::string& text) {
  const Program program = Parse(text);
  Machine machine(program);
  return TheSubjects().Judge(module, &machine);
}

// Each of these is found. If a change of a kernel has moved a place, take a new one from PtxSurvey.
const Fault kNamedFaults[] = {
    {FaultKind::kBarrier, "sample", "SortitionRead", 0},
    {FaultKind::kBarrier, "sample", "FinishRead", 12},
    {FaultKind::kBarrier, "sample", "WeighSectionE", 3},
    {FaultKind::kBarrier, "sample", "DescribeListE", 1},
    {FaultKind::kBarrier, "sample", "EndOfPrefix", 4},
    {FaultKind::kBarrier, "sample", "BoundOfNth", 1},
    {FaultKind::kBarrier, "sample", "CollectE", 1},
    {FaultKind::kBarrier, "sample", "RaceOfRow", 10},
    {FaultKind::kBarrier, "sample", "RuleByBounds", 1},
    {FaultKind::kBarrier, "sample", "WeighGroups", 2},
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
    {FaultKind::kMask, "sample", "RaceOfRow", 12},
    {FaultKind::kMask, "chain", "KeepDepth", 15},
    {FaultKind::kMask, "chain", "RaceOfRowINS1_10ByDistance", 17},
    {FaultKind::kIndex, "sample", "SortitionRead", 0},
    {FaultKind::kIndex, "sample", "WeighSectionE", 109},
    {FaultKind::kIndex, "sample", "DescribeListE", 23},
    {FaultKind::kIndex, "sample", "BoundOfNth", 12},
    {FaultKind::kIndex, "sample", "LayChanges", 13},
    {FaultKind::kIndex, "chain", "SortitionChain", 0},
    {FaultKind::kIndex, "chain", "SumKeptE", 45},
    {FaultKind::kIndex, "chain", "SortList", 21},
    {FaultKind::kIndex, "chain", "KeepNearest", 21},
    {FaultKind::kIndex, "chain", "RaceOfRowINS1_10ByDistance", 46},
    {FaultKind::kIndex, "sequence", "SortitionAdvance", 10},
};

// Plants the fault and expects a report that contains `as`; empty: any sign of the fault.
void ExpectFound(const Fault& fault, const std::string& as = "") {
  const ModuleLines lines(ModuleText(fault.module));
  const std::vector<ModuleLines::Place> places = lines.Places(fault.kind, fault.function);
  ASSERT_LT(fault.nth, places.size()) << fault.name();
  const uint32_t line = places[fault.nth].line;
  const std::vector<std::string> found = Judge(fault.module, lines.With(fault.kind, line));
  const auto is_it = [&](const std::string& how) { return how.find(as) != std::string::npos; };
  const auto how = std::ranges::find_if(found, is_it);
  ASSERT_NE(how, found.end()) << fault.name() << ", line " << line << ": "
                              << (found.empty() ? "not found" : "found otherwise: " + found[0]);
  std::printf("planted: %s, line %u: %s\n", fault.name().c_str(), line, how->c_str());
}

// Tests a share of the named faults of the kind, at least one.
void ExpectNamedFound(FaultKind kind) {
  std::vector<Fault> faults;
  std::ranges::copy_if(kNamedFaults, std::back_inserter(faults),
                       [&](const Fault& fault) { return fault.kind == kind; });
  const uint64_t tried = Scaled(faults.size());
  for (uint64_t i = 0; i < tried; ++i) ExpectFound(faults[i * faults.size() / tried]);
}

TEST(PtxFaults, SubjectsAreRightWithoutOne) {
  for (const char* module : {"sample", "chain", "sequence"}) {
    Machine machine(Module(module));
    EXPECT_EQ(TheSubjects().Judge(module, &machine), std::vector<std::string>()) << module;
  }
}

TEST(PtxFaults, RemovedBarriersAreFound) { ExpectNamedFound(FaultKind::kBarrier); }
TEST(PtxFaults, RemovedFencesAreFound) { ExpectNamedFound(FaultKind::kFence); }
TEST(PtxFaults, WrongMasksAreFound) { ExpectNamedFound(FaultKind::kMask); }
TEST(PtxFaults, WrongIndexesAreFound) { ExpectNamedFound(FaultKind::kIndex); }

TEST(PtxFaults, RaceInSharedMemoryIsFound) {
  ExpectFound({FaultKind::kBarrier, "sample", "BoundOfNth", 1}, "race at");
  ExpectFound({FaultKind::kBarrier, "sample", "BoundOfNth", 1}, "shared memory: ");
}
TEST(PtxFaults, RaceInGlobalMemoryIsFound) {
  ExpectFound({FaultKind::kFence, "sample", "SortitionRead", 0}, "race at");
  ExpectFound({FaultKind::kFence, "sample", "SortitionRead", 0}, "global memory: ");
}
TEST(PtxFaults, UnwrittenReadIsFound) {
  ExpectFound({FaultKind::kStore, "sample", "SortitionRead", 0}, NameOf(Finding::kUnwritten));
}
TEST(PtxFaults, MisalignedAccessIsFound) {
  ExpectFound({FaultKind::kAlignment, "sample", "SortitionRead", 0}, NameOf(Finding::kMisaligned));
  ExpectFound({FaultKind::kAlignment, "sequence", "SortitionAdvance", 1}, NameOf(Finding::kMisaligned));
}
TEST(PtxFaults, AccessOutOfBoundsIsFound) {
  ExpectFound({FaultKind::kBounds, "sample", "SortitionRead", 0}, NameOf(Finding::kOutOfBounds));
  ExpectFound({FaultKind::kBounds, "sequence", "SortitionAdvance", 1}, NameOf(Finding::kOutOfBounds));
}

TEST(PtxFaults, UnknownInstructionFailsTheRun) {
  for (const char* const module : {"sample", "chain", "sequence"}) {
    const ModuleLines lines(ModuleText(module));
    const uint32_t line = lines.Places(FaultKind::kUnknown, "")[5].line;
    try {
      Judge(module, lines.With(FaultKind::kUnknown, line));
      ADD_FAILURE() << module << " ran";
    } catch (const Unknown& unknown) {
      EXPECT_NE(std::string(unknown.what()).find("line " + std::to_string(line) + ": instruction lop3.b32"),
                std::string::npos)
          << unknown.what();
      std::printf("planted: unknown instruction in %s.cu, line %u: %s\n", module, line, unknown.what());
    }
  }
}

// Returns the lines of the module that the subjects reach.
std::set<uint32_t> LinesReached(const std::string& module) {
  Machine machine(Module(module));
  TheSubjects().Judge(module, &machine);
  std::set<uint32_t> lines;
  for (size_t pc = 0; pc < machine.counts().size(); ++pc) {
    if (machine.counts()[pc].lanes != 0) lines.insert(Module(module).code[pc].line);
  }
  return lines;
}

// Plants PTX_SURVEY faults of a kind (default 8) at places spread over the lines of a module that the subjects reach,
// and names those that are found. A fault without effect is not: a barrier next to another, an element that equals its
// neighbour.
struct Survey {
  FaultKind kind;
  uint32_t least;  // percent of the faults that are found, over all modules
};
class PtxSurvey : public ::testing::TestWithParam<Survey> {
 protected:
  struct Share {
    uint32_t found = 0;
    uint32_t tried = 0;
    size_t places = 0;
  };

  Share Try(FaultKind kind, const std::string& module) {
    const char* const text = std::getenv("PTX_SURVEY");
    const size_t most = text == nullptr ? 8 : std::strtoull(text, nullptr, 10);
    const ModuleLines lines(ModuleText(module));
    std::vector<ModuleLines::Place> places = lines.Places(kind, "");
    const std::set<uint32_t> reached = LinesReached(module);
    std::erase_if(places, [&](const ModuleLines::Place& place) { return !reached.contains(place.line); });
    Share share = {.places = places.size()};
    for (size_t i = 0; i < std::min(most, places.size()); ++i) {
      const ModuleLines::Place& place = places[i * places.size() / std::min(most, places.size())];
      const std::vector<std::string> how = Judge(module, lines.With(kind, place.line));
      ++share.tried;
      share.found += how.empty() ? 0 : 1;
      std::printf("%s, %s.cu, place %u of %s, line %u: %s\n", NameOf(kind), module.c_str(), place.nth,
                  place.function.c_str(), place.line, how.empty() ? "not found" : how[0].c_str());
    }
    std::printf("survey: %s in %s.cu: %u of %u found, of %zu places reached\n", NameOf(kind), module.c_str(),
                share.found, share.tried, share.places);
    return share;
  }
};

TEST_P(PtxSurvey, FindsItsShare) {
  uint32_t found = 0;
  uint32_t tried = 0;
  for (const char* const module : {"sample", "chain", "sequence"}) {
    const Share share = Try(GetParam().kind, module);
    found += share.found;
    tried += share.tried;
  }
  EXPECT_GE(tried, 4u);
  EXPECT_GE(100 * found, GetParam().least * tried);
}
INSTANTIATE_TEST_SUITE_P(Kinds, PtxSurvey,
                         ::testing::Values(Survey{FaultKind::kBarrier, 50}, Survey{FaultKind::kFence, 100},
                                           Survey{FaultKind::kMask, 100}, Survey{FaultKind::kIndex, 40},
                                           Survey{FaultKind::kStore, 50}, Survey{FaultKind::kAlignment, 100},
                                           Survey{FaultKind::kBounds, 100}),
                         [](const ::testing::TestParamInfo<Survey>& info) {
                           std::string name = NameOf(info.param.kind);
                           std::erase(name, ' ');
                           return name;
                         });

}  // namespace
}  // namespace sortition::testing::ptx::faults_test
