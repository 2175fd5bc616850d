// A fuzz target is a function of bytes that ends the process on a finding.
//
// A target links with runner.cc, which replays its corpus and mutates it for some seconds, in any build; or with
// libfuzzer.cc, which lets coverage guide the mutations (./dev fuzz).
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace sortition::fuzz {

using Bytes = std::span<const uint8_t>;

// Runs one input; implemented by the target. An input must not change the result of the next one.
void Run(Bytes input);

// Set by --plant: the target carries a defect of its kind, which its inputs must find.
extern bool planted;

// Ends the process with a message that names the fault.
[[noreturn]] void Fail(const std::string& what);

// Takes an input apart: choices come from its front, and are 0 where nothing is left.
class Input {
 public:
  explicit Input(Bytes bytes) : bytes_(bytes) {}
  bool empty() const { return bytes_.empty(); }
  uint8_t Byte();
  uint32_t Word();                 // of four bytes
  uint32_t Below(uint32_t bound);  // bound > 0
  bool OneIn(uint32_t n) { return Below(n) == 0; }
  Bytes Take(size_t size);  // fewer where fewer are left
  Bytes Rest() { return Take(bytes_.size()); }

 private:
  Bytes bytes_;
};

}  // namespace sortition::fuzz
