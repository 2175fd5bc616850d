// Finds the library function that an interposed one stands in front of.
#pragma once

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace sortition::sanitizer {

// The next definition of `symbol` (mangled) after this binary's own. Ends the process if no shared library has one.
template <typename Function>
Function* Original(const std::string& symbol) {
  void* const found = dlsym(RTLD_NEXT, symbol.c_str());
  if (found == nullptr) {
    std::fprintf(stderr, "no shared library defines %s, which the thread-sanitizer build stands in front of\n",
                 symbol.c_str());
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace sortition::sanitizer
