// The file receipts.bin of an archive (docs/proof.md): records of receipts, as columns that a compressor makes small.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sortition::archive {

// Returns the file of these records (docs/receipts.md), which may be any: those that no column can have stand in it as
// they are. The error says where the records end early.
absl::StatusOr<std::string> PackReceipts(std::string_view records);

}  // namespace sortition::archive
