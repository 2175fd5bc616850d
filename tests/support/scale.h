// Amount of work of randomised tests.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace sortition::testing {

// The environment's TEST_SCALE, a fraction in (0, 1]; 1 where it is not set. Builds that run slowly
// (sanitizers) set it lower. Anything else aborts: a test must not shrink to nothing because of a typing error.
inline double TestScale() {
  const char* text = std::getenv("TEST_SCALE");
  if (text == nullptr || *text == '\0') return 1;
  char* end = nullptr;
  const double scale = std::strtod(text, &end);
  if (*end != '\0' || !(scale > 0 && scale <= 1)) {
    std::fprintf(stderr, "TEST_SCALE must be in (0, 1], not '%s'\n", text);
    std::abort();
  }
  return scale;
}

// `count` repetitions at scale 1; at least one.
inline uint64_t Scaled(uint64_t count) {
  const auto scaled = static_cast<uint64_t>(static_cast<double>(count) * TestScale());
  return scaled == 0 ? 1 : scaled;
}

}  // namespace sortition::testing
