// Assertions of our own invariants, alive in every build. Input from outside is never judged here: it gets a typed
// error.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace sortition {

[[noreturn]] inline void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, condition);
  std::abort();
}

}  // namespace sortition

// Aborts with place and condition if `condition` is false.
#define SORTITION_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::sortition::CheckFailed(#condition, __FILE__, __LINE__))
