// Reads an exported state.
#pragma once

#include <string>
#include <variant>

#include "absl/strings/string_view.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/sequence/sequence_snapshot.h"

namespace sortition::service {

// Parses the bytes of a snapshot. Refuses bytes that are none, and other formats than kSnapshotFormat, by field path
// below `path`. SequenceState::FromSnapshot checks whether the parts agree with each other. Thread-safe.
std::variant<SequenceSnapshot, Refusal> ParseSnapshot(const std::string& bytes, const Limits& limits,
                                                      absl::string_view path);

}  // namespace sortition::service
