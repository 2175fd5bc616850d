// An exported state, read back.
#pragma once

#include <string>
#include <variant>

#include "absl/strings/string_view.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/sequence/sequence_snapshot.h"

namespace sortition::service {

// Refuses by field path below `path` what is no snapshot of a format that this server reads. Whether it contradicts
// itself is for SequenceState::FromSnapshot to tell. Thread-safe.
std::variant<SequenceSnapshot, Refusal> ParseSnapshot(const std::string& bytes, const Limits& limits,
                                                      absl::string_view path);

}  // namespace sortition::service
