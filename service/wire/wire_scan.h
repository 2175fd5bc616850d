// Reads from a message's encoding facts that its parsed form hides, or shows at a higher cost: its parsed size, fields
// that are set twice, and whether anything is unknown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "service/refusal.h"

namespace sortition::service {

// Returns true if an encoded message of `type` has at most `most` parts: messages, strings and unknown fields, at any
// depth. protobuf spends far more memory on a part than its two bytes on the wire. In bytes that are no message, the
// parts before the first error count, and so do those that protobuf reads before it finds more than 100 messages within
// each other. Allocates nothing; O(fields). Thread-safe.
bool HasAtMostParts(absl::string_view encoded, const google::protobuf::Descriptor& type, uint32_t most);

// Returns the number of tokens in the history of an encoded StreamRequest's open, 0 if it has none. In bytes that are
// no message, the tokens before the first error count. Allocates nothing; O(bytes). Thread-safe.
uint32_t CountHistoryTokens(absl::string_view encoded);

// A field that is set for the second time: the same field, or another member of its oneof. protobuf takes the last one
// and drops the first.
struct SetTwice {
  Refusal refusal;              // CONTRADICTION, with the path of the second one
  std::optional<uint32_t> row;  // index of the row that has it, for FindSetTwiceInStream
  bool is_task = false;         // it is the row's task: the row may take any number of tensor rows
};

// Returns the first field that an encoded message of `type` sets twice, at any depth. In bytes that are no message, the
// scan ends at the first error. The caller has parsed them, so at most 100 messages are within each other. Allocates
// nothing if there is none; O(fields). `type` has at most 64 fields and oneofs. Thread-safe.
std::optional<SetTwice> FindSetTwice(absl::string_view encoded, const google::protobuf::Descriptor& type);

// Holds the parts of a StreamRequest's encoding that a sender must not send.
struct StreamScan {
  // For each row of a step, the first field that it sets twice. The last entry may be the first such field outside of
  // rows, which ends the scan.
  std::vector<SetTwice> set_twice;
  // False: every field and enum value is known, and every field has its wire form: FindUnknown (strictness.h) would
  // find nothing. True: one may be unknown, or the scan has left out a part, or there was none.
  bool may_have_unknown = true;
};

// Scans the encoding of a StreamRequest, once. As FindSetTwice in all else.
StreamScan ScanStream(absl::string_view encoded);

}  // namespace sortition::service
