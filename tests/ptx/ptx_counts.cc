// Counts of a batch in the interpreter: instructions a token, by function and by innermost loop, sectors of global
// memory and further passes over shared memory; and a model of time (cycles.h): what each pipe needs for a token, and
// the lives of blocks. None of it is a measurement.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "client/bench/logits.h"
#include "client/bench/report.h"
#include "kernels/law/parameters.h"
#include "tests/cuda/emulated_batch.h"
#include "tests/ptx/modules.h"
#include "tests/ptx/ptx_kernels.h"

ABSL_FLAG(std::string, json, "", "file for the results as JSON");
ABSL_FLAG(uint32_t, rows, 2, "rows of a batch");
ABSL_FLAG(uint32_t, vocabulary, 128'256, "tokens of a row");
ABSL_FLAG(uint32_t, multiprocessors, 1, "of the device: 1 leaves a row to few blocks, as a large batch does");

namespace sortition::testing::ptx {
namespace {

struct Case {
  std::string name;
  law::SamplingParameters parameters;
  bool logprob = false;
  bench::Shape shape = bench::Shape::kPeaked;
};

// The instructions from a label to the last branch back to it.
struct Loop {
  uint32_t first = 0;
  uint32_t last = 0;
};

// Returns the loops without another one that ends inside them: the innermost loops, and the first of entangled ones.
std::vector<Loop> InnermostLoops(const Program& program) {
  std::vector<Loop> loops;
  for (uint32_t pc = 0; pc < program.code.size(); ++pc) {
    const Instruction& instruction = program.code[pc];
    if (instruction.kind != Kind::kBranch || instruction.offset > int64_t{pc}) continue;
    const Loop loop = {uint32_t(instruction.offset), pc};
    const auto overlaps = [&](const Loop& other) { return other.last >= loop.first; };
    if (std::ranges::none_of(loops, overlaps)) loops.push_back(loop);
  }
  return loops;
}

// The name between the namespace and the parameters of a mangled name.
std::string PlainName(const std::string& mangled) {
  std::string last = mangled;
  for (size_t at = 0; at < mangled.size();) {
    if (mangled[at] < '0' || mangled[at] > '9') {
      ++at;
      continue;
    }
    size_t end = at;
    const size_t length = std::stoul(mangled.substr(at), &end);
    const std::string name = mangled.substr(at + end, length);
    at += end + length;
    if (name.size() != length) break;
    if (name.starts_with("_INTERNAL") || name.starts_with("_GLOBAL")) continue;
    last = name;
    // Names nest up to an E or the template's arguments.
    if (at < mangled.size() && (mangled[at] == 'E' || mangled[at] == 'I')) break;
  }
  return last;
}

// Cycles for which the warps occupy a pipe of their scheduler.
uint64_t PipeCycles(const Program& program, const std::vector<Count>& counts, Pipe pipe, uint32_t first, uint32_t end) {
  uint64_t cycles = 0;
  for (uint32_t pc = first; pc < end; ++pc) {
    if (program.code[pc].cost.pipe == pipe) cycles += counts[pc].warps * program.code[pc].cost.cycles;
  }
  return cycles;
}

Count Sum(const std::vector<Count>& counts, uint32_t first, uint32_t end) {
  Count sum;
  for (uint32_t pc = first; pc < end; ++pc) {
    sum.warps += counts[pc].warps;
    sum.lanes += counts[pc].lanes;
    sum.sectors += counts[pc].sectors;
    sum.table_sectors += counts[pc].table_sectors;
    sum.conflicts += counts[pc].conflicts;
  }
  return sum;
}

class Table {
 public:
  Table(bench::Report* report, std::string name, double tokens)
      : report_(report), name_(std::move(name)), tokens_(tokens) {}

  void Add(const std::string& module, const Machine& machine, const Program& program) {
    AddAll(module, Sum(machine.counts(), 0, uint32_t(program.code.size())));
    AddTimes(module, machine, program);
    const std::vector<Loop> loops = InnermostLoops(program);
    for (const Function& function : program.functions) {
      const Count sum = Sum(machine.counts(), function.first, function.end);
      const std::string name = PlainName(function.name);
      if (IsMuch(sum)) report_->Add({name_ + "/" + name + "/" + Line(program, function.first), Each(sum), kUnit, {}});
      for (const Loop& loop : loops) {
        const Count inner = Sum(machine.counts(), loop.first, loop.last + 1);
        if (loop.first < function.first || loop.last >= function.end || !IsMuch(inner)) continue;
        const std::string line =
            name_ + "/" + name + "/loop_" + Line(program, loop.first) + "_" + Line(program, loop.last);
        report_->Add({line, Each(inner), kUnit, {}});
        report_->Add({line + "/integer",
                      Microseconds(PipeCycles(program, machine.counts(), Pipe::kInteger, loop.first, loop.last + 1)),
                      "us",
                      {}});
      }
    }
  }

 private:
  static constexpr char kUnit[] = "instructions/token";

  void AddAll(const std::string& module, const Count& sum) {
    if (sum.warps == 0) return;
    report_->Add({name_ + "/" + module, Each(sum), kUnit, {}});
    report_->Add({name_ + "/" + module + "/lanes", double(sum.lanes) / double(kLanes * sum.warps), "active", {}});
    report_->Add({name_ + "/" + module + "/sectors", 32 * double(sum.sectors) / tokens_, "bytes/token", {}});
    report_->Add({name_ + "/" + module + "/tables", 32 * double(sum.table_sectors) / tokens_, "bytes/token", {}});
    report_->Add({name_ + "/" + module + "/conflicts", double(sum.conflicts) / tokens_, "passes/token", {}});
  }
  void AddTimes(const std::string& module, const Machine& machine, const Program& program) {
    static constexpr const char* kNames[kPipes] = {nullptr,  "integer", "multiply", "float",
                                                   "double", "slow",    "memory",   "control"};
    if (machine.block_cycles().empty()) return;
    for (int pipe = 1; pipe < kPipes; ++pipe) {
      const uint64_t cycles = PipeCycles(program, machine.counts(), Pipe(pipe), 0, uint32_t(program.code.size()));
      if (cycles != 0) report_->Add({name_ + "/" + module + "/" + kNames[pipe], Microseconds(cycles), "us", {}});
    }
    std::vector<uint64_t> blocks = machine.block_cycles();
    std::ranges::sort(blocks);
    report_->Add({name_ + "/" + module + "/block", double(blocks[blocks.size() / 2]), "cycles", {}});
    report_->Add({name_ + "/" + module + "/longest_block", double(blocks.back()), "cycles", {}});
  }
  // Microseconds that a pipe of 132 multiprocessors takes for 256 rows of 128,256 tokens like these.
  double Microseconds(uint64_t cycles) const {
    constexpr double kTokens = 256 * 128'256;
    return 1e6 * kTokens * (double(cycles) / tokens_) / (132 * kSchedulers * kMultiprocessorHertz);
  }
  // An instruction of a warp counts for each of its 32 lanes.
  double Each(const Count& count) const { return kLanes * double(count.warps) / tokens_; }
  bool IsMuch(const Count& count) const { return Each(count) >= 0.5; }
  static std::string Line(const Program& program, uint32_t pc) { return std::to_string(program.code[pc].line); }

  bench::Report* const report_;
  const std::string name_;
  const double tokens_;
};

void Run(const Case& what, bench::Report* report) {
  const uint32_t rows = absl::GetFlag(FLAGS_rows);
  const uint32_t vocabulary = absl::GetFlag(FLAGS_vocabulary);
  const bench::Logits logits(what.shape, kernels::DType::kBF16, rows, vocabulary);
  kernels::RowParameters parameters;
  law::Compile(what.parameters, &parameters);
  parameters.raw_logprob = what.logprob;
  std::vector<kernels::RowRequest> requests(rows);
  EmulatedBatch batch;
  for (uint32_t row = 0; row < rows; ++row) {
    requests[row].logits = logits.row(row);
    requests[row].dtype = kernels::DType::kBF16;
    requests[row].live_vocabulary = vocabulary;
    requests[row].parameters = &parameters;
    requests[row].noise.seed = 7 + row;
    batch.AddRow(requests[row]);
  }
  Machine machines[] = {Machine(Module("sample")), Machine(Module("chain"))};
  const char* const modules[] = {"sample", "chain"};
  for (size_t i = 0; i < 2; ++i) {
    machines[i].CountTransactions();
    machines[i].TimeBlocks();
    UseMachine(modules[i], &machines[i]);
  }
  batch.Run(absl::GetFlag(FLAGS_multiprocessors), 1);
  Table table(report, what.name, double(rows) * vocabulary);
  for (size_t i = 0; i < 2; ++i) {
    UseMachine(modules[i], nullptr);
    EXPECT_TRUE(machines[i].reports().empty());
    table.Add(modules[i], machines[i], Module(modules[i]));
  }
}

}  // namespace
}  // namespace sortition::testing::ptx

int main(int argc, char** argv) {
  using sortition::testing::ptx::Case;
  absl::ParseCommandLine(argc, argv);
  sortition::bench::Report report("ptx_counts", "counts of the interpreter: a model of time, no measurement");
  const Case cases[] = {
      {"top_k_top_p", {.temperature = 0.7f, .top_k = 50, .top_p = 0.95f}, false},
      {"temperature", {.temperature = 1}, false},
      {"top_p", {.temperature = 1, .top_p = 0.95f}, false},
      {"top_p_flat", {.temperature = 1, .top_p = 0.95f}, false, sortition::bench::Shape::kFlat},
      {"top_p_logprob", {.temperature = 1, .top_p = 0.95f}, true},
      {"top_k_top_p_logprob", {.temperature = 0.7f, .top_k = 50, .top_p = 0.95f}, true},
      {"typical_p", {.temperature = 1, .typical_p = 0.9f}, false},
  };
  for (const Case& what : cases) sortition::testing::ptx::Run(what, &report);
  return sortition::bench::Publish(report, absl::GetFlag(FLAGS_json));
}
