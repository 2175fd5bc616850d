// An OpenSequence message, validated and compiled.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "service/entropy.h"
#include "service/limits.h"
#include "service/refusal.h"
#include "service/sequence/sequence.h"
#include "service/sequence/sequence_spec.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

struct HistoryPiece {
  std::vector<uint32_t> tokens;  // of this piece
  uint32_t prompt_length = 0;    // of the whole history
  uint32_t offset = 0;           // of the piece in the whole history
  bool continues = false;        // more pieces follow
  uint32_t known_length = 0;     // of the whole history, as far as its first message tells; 0: not at all
};

struct OpenRequest {
  std::string request_id;
  uint64_t epoch = 0;
  std::string model;                         // may be empty
  std::shared_ptr<const SequenceSpec> spec;  // with a fresh seed if the message gave none
  std::optional<HistoryPiece> history;
};

// Refuses by field path below `path` ("open" or "fork_sequence.child"). A missing seed is
// drawn from `entropy`. `message` holds no unknown fields (strictness.h). Thread-safe.
std::variant<OpenRequest, Refusal> ParseOpen(const v1::OpenSequence& message, const Limits& limits,
                                             absl::string_view path, Entropy* entropy);

}  // namespace sortition::service
