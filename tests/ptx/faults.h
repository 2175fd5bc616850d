// Faults planted in the text of a module.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sortition::testing::ptx {

enum class FaultKind : uint8_t {
  kBarrier,  // a barrier of the block is removed
  kFence,    // a fence is removed
  kMask,     // a lane is taken out of the mask of lanes that meet
  kIndex,    // an access of shared or global memory is off by one element
};
const char* NameOf(FaultKind kind);

// Where one is planted: the nth place of its kind in the functions whose names contain `function`, from 0.
struct Fault {
  FaultKind kind;
  std::string module;
  std::string function;
  uint32_t nth;
  std::string name() const;
};

// Returns the text with the fault; empty if there is no such place. Sets `line` to the place.
std::string Plant(const std::string& text, const Fault& fault, uint32_t* line);

}  // namespace sortition::testing::ptx
