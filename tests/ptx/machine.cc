// Scheduling of blocks, warps and splits; control flow; where lanes and threads meet.
#include "tests/ptx/machine.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/check.h"

namespace sortition::testing::ptx {
namespace {

constexpr uint32_t kMostResident = 4;
constexpr size_t kNone = ~size_t{0};

void Fill(const Registers& registers, uint32_t at, uint32_t value) {
  std::fill_n(registers.row<uint32_t>(at), kLanes, value);
}

}  // namespace

Machine::Warp::Warp(const Program& program)
    : registers(program.registers_bytes + 64),
      local(kLanes * program.local_valid.size()),
      local_written(kLanes * program.local_valid.size()),
      parameters(kLanes * program.parameter_bytes) {
  for (const ConstantRow& constant : program.constants) {
    if (constant.size == 0) registers.predicate(constant.at) = uint32_t(constant.bits);
    if (constant.size == 2) std::fill_n(registers.row<uint16_t>(constant.at), kLanes, uint16_t(constant.bits));
    if (constant.size == 4) std::fill_n(registers.row<uint32_t>(constant.at), kLanes, uint32_t(constant.bits));
    if (constant.size == 8) std::fill_n(registers.row<uint64_t>(constant.at), kLanes, constant.bits);
  }
}

Machine::Machine(const Program& program)
    : program_(program), is_reported_(program.code.size() * kFindings), counts_(program.code.size()) {}
Machine::~Machine() = default;

bool Machine::Launch(std::string_view entry, std::span<const std::byte> parameters, const LaunchOptions& options,
                     std::vector<MemoryRange>* memory) {
  SORTITION_CHECK(options.threads % kLanes == 0 && options.threads > 0);
  entry_ = &program_.entry(entry);
  SORTITION_CHECK(parameters.size() == entry_->parameter_bytes);
  parameters_ = parameters;
  options_ = options;
  memory_ = memory;
  random_.seed(options.seed);
  last_step_ = steps_ + options.max_steps;
  global_shadow_.BeginLaunch();
  try {
    Schedule();
    return true;
  } catch (const LaunchEnds&) {
    resident_.clear();
    return false;
  }
}

std::unique_ptr<Machine::Block> Machine::StartBlock(uint32_t id) {
  std::unique_ptr<Block> block;
  if (!spare_.empty() && spare_.back()->warps.size() == options_.threads / kLanes) {
    block = std::move(spare_.back());
    spare_.pop_back();
  } else {
    block = std::make_unique<Block>();
    for (uint32_t i = 0; i < options_.threads / kLanes; ++i) block->warps.push_back(std::make_unique<Warp>(program_));
  }
  block->id = id;
  block->x = id % options_.blocks_x;
  block->y = id / options_.blocks_x;
  block->live = options_.threads;
  block->at_barrier = 0;
  block->shared.assign(program_.shared_bytes, std::byte(0xcd));
  block->shadow.Begin(&global_shadow_, id, options_.threads, program_.shared_bytes);
  for (uint32_t i = 0; i < block->warps.size(); ++i) {
    Warp& warp = *block->warps[i];
    warp.block = block.get();
    warp.index = i;
    warp.live = kAllLanes;
    Split first;
    first.pc = entry_->first;
    first.mask = kAllLanes;
    warp.splits = {first};
    Fill(warp.registers, program_.special.ctaid_x, block->x);
    Fill(warp.registers, program_.special.ctaid_y, block->y);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      warp.registers.row<uint32_t>(program_.special.tid_x)[lane] = kLanes * i + lane;
      std::ranges::copy(parameters_, warp.parameters.begin() + lane * program_.parameter_bytes + entry_->parameters);
    }
    warp.clock = 0;
    if (times_blocks_) warp.ready.assign(program_.registers_bytes / 4 + kLanes, 0);
    std::ranges::fill(warp.local, std::byte(0xcd));
    std::ranges::fill(warp.local_written, uint8_t{0});
  }
  return block;
}

bool Machine::IsRunnable(const Warp& warp) const {
  return std::ranges::any_of(warp.splits, [](const Split& split) { return !split.is_waiting; });
}

// The seed chooses how many blocks are resident, in which order they start, how long a warp runs, and whether lanes
// of a warp drift apart.
void Machine::Schedule() {
  static constexpr uint64_t kMostSteps[] = {1 << 20, 4, 64, 1024};
  const uint64_t most_steps = kMostSteps[random_() % std::size(kMostSteps)];
  const bool drifts = random_() % 2 != 0;
  const size_t resident = 1 + random_() % kMostResident;
  std::vector<uint32_t> left(options_.blocks_x * options_.blocks_y);
  for (uint32_t i = 0; i < left.size(); ++i) left[i] = i;
  std::ranges::shuffle(left, random_);
  std::vector<Warp*> runnable;
  while (true) {
    while (resident_.size() < resident && !left.empty()) {
      resident_.push_back(StartBlock(left.back()));
      left.pop_back();
    }
    if (resident_.empty()) return;
    runnable.clear();
    for (const auto& block : resident_) {
      for (const auto& warp : block->warps) {
        if (IsRunnable(*warp)) runnable.push_back(warp.get());
      }
    }
    if (runnable.empty()) {
      for (const auto& warp : resident_[0]->warps) {
        for (const Split& split : warp->splits) {
          Complain(*warp, uint32_t(std::countr_zero(split.mask)), split.pc, Finding::kStuck, 0, "waits for ever");
        }
      }
      throw LaunchEnds();
    }
    Warp* const warp = runnable[random_() % runnable.size()];
    RunWarp(warp, 1 + random_() % most_steps, drifts);
    if (warp->block->live != 0) continue;
    if (times_blocks_) {
      uint64_t last = 0;
      for (const auto& one : warp->block->warps) last = std::max(last, one->clock);
      block_cycles_.push_back(last);
    }
    const auto ended = std::ranges::find(resident_, warp->block, &std::unique_ptr<Block>::get);
    spare_.push_back(std::move(*ended));
    resident_.erase(ended);
  }
}

size_t Machine::Choose(const Warp& warp, bool drifts) {
  size_t best = kNone;
  for (size_t i = 0; i < warp.splits.size(); ++i) {
    const Split& split = warp.splits[i];
    if (split.is_waiting) continue;
    const bool is_before = best == kNone || split.depth > warp.splits[best].depth ||
                           (split.depth == warp.splits[best].depth && split.pc < warp.splits[best].pc);
    if (is_before || (drifts && random_() % 2 == 0)) best = i;
  }
  return best;
}

// Merges the split with the splits at the same instruction.
size_t Machine::Merge(Warp* warp, size_t current) {
  for (size_t i = 0; i < warp->splits.size();) {
    Split& split = warp->splits[current];
    const Split& other = warp->splits[i];
    const bool is_here = i != current && !other.is_at_barrier && other.pc == split.pc && other.depth == split.depth &&
                         std::equal(other.returns.begin(), other.returns.begin() + split.depth, split.returns.begin());
    if (!is_here) {
      ++i;
      continue;
    }
    split.mask |= other.mask;
    warp->splits.erase(warp->splits.begin() + ptrdiff_t(i));
    if (i < current) --current;
  }
  return current;
}

// Returns the split to run, merged with the splits at the same instruction.
size_t Machine::MergeAndSwitch(Warp* warp, size_t current, bool drifts) {
  while (true) {
    current = Merge(warp, current);
    const size_t next = drifts ? current : Choose(*warp, false);
    if (next == current) return current;
    current = next;
  }
}

void Machine::RunWarp(Warp* warp, uint64_t steps, bool drifts) {
  drifts = drifts && warp->splits.size() > 1;
  size_t current = Choose(*warp, drifts);
  for (; steps > 0; --steps) {
    if (warp->splits.size() > 1) current = MergeAndSwitch(warp, current, drifts);
    Split& split = warp->splits[current];
    const uint32_t pc = split.pc;
    const Instruction& instruction = program_.code[pc];
    uint32_t mask = split.mask;
    if (instruction.has_guard) {
      const uint32_t guard = warp->registers.predicate(instruction.guard);
      mask &= instruction.guard_is_negated ? ~guard : guard;
    }
    if (times_blocks_) Time(warp, instruction, mask);
    Count& count = counts_[pc];
    ++count.warps;
    count.lanes += mask == kAllLanes ? kLanes : uint32_t(std::popcount(mask));
    if (instruction.kind == Kind::kCompute) {
      if (mask != 0) instruction.apply(warp->registers, instruction, mask);
      ++split.pc;
    } else {
      Step(warp, current, instruction, mask);
      if (current >= warp->splits.size() || warp->splits[current].is_waiting) {
        current = Choose(*warp, drifts);
        if (current == kNone) break;
      }
    }
    if (++steps_ >= last_step_) {
      Complain(*warp, 0, pc, Finding::kStuck, 0, "the launch does not end");
      throw LaunchEnds();
    }
  }
}

// A load's latency depends on where its first lane's address lies: shared and local memory and the module's variables
// are on chip.
uint32_t Machine::LatencyOf(const Warp& warp, const Instruction& instruction, uint32_t mask) const {
  const bool may_be_global = instruction.space == Space::kGeneric || instruction.space == Space::kGlobal;
  if ((instruction.kind != Kind::kLoad && instruction.kind != Kind::kAtomic) || !may_be_global || mask == 0) {
    return instruction.cost.latency;
  }
  const uint64_t address =
      warp.registers.row<uint64_t>(instruction.address)[std::countr_zero(mask)] + uint64_t(instruction.offset);
  const auto has = [&](const Variable& variable) { return variable.Has(address, instruction.size); };
  const bool is_on_chip = address >= kSharedWindow || std::ranges::any_of(program_.variables, has);
  return is_on_chip ? kOnChipCycles : instruction.cost.latency;
}

// Issues the instruction once its operands can be read.
void Machine::Time(Warp* warp, const Instruction& instruction, uint32_t mask) const {
  const auto ready = [&](uint32_t row) -> uint64_t& { return warp->ready[row / 4]; };
  const bool is_store = instruction.kind == Kind::kStore;
  const bool is_load = instruction.kind == Kind::kLoad;
  const uint32_t results = is_store ? 0 : is_load ? instruction.count : instruction.results;
  uint64_t at = warp->clock;
  if (instruction.has_guard) at = std::max(at, ready(instruction.guard));
  if (is_store || is_load || instruction.kind == Kind::kAtomic) at = std::max(at, ready(instruction.address));
  for (uint32_t i = results; i < std::size(instruction.operands); ++i) {
    at = std::max(at, ready(instruction.operands[i]));
  }
  const uint64_t done = at + LatencyOf(*warp, instruction, mask);
  for (uint32_t i = 0; i < results; ++i) ready(instruction.operands[i]) = done;
  // Nothing is issued before a fence has ended.
  const uint64_t waits = instruction.kind == Kind::kFence ? instruction.cost.latency : 0;
  warp->clock = at + std::max<uint64_t>(instruction.cost.cycles, waits);
}

void Machine::Step(Warp* warp, size_t current, const Instruction& instruction, uint32_t mask) {
  Split& split = warp->splits[current];
  switch (instruction.kind) {
    case Kind::kLoad:
    case Kind::kStore:
    case Kind::kAtomic:
      if (mask != 0) Access(warp, split.pc, instruction, mask);
      ++split.pc;
      return;
    case Kind::kFence:
      for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        warp->block->shadow.Fence(kLanes * warp->index + uint32_t(std::countr_zero(rest)));
      }
      ++split.pc;
      return;
    case Kind::kBranch:
      return Branch(warp, current, instruction, mask);
    case Kind::kCompute:
      break;
    default:
      // The kinds below have no guard: all lanes of the split take part.
      SORTITION_CHECK(!instruction.has_guard);
  }
  if (instruction.kind == Kind::kCall) return Call(&split, instruction);
  if (instruction.kind == Kind::kReturn) return Return(warp, current, mask);
  if (instruction.kind == Kind::kMeet) return Meet(warp, current, instruction);
  ArriveAtBarrier(warp, current);
}

void Machine::Branch(Warp* warp, size_t current, const Instruction& instruction, uint32_t mask) {
  Split& split = warp->splits[current];
  if (mask == split.mask) {
    split.pc = uint32_t(instruction.offset);
  } else if (mask == 0) {
    ++split.pc;
  } else {
    Split taken = split;
    taken.mask = mask;
    taken.pc = uint32_t(instruction.offset);
    split.mask &= ~mask;
    ++split.pc;
    warp->splits.push_back(taken);
  }
}

void Machine::Call(Split* split, const Instruction& instruction) {
  SORTITION_CHECK(split->depth < kMostCalls);
  split->returns[split->depth++] = split->pc + 1;
  split->pc = uint32_t(instruction.offset);
}

void Machine::Return(Warp* warp, size_t current, uint32_t mask) {
  Split& split = warp->splits[current];
  if (split.depth > 0) {
    split.pc = split.returns[--split.depth];
    return;
  }
  warp->live &= ~mask;
  warp->block->live -= uint32_t(std::popcount(mask));
  warp->splits.erase(warp->splits.begin() + ptrdiff_t(current));
  // Splits may be waiting for lanes that have ended.
  for (Split& other : warp->splits) {
    if (!other.is_at_barrier) other.is_waiting = false;
  }
  ReleaseBarrier(warp->block);
}

// Applies the operation for each member mask if all its lanes are in the split. The other masks wait.
void Machine::Meet(Warp* warp, size_t current, const Instruction& instruction) {
  Split& split = warp->splits[current];
  const uint32_t* const wanted = warp->registers.row<uint32_t>(instruction.operands[instruction.mask_operand]);
  uint32_t ready = 0;
  // Fast path: the whole warp meets.
  if (split.mask == kAllLanes && std::all_of(wanted, wanted + kLanes, [](uint32_t w) { return w == kAllLanes; })) {
    instruction.apply(warp->registers, instruction, kAllLanes);
    ready = kAllLanes;
  }
  for (uint32_t rest = split.mask & ~ready; rest != 0; rest &= rest - 1) {
    const auto lane = uint32_t(std::countr_zero(rest));
    const uint32_t members = wanted[lane];
    const char* wrong = (members >> lane & 1) == 0     ? "a lane is not in its own mask"
                        : (members & ~warp->live) != 0 ? "the mask names a lane that has ended"
                                                       : nullptr;
    if (wrong == nullptr && (members & ~split.mask) == 0) {
      for (uint32_t i = 0; i < kLanes; ++i) {
        if ((members >> i & 1) != 0 && wanted[i] != members) wrong = "lanes that meet name different masks";
      }
      if (wrong == nullptr && (ready & members) == 0) instruction.apply(warp->registers, instruction, members);
      ready |= members;
    }
    if (wrong != nullptr) {
      Complain(*warp, lane, split.pc, Finding::kMask, members, wrong);
      throw LaunchEnds();
    }
  }
  if (ready == split.mask) {
    if (instruction.is_of_whole_warp && ready == warp->live) warp->block->shadow.PassWarpBarrier(warp->index);
    ++split.pc;
    return;
  }
  if (ready != 0) {
    Split gone = split;
    gone.mask = ready;
    ++gone.pc;
    split.mask &= ~ready;
    split.is_waiting = true;
    warp->splits.push_back(gone);
    return;
  }
  split.is_waiting = true;
}

void Machine::ArriveAtBarrier(Warp* warp, size_t current) {
  Split& split = warp->splits[current];
  split.is_waiting = split.is_at_barrier = true;
  warp->block->at_barrier += uint32_t(std::popcount(split.mask));
  ReleaseBarrier(warp->block);
}

// Lets the threads of the block pass the barrier once all live threads wait there.
void Machine::ReleaseBarrier(Block* block) {
  if (block->at_barrier == 0 || block->at_barrier != block->live) return;
  const uint32_t pc = block->warps[0]->splits.empty() ? ~0u : block->warps[0]->splits[0].pc;
  for (const auto& warp : block->warps) {
    for (Split& split : warp->splits) {
      if (split.pc != pc || block->live != options_.threads) {
        Complain(*warp, uint32_t(std::countr_zero(split.mask)), split.pc, Finding::kBarrier, 0,
                 block->live != options_.threads ? "threads of the block have ended"
                                                 : "threads of the block wait at different barriers");
        throw LaunchEnds();
      }
      split.is_waiting = split.is_at_barrier = false;
      ++split.pc;
    }
  }
  block->at_barrier = 0;
  block->shadow.PassBarrier();
  if (!times_blocks_) return;
  uint64_t last = 0;
  for (const auto& warp : block->warps) last = std::max(last, warp->clock);
  for (const auto& warp : block->warps) warp->clock = last + kBarrierCycles;
}

void Machine::Complain(const Warp& warp, uint32_t lane, uint32_t pc, Finding finding, uint64_t address,
                       std::string detail) {
  const size_t which = pc * kFindings + size_t(finding);
  if (is_reported_[which]) return;
  is_reported_[which] = true;
  reports_.push_back({finding, program_.FunctionAt(pc).name, program_.code[pc].line, warp.block->id,
                      kLanes * warp.index + lane, address, std::move(detail)});
}

}  // namespace sortition::testing::ptx
