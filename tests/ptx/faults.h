// Faults planted in the text of a module.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sortition::testing::ptx {

enum class FaultKind : uint8_t {
  kBarrier,    // a barrier of the block is removed
  kFence,      // a fence is removed
  kMask,       // the mask of lanes that meet lacks a lane
  kIndex,      // an access of shared or global memory is off by one element
  kStore,      // a store to shared or global memory is removed
  kAlignment,  // an access of shared or global memory is off by one byte
  kBounds,     // an access of shared or global memory is off by a gigabyte
  kUnknown,    // an instruction is one that the interpreter does not have
};
const char* NameOf(FaultKind kind);

// A fault, at the nth place of its kind, from 0, in the functions whose names contain `function`.
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

  // A line, from 1, where a fault of that kind can be planted.
  struct Place {
    uint32_t line = 0;
    std::string function;
    uint32_t nth = 0;  // in the function
  };
  // Returns the places in the functions whose names contain `function`, in the order of the text.
  std::vector<Place> Places(FaultKind kind, const std::string& function) const;

  // Returns the text with such a fault at a place of that kind. All other lines keep their numbers.
  std::string With(FaultKind kind, uint32_t line) const;

 private:
  std::vector<std::string> lines_;
  std::vector<std::string> functions_;  // by line: its function; empty outside of functions' bodies
};

}  // namespace sortition::testing::ptx
