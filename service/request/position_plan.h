// What a row of a step asks for, position by position: a draw has one, scores and verifications have several.
//
// Position 0 stands at the row's own position in the text; the one after token i of the tree is number i + 1. A
// position is one tensor row, and one row for a device.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "service/sequence/look_ahead.h"

namespace sortition::service {

struct SparseDraft {
  std::vector<uint32_t> tokens;  // sorted
  std::vector<uint32_t> bits;    // f32 bits of their probabilities
};

// The tokens that a step allows at a position, beside what the sequence allows.
struct PositionMask {
  std::optional<uint32_t> mask_row;          // of the step's mask tensor, ...
  std::optional<uint64_t> uploaded_mask_id;  // ... or uploaded before, ...
  bool has_allowed_tokens = false;           // ... or a list
  std::vector<uint32_t> allowed_tokens;      // sorted, distinct

  bool is_packed() const { return mask_row || uploaded_mask_id; }
};

struct PositionPlan {
  enum class Kind : uint8_t {
    kDraw,
    kScore,    // `scored`, one a position
    kCompare,  // drafts are accepted that are what their position draws: greedy and coupled verification, and trees
    kReject,   // drafts of a chain are tested against the drafter's probabilities
  };
  Kind kind = Kind::kDraw;

  // The tokens that positions after the first follow: drafts, or given ones.
  TokenTree ahead;
  std::vector<uint32_t> scored;
  bool is_tree = false;

  // kReject: the first row of dense probabilities, or lists, or neither.
  std::optional<uint32_t> draft_row;
  std::vector<SparseDraft> sparse;
  bool return_probabilities = false;

  std::vector<PositionMask> masks;  // one for each position, or one for all, or none

  bool verifies() const { return kind == Kind::kCompare || kind == Kind::kReject; }
  uint32_t drafts() const { return verifies() ? static_cast<uint32_t>(ahead.tokens.size()) : 0; }
  uint32_t positions() const { return static_cast<uint32_t>(ahead.tokens.size()) + 1; }
  // How many tokens lie between position 0 and position `index`.
  uint32_t DepthOf(uint32_t index) const;
  // The first draft that follows position `index`; absent if none does.
  std::optional<uint32_t> FirstDraftAfter(uint32_t index) const;
};

}  // namespace sortition::service
