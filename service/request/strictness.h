// Refuses what protobuf would drop in silence: unknown fields and unknown enum values, anywhere in a message.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "service/refusal.h"

namespace sortition::service {

// The first unknown field (UNKNOWN_FIELD) or enum value (UNKNOWN_ENUM_VALUE) in `message` or in any message below it.
// `path` is the message's own, "" for a whole StreamRequest. Thread-safe.
std::optional<Refusal> FindUnknown(const google::protobuf::Message& message, absl::string_view path);

}  // namespace sortition::service
