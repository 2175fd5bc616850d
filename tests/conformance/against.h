// Two sides that answer the same random rows for hours, compared bit for bit (docs/proof.md).
#pragma once

#include <cstdint>
#include <string>

#include "devices/device.h"

namespace sortition {

struct AgainstOptions {
  uint64_t rows = 0;   // to compare, those of earlier runs included
  uint64_t seed = 0;   // other rows for another one
  std::string sides;   // names both, for the file and the report
  std::string resume;  // file that keeps how far the comparison has come; empty: none
};

// Compares `device` with `other`, "local:DEVICE". Prints progress. Returns 0 if all is equal, 1 if an answer differs, 2
// if a side or the file cannot be used.
int RunAgainst(const AgainstOptions& options, devices::Device* device, const std::string& other);

}  // namespace sortition
