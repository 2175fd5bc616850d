// Reading of files of receipts, of any size, and of the seeds that open them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/receipts/receipt_check.h"
#include "client/receipts/row_file.h"

namespace sortition::client {

// Gives a file, or standard input for "-", to `take` in pieces of 1 MiB until it returns false. Says on a terminal how
// far it is. The error names the path.
absl::Status ReadPieces(const std::string& path, absl::FunctionRef<bool(std::string_view)> take);

// Gives each record's type and body to `take`. Stops at the first error, which names the path and the problem: one of
// `take`, a cut record, or one that is too long.
absl::Status ReadRecords(const std::string& path,
                         absl::FunctionRef<absl::Status(uint8_t type, std::string_view body)> take);

// Gives a file, or standard input for "-", to `check` in pieces of 1 MiB, and ends it there. Stops early when
// `wants_more` returns false. Says on a terminal how far it is. The error names the path.
absl::Status ReadReceipts(
    const std::string& path, ReceiptCheck* check, absl::FunctionRef<bool()> wants_more = [] { return true; });

// Reads openings of seeds. The error names the flag and the path.
absl::StatusOr<std::vector<SeedOpening>> ReadSeeds(const std::string& path);

}  // namespace sortition::client
