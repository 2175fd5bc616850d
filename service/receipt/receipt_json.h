// Records of receipts as canonical JSON (RFC 8785, docs/receipts-elsewhere.md).
//
// Every function here is pure and thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "service/receipt/record.h"

namespace sortition::service {

// Returns a record's line, without a line break. The error says why the bytes are not the body of such a record, or
// that a request_id is not UTF-8 and so no JSON has it.
absl::StatusOr<std::string> ToJson(ReceiptRecord type, std::string_view body);

}  // namespace sortition::service
