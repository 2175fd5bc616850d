// Code that all targets share.
#include "tests/fuzz/fuzz_target.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>

namespace sortition::fuzz {

bool planted = false;

void Fail(const std::string& what) {
  std::cerr << "fuzz: " << what << std::endl;
  std::abort();
}

uint8_t Input::Byte() {
  const Bytes one = Take(1);
  return one.empty() ? 0 : one[0];
}

uint32_t Input::Word() {
  uint32_t word = 0;
  for (const uint8_t byte : Take(4)) word = word << 8 | byte;
  return word;
}

uint32_t Input::Below(uint32_t bound) { return (bound <= 256 ? Byte() : Word()) % bound; }

Bytes Input::Take(size_t size) {
  const Bytes taken = bytes_.first(std::min(size, bytes_.size()));
  bytes_ = bytes_.subspan(taken.size());
  return taken;
}

}  // namespace sortition::fuzz
