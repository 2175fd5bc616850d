// Reads from a message's encoding facts that its parsed form hides, or shows at a higher cost: its parts and rows,
// fields that are set twice, and whether anything is unknown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "service/limits.h"
#include "service/refusal.h"

namespace sortition::service {

// A field that is set for the second time: the same field, or another member of its oneof. protobuf takes the last one
// and drops the first.
struct SetTwice {
  Refusal refusal;              // CONTRADICTION, with the path of the second one
  std::optional<uint32_t> row;  // index of the row that has it, in a stream's step
  bool is_task = false;         // it is the row's task: the row may take any number of tensor rows
};

// Holds what a scan of a message's encoding has found, in O(bytes), before protobuf spends memory on it.
struct WireScan {
  enum class End : uint8_t {
    kWhole,         // all was scanned
    kMalformed,     // protobuf refuses the bytes
    kGroup,         // a wire type that proto3 does not have
    kTooManyParts,  // more than kMaxMessageParts
    kTooManyRows,
  };
  End end = End::kWhole;
  // Messages, strings and lists of numbers, at any depth down to protobuf's bound. An unknown field counts as eight, a
  // message once more for each 160 bytes of its type. protobuf spends far more memory and time on a part than on its
  // two bytes on the wire.
  uint32_t parts = 0;
  uint32_t rows = 0;
  uint32_t history_tokens = 0;  // of an open; those that are packed
  // For each row of a step, the first field that it sets twice, in the order of rows. One entry may be the first such
  // field outside of rows.
  std::vector<SetTwice> set_twice;
  // False: every field and enum value is known, and every field has its wire form: FindUnknown (strictness.h) would
  // find nothing. True: one is not, the scan has ended early, or there was none.
  bool may_have_unknown = true;
};

// All of these are thread-safe, and allocate nothing if no field is set twice.

// Scans the encoding of a StreamRequest, once, up to the first error. Ends at more than `most_rows` rows.
WireScan ScanStream(absl::string_view encoded, uint32_t most_rows = kMostStepPositions);
// As ScanStream for a SampleRequest, where a field that a row sets twice is one of the message.
WireScan ScanSample(absl::string_view encoded, uint32_t most_rows = kMostStepPositions);

// Returns why a message whose scan has ended early is not parsed; none if all was scanned. `rows`: the path of its
// rows, `type`: its name.
std::optional<Refusal> WhyNotRead(const WireScan& scan, absl::string_view rows, Bound most_rows,
                                  absl::string_view type);

// Returns the first field that an encoded message of `type` sets twice, at any depth. In bytes that are no message, the
// scan ends at the first error. `type` has at most 64 fields and oneofs.
std::optional<SetTwice> FindSetTwice(absl::string_view encoded, const google::protobuf::Descriptor& type);

// Returns true if an encoded message has at most `most` bytes beside its field `field`. Looks at no more than these.
bool HasAtMostBytesBeside(int field, absl::string_view encoded, uint64_t most);

}  // namespace sortition::service
