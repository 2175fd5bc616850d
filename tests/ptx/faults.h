// Faults planted in the text of a module.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sortition::testing::ptx {

enum class FaultKind : uint8_t {
  kBarrier,    // a barrier of the block is removed
  kFence,      // a fence is removed
  kMask,       // a mask of meeting lanes lacks one
  kIndex,      // an access of shared or global memory is off by one element
  kStore,      // a store to shared or global memory is removed
  kAlignment,  // an access of shared or global memory is off by one byte
  kBounds,     // an access of shared or global memory is off by a gigabyte
  kUnknown,    // an instruction is unknown to the interpreter
};
const char* NameOf(FaultKind kind);

// A fault at place `nth`, from 0, of its kind in the functions whose names contain `function`.
struct Fault {
  FaultKind kind;
  std::string module;
  std::string function;
  uint32_t nth;
  std::string name() const;
};

// A module's text in which faults can be planted. Thread-compatible.
class ModuleLines {
 public:
  explicit ModuleLines(const std::string& text);

  // A line, from 1, that can take a fault of the kind.
  struct Place {
    uint32_t line = 0;
    std::string function;
    uint32_t nth = 0;  // in the function
  };
  // Returns the places in the functions whose names contain `function`, in the order of the text.
  std::vector<Place> Places(FaultKind kind, const std::string& function) const;

  // Returns the text with a fault of the kind in that line. All other lines keep their numbers.
  std::string With(FaultKind kind, uint32_t line) const;

 private:
  std::vector<std::string> lines_;
  std::vector<std::string> functions_;  // each line's function; empty outside of functions' bodies
};

}  // namespace sortition::testing::ptx
