// Sides that answer the same random rows for hours, compared bit for bit (docs/proof.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "devices/device.h"
#include "sortition/client.h"

namespace sortition {

struct AgainstOptions {
  uint64_t rows = 0;   // to compare, those of earlier runs included
  uint64_t seed = 0;   // other rows for another one
  std::string sides;   // names them, for the file and the report
  std::string resume;  // file that keeps how far the comparison has come; empty: none
};

using Connector = std::function<absl::StatusOr<std::unique_ptr<client::Client>>(std::vector<std::string> targets)>;

// Compares `device` with `other`: "local:DEVICE", several of these with commas between them, or a service's address,
// whose texts are compared with those of sequences in this process. Prints progress. Returns 0 if all is equal, 1 if an
// answer differs, 2 if a side or the file cannot be used. Rows of CPU devices are drawn on this thread.
int RunAgainst(const AgainstOptions& options, devices::Device* device, const std::string& other,
               const Connector& connect);

}  // namespace sortition
