// Bounds what an encoded message may grow to before it is parsed.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"

namespace sortition::service {

// Returns true if an encoded message of `type` has at most `most` parts: messages, strings and unknown fields, at any
// depth. protobuf spends far more memory on a part than its two bytes on the wire. In bytes that are no message, the
// parts before the first error count. Allocates nothing; O(fields); `type` does not contain itself. Thread-safe.
bool HasAtMostParts(absl::string_view encoded, const google::protobuf::Descriptor& type, uint32_t most);

}  // namespace sortition::service
