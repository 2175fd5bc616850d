// A PTX module, decoded: one array of instructions whose operands are places in a warp's registers.
//
// A function's registers, its local memory and its parameters have fixed places, because these modules have no
// recursion. So lanes of a warp that stand in different functions never share a place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tests/ptx/cycles.h"

namespace sortition::testing::ptx {

inline constexpr uint32_t kLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffff;

// Generic addresses of shared and local memory begin here. Other addresses are the host's.
inline constexpr uint64_t kSharedWindow = uint64_t{1} << 60;
inline constexpr uint64_t kLocalWindow = uint64_t{1} << 61;

// Thrown for text that the parser or the interpreter does not know; names its line.
class Unknown : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

enum class Kind : uint8_t {
  kCompute,  // every lane alone
  kLoad,
  kStore,
  kAtomic,
  kBranch,
  kCall,
  kReturn,
  kBarrier,  // of a block
  kMeet,     // lanes of a mask meet: shuffles, votes, reductions, a warp's barrier
  kFence,
};

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParam };

// Registers of a warp, by byte offset. A row holds one value per lane; a predicate is one word with one bit per lane.
class Registers {
 public:
  explicit Registers(size_t bytes) : bytes_(std::make_unique_for_overwrite<std::byte[]>(bytes)) {}
  template <typename T>
  T* row(uint32_t at) const {
    return reinterpret_cast<T*>(bytes_.get() + at);
  }
  uint32_t& predicate(uint32_t at) const { return *row<uint32_t>(at); }

 private:
  std::unique_ptr<std::byte[]> bytes_;
};

struct Instruction;
// Writes the results of the lanes of `mask`.
using Apply = void (*)(const Registers& registers, const Instruction& instruction, uint32_t mask);

enum class AtomicOperation : uint8_t { kAdd, kMax, kAnd };

struct Instruction {
  Apply apply = nullptr;  // kCompute, kMeet
  Kind kind = Kind::kCompute;
  Space space = Space::kGeneric;
  AtomicOperation atomic = AtomicOperation::kAdd;
  uint8_t count = 1;               // values that a load or store moves
  uint8_t size = 0;                // bytes of one value in memory
  uint8_t registers_size = 0;      // bytes of one in a register
  bool is_signed = false;          // a load extends the sign
  bool is_constant = false;        // ld.global.nc
  bool is_volatile = false;        // a load that may race with atomic operations
  bool address_is_narrow = false;  // 32 bits
  bool has_guard = false;
  bool guard_is_negated = false;
  bool is_of_whole_warp = false;  // a warp's barrier, which orders memory
  uint8_t mask_operand = 0;       // kMeet: which operand is the mask
  uint8_t source_operand = 0;     // kMeet: which operand is the exchanged value
  uint8_t results = 1;            // kCompute, kMeet: the first operands, which it writes
  Cost cost;
  uint32_t guard = 0;
  uint32_t operands[6] = {};  // rows' places; a load's or store's values begin at index 0
  uint32_t address = 0;       // place of the address's row
  int64_t offset = 0;         // added to it; the target of a branch or call
  uint32_t line = 0;
};

struct Function {
  std::string name;
  uint32_t first = 0;  // instruction
  uint32_t end = 0;
  uint32_t parameters = 0;  // place of an entry's parameters in a lane's parameter memory
  uint32_t parameter_bytes = 0;
  bool is_entry = false;
};

// The row of a constant. Every warp's registers begin with these rows.
struct ConstantRow {
  uint32_t at;
  uint32_t size;
  uint64_t bits;
};

// Special registers, as places of rows.
struct SpecialRows {
  uint32_t tid_x = 0, ctaid_x = 0, ctaid_y = 0;
};

// A read-only variable of the module in global memory. It is aligned to a sector, as the linker aligns the kernels'
// tables; otherwise counts would differ from run to run.
struct Variable {
  struct alignas(128) Line {
    std::byte bytes[128];
  };
  std::vector<Line> memory;  // does not move
  uint64_t bytes = 0;
  uint64_t begin() const { return reinterpret_cast<uint64_t>(memory.data()); }
  bool Has(uint64_t address, uint64_t size) const {
    return address - begin() < bytes && size <= bytes - (address - begin());
  }
};

// Immutable after Parse; several machines may use one.
struct Program {
  std::vector<Instruction> code;
  std::vector<Function> functions;  // in the order of `code`
  std::vector<ConstantRow> constants;
  SpecialRows special;
  uint32_t registers_bytes = 0;
  uint32_t parameter_bytes = 0;      // of a lane
  uint32_t shared_bytes = 0;         // of a block
  std::vector<uint8_t> local_valid;  // by byte of a lane's local memory: 1 if it belongs to a variable
  std::vector<Variable> variables;
  std::map<std::string, uint32_t> labels;  // by FUNCTION:LABEL, the instruction

  const Function& entry(std::string_view name) const;
  const Function& FunctionAt(uint32_t pc) const;
};

// Decodes the text of a module, as nvcc emits it. Throws Unknown, which names the unknown word and its line.
Program Parse(std::string_view text);

}  // namespace sortition::testing::ptx
