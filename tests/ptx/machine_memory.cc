// Loads, stores and atomic operations: the place of an address, the access that is allowed there, and its cost.
#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/ptx/machine.h"
#include "tests/ptx/range_shadow.h"

namespace sortition::testing::ptx {
namespace {

constexpr uint64_t kSectorBytes = 32;
constexpr uint32_t kBanks = 32;

AccessKind KindOf(const Instruction& instruction, bool is_same) {
  if (instruction.kind == Kind::kLoad) return instruction.is_volatile ? AccessKind::kStrongRead : AccessKind::kRead;
  if (instruction.kind == Kind::kAtomic) return AccessKind::kAtomic;
  return is_same ? AccessKind::kSameWrite : AccessKind::kWrite;
}

// Extends a value of `size` bytes to a lane's register.
void Put(const Registers& registers, uint32_t row, uint32_t lane, const Instruction& instruction,
         const std::byte* from) {
  if (instruction.size == instruction.registers_size) {
    if (instruction.size == 4) std::memcpy(&registers.row<uint32_t>(row)[lane], from, 4);
    if (instruction.size == 8) std::memcpy(&registers.row<uint64_t>(row)[lane], from, 8);
    if (instruction.size == 2) std::memcpy(&registers.row<uint16_t>(row)[lane], from, 2);
    return;
  }
  uint64_t bits = 0;
  std::memcpy(&bits, from, instruction.size);
  if (instruction.is_signed) {
    const int unused = 64 - 8 * instruction.size;
    bits = uint64_t(int64_t(bits << unused) >> unused);
  }
  if (instruction.registers_size == 2) registers.row<uint16_t>(row)[lane] = uint16_t(bits);
  if (instruction.registers_size == 4) registers.row<uint32_t>(row)[lane] = uint32_t(bits);
  if (instruction.registers_size == 8) registers.row<uint64_t>(row)[lane] = bits;
}

// Copies 1, 2, 4 or 8 bytes.
void Copy(std::byte* to, const std::byte* from, uint32_t size) {
  if (size == 4) {
    std::memcpy(to, from, 4);
  } else if (size == 8) {
    std::memcpy(to, from, 8);
  } else {
    std::memcpy(to, from, size);
  }
}

// A register's value in a lane lies at its beginning: the host is little-endian.
const std::byte* ValueOf(const Registers& registers, uint32_t row, uint32_t lane, uint32_t size) {
  return registers.row<std::byte>(row) + size_t{lane} * size;
}

template <typename T>
bool AreSameAs(const std::byte* a, const std::byte* b) {
  T of_a, of_b;
  std::memcpy(&of_a, a, sizeof(T));
  std::memcpy(&of_b, b, sizeof(T));
  return of_a == of_b;
}

bool AreSame(const std::byte* a, const std::byte* b, uint32_t size) {
  switch (size) {
    case 1:
      return *a == *b;
    case 2:
      return AreSameAs<uint16_t>(a, b);
    case 4:
      return AreSameAs<uint32_t>(a, b);
    default:
      return AreSameAs<uint64_t>(a, b);
  }
}

// True if a store leaves the memory as it is.
bool IsSame(const Registers& registers, const Instruction& instruction, uint32_t lane, const std::byte* at) {
  if (instruction.kind != Kind::kStore) return false;
  for (uint32_t i = 0; i < instruction.count; ++i) {
    const std::byte* const value = ValueOf(registers, instruction.operands[i], lane, instruction.registers_size);
    if (!AreSame(at + i * instruction.size, value, instruction.size)) return false;
  }
  return true;
}

template <typename T>
void Combine(const Instruction& instruction, const Registers& registers, uint32_t lane, std::byte* at) {
  T old = 0;
  std::memcpy(&old, at, sizeof(T));
  const T value = registers.row<T>(instruction.operands[1])[lane];
  registers.row<T>(instruction.operands[0])[lane] = old;
  T result = 0;
  switch (instruction.atomic) {
    case AtomicOperation::kAdd:
      result = T(old + value);
      break;
    case AtomicOperation::kMax:
      result = std::max(old, value);
      break;
    case AtomicOperation::kAnd:
      result = old & value;
  }
  std::memcpy(at, &result, sizeof(T));
}

}  // namespace

void Machine::Access(Warp* warp, uint32_t pc, const Instruction& instruction, uint32_t mask) {
  const Registers& registers = warp->registers;
  uint64_t addresses[kLanes] = {};
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto lane = uint32_t(std::countr_zero(rest));
    const uint64_t base = instruction.address_is_narrow ? registers.row<uint32_t>(instruction.address)[lane]
                                                        : registers.row<uint64_t>(instruction.address)[lane];
    // Narrow addresses wrap around.
    const uint64_t sum = base + uint64_t(instruction.offset);
    const uint64_t address = addresses[lane] = instruction.address_is_narrow ? uint32_t(sum) : sum;
    std::byte* const at = PlaceOf(warp, lane, pc, instruction, address);
    switch (instruction.kind) {
      case Kind::kLoad:
        for (uint32_t i = 0; i < instruction.count; ++i) {
          Put(registers, instruction.operands[i], lane, instruction, at + i * instruction.size);
        }
        break;
      case Kind::kStore:
        for (uint32_t i = 0; i < instruction.count; ++i) {
          const std::byte* const value = ValueOf(registers, instruction.operands[i], lane, instruction.registers_size);
          Copy(at + i * instruction.size, value, instruction.size);
        }
        break;
      default:
        if (instruction.size == 4) {
          Combine<uint32_t>(instruction, registers, lane, at);
        } else {
          Combine<uint64_t>(instruction, registers, lane, at);
        }
    }
  }
  if (counts_transactions_) CountAccess(pc, instruction, mask, addresses);
}

// Returns the host's place of the bytes, or ends the launch.
std::byte* Machine::PlaceOf(Warp* warp, uint32_t lane, uint32_t pc, const Instruction& instruction, uint64_t address) {
  const uint32_t bytes = instruction.count * instruction.size;
  if (instruction.space == Space::kParam) {
    return &warp->parameters[size_t{lane} * program_.parameter_bytes + address];
  }
  if (address % bytes != 0) {
    Complain(*warp, lane, pc, Finding::kMisaligned, address, "an access of " + std::to_string(bytes) + " bytes");
    throw LaunchEnds();
  }
  Space space = instruction.space;
  if (space == Space::kGeneric) {
    // An address a little below a window lies before the beginning of the window's memory.
    const uint64_t window = address >> 60;
    space = window == kSharedWindow >> 60  ? Space::kShared
            : window == kLocalWindow >> 60 ? Space::kLocal
                                           : Space::kGlobal;
    address -= space == Space::kShared ? kSharedWindow : space == Space::kLocal ? kLocalWindow : 0;
  }
  if (space == Space::kGlobal) return PlaceInGlobal(warp, lane, pc, instruction, address);
  if (space == Space::kShared) {
    std::vector<std::byte>& shared = warp->block->shared;
    if (address > shared.size() || bytes > shared.size() - address) {
      Complain(*warp, lane, pc, Finding::kOutOfBounds, address, "beyond the block's shared memory");
      throw LaunchEnds();
    }
    Finding finding = Finding::kRace;
    const AccessKind kind = KindOf(instruction, IsSame(warp->registers, instruction, lane, &shared[address]));
    const std::string conflict =
        warp->block->shadow.AccessShared(kLanes * warp->index + lane, uint32_t(address), bytes, kind, &finding);
    if (!conflict.empty()) Complain(*warp, lane, pc, finding, address, "shared memory: " + conflict);
    return &shared[address];
  }
  const size_t size = program_.local_valid.size();
  if (address > size || bytes > size - address || program_.local_valid[address] == 0 ||
      program_.local_valid[address + bytes - 1] == 0) {
    Complain(*warp, lane, pc, Finding::kOutOfBounds, address, "no variable in local memory");
    throw LaunchEnds();
  }
  uint8_t* const written = &warp->local_written[lane * size + address];
  if (instruction.kind != Kind::kLoad) {
    std::fill_n(written, bytes, uint8_t{1});
  } else if (std::all_of(written, written + bytes, [](uint8_t byte) { return byte == 0; })) {
    // Copies of structs also read padding, so one written byte is enough.
    Complain(*warp, lane, pc, Finding::kUnwritten, address, "local memory that the thread has not written");
  }
  return &warp->local[lane * size + address];
}

std::byte* Machine::PlaceInGlobal(Warp* warp, uint32_t lane, uint32_t pc, const Instruction& instruction,
                                  uint64_t address) {
  const uint32_t bytes = instruction.count * instruction.size;
  auto* const place = reinterpret_cast<std::byte*>(address);
  const uint32_t thread = kLanes * warp->index + lane;
  BlockShadow& shadow = warp->block->shadow;
  if (instruction.kind == Kind::kAtomic) shadow.Synchronize(thread, address);
  if (memory_ == nullptr) return place;
  const auto has = [&](uint64_t begin, uint64_t size) {
    return address - begin < size && bytes <= size - (address - begin);
  };
  const auto range = std::ranges::find_if(*memory_, [&](const MemoryRange& r) { return has(r.begin, r.bytes); });
  if (range == memory_->end()) {
    const auto is_there = [&](const Variable& variable) { return variable.Has(address, bytes); };
    if (instruction.kind == Kind::kLoad && std::ranges::any_of(program_.variables, is_there)) return place;
    Complain(*warp, lane, pc, Finding::kOutOfBounds, address, "none of the launch's memory");
    throw LaunchEnds();
  }
  if (range->is_read_only) {
    if (instruction.kind == Kind::kLoad) return place;
    Complain(*warp, lane, pc, Finding::kReadOnly, address, "the launch may only read it");
    throw LaunchEnds();
  }
  if (range->shadow == nullptr) range->shadow = std::make_shared<RangeShadow>(range->bytes, range->is_written);
  const uint64_t at = address - range->begin;
  uint8_t* const written = &range->shadow->written[at];
  if (instruction.kind != Kind::kStore && std::find(written, written + bytes, 0) != written + bytes) {
    Complain(*warp, lane, pc, Finding::kUnwritten, address, "global memory that has not been written");
  }
  const auto is_new = [this](const ByteShadow& cell) { return cell.written > global_shadow_.launched(); };
  if (instruction.is_constant && range->shadow->cells.Any(at, bytes, is_new)) {
    Complain(*warp, lane, pc, Finding::kReadOnly, address, "ld.global.nc of what this launch has written");
  }
  if (instruction.kind != Kind::kLoad) std::fill_n(written, bytes, uint8_t{1});
  const AccessKind kind = KindOf(instruction, IsSame(warp->registers, instruction, lane, place));
  const std::string conflict =
      global_shadow_.Access(shadow, shadow.AccessorOf(thread), &range->shadow->cells, at, bytes, kind);
  if (!conflict.empty()) Complain(*warp, lane, pc, Finding::kRace, address, "global memory: " + conflict);
  return place;
}

// Counts sectors of global memory, or passes over the banks of shared memory. A pass serves 32 lanes of 4 bytes, 16 of
// 8 or 8 of 16.
void Machine::CountAccess(uint32_t pc, const Instruction& instruction, uint32_t mask, const uint64_t* addresses) {
  const uint32_t bytes = instruction.count * instruction.size;
  const uint64_t some = addresses[std::countr_zero(mask)];
  const bool is_generic = instruction.space == Space::kGeneric;
  if (instruction.space == Space::kGlobal || (is_generic && some < kSharedWindow)) {
    std::vector<uint64_t> sectors;
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      sectors.push_back(addresses[std::countr_zero(rest)] / kSectorBytes);
    }
    std::ranges::sort(sectors);
    const auto count = uint64_t(std::unique(sectors.begin(), sectors.end()) - sectors.begin());
    counts_[pc].sectors += count;
    const auto is_there = [&](const Variable& variable) { return variable.Has(some, bytes); };
    if (std::ranges::any_of(program_.variables, is_there)) counts_[pc].table_sectors += count;
    return;
  }
  if (instruction.space != Space::kShared && !(is_generic && some < kLocalWindow)) return;
  const uint32_t lanes = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
  for (uint32_t first = 0; first < kLanes; first += lanes) {
    std::vector<uint64_t> words[kBanks];
    size_t passes = 0;
    for (uint32_t lane = first; lane < first + lanes; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      for (uint64_t word = addresses[lane] / 4; word <= (addresses[lane] + bytes - 1) / 4; ++word) {
        std::vector<uint64_t>& bank = words[word % kBanks];
        if (std::ranges::find(bank, word) == bank.end()) bank.push_back(word);
        passes = std::max(passes, bank.size());
      }
    }
    if (passes > 1) counts_[pc].conflicts += passes - 1;
  }
}

}  // namespace sortition::testing::ptx
