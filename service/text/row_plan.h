// The plan of a row: its worker's request, position by position, as plain values that have been checked.
//
// A draw has one position; scores and verifications have several. Position 0 is the row's own position in the text. The
// position after token i of `ahead` is number i + 1. Each position is one row of logits, and one row for a device.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/compact_row.h"
#include "service/text/look_ahead.h"

namespace sortition::service {

// A position in a text.
struct TextPlace {
  uint32_t position = 0;
  uint64_t history_hash = 0;
  bool operator==(const TextPlace&) const = default;
};

// One step as its worker describes it.
struct StepIntent {
  uint64_t step_id = 0;
  uint32_t position = 0;
  std::optional<uint64_t> history_hash;
  std::optional<TextPlace> checkpoint;  // position of the sampler state that the step brings
  std::optional<uint32_t> truncate_to;
  std::vector<uint32_t> append_tokens;
  uint64_t options_digest = 0;               // of everything else that may change the result
  EditsUse edits_use = EditsUse::kTogether;  // by the row's positions; changes no result
};

struct SparseDraft {
  std::vector<uint32_t> tokens;  // sorted
  std::vector<uint32_t> bits;    // f32 bits of their probabilities
};

// The tokens that a step allows at a position, all of them if it names none, and those that it bans. The sequence's own
// lists limit them further.
struct PositionMask {
  std::optional<uint32_t> mask_row;          // of the step's mask tensor, ...
  std::optional<uint64_t> uploaded_mask_id;  // ... or uploaded before, ...
  bool has_allowed_tokens = false;           // ... or a list
  std::vector<uint32_t> allowed_tokens;      // sorted, distinct
  std::vector<uint32_t> banned_tokens;       // sorted, distinct

  bool is_packed() const { return mask_row || uploaded_mask_id; }
  bool limits() const { return is_packed() || has_allowed_tokens || !banned_tokens.empty(); }
};

struct RowPlan {
  uint32_t row = 0;  // its index in the step, for the fields of refusals
  StepIntent intent;
  uint32_t draw_salt = 0;
  uint64_t sampler_state = 0;  // at position 0: the chain's first state, or a checkpoint's
  uint32_t tensor_row = 0;     // of the step's logits tensor, for position 0; later positions follow it

  enum class Kind : uint8_t {
    kDraw,
    kScore,    // positions score the tokens of `scored`
    kCompare,  // a draft is accepted if its position draws it: greedy and coupled verification, trees of certain drafts
    kReject,   // a position's draft is tested against the drafter's probabilities; several of them in rounds
    kBlock,    // as kReject, but the drafts are tested together, in order
  };
  Kind kind = Kind::kDraw;

  // The tokens that positions after the first follow: drafts, or given tokens.
  TokenTree ahead;
  std::vector<uint32_t> scored;  // kScore: one for each position
  // kScore: for each position, the ids whose logprobs are wanted; empty: the sequence's.
  std::vector<std::vector<uint32_t>> requested;
  bool wants_race = false;  // kScore: the places of the given tokens in the race
  bool is_tree = false;

  // kReject: the first row of dense probabilities, or lists; if neither, none (no tree). kBlock: dense or lists.
  // There is one distribution for each position that has drafts.
  std::optional<uint32_t> draft_row;
  std::vector<SparseDraft> sparse;
  bool with_replacement = false;  // kReject of a tree: DraftDistribution::with_replacement
  bool return_probabilities = false;

  // One for each position, in place of tensor rows; empty if the row's logits are whole.
  std::vector<kernels::StatedRow> compact;

  std::vector<PositionMask> masks;  // one for each position, or one for all, or none
  // The hash of each of `masks` that limits the draw, if the sequence has receipts (service/receipt/record.h).
  std::vector<std::optional<std::array<uint8_t, 32>>> mask_hashes;

  // Returns true if JudgeRow overwrites all that the plan has.
  bool is_plain_draw() const { return kind == Kind::kDraw && masks.empty() && compact.empty(); }
  bool verifies() const { return kind == Kind::kCompare || has_test(); }
  bool has_test() const { return kind == Kind::kReject || kind == Kind::kBlock; }
  uint32_t drafts() const { return verifies() ? static_cast<uint32_t>(ahead.tokens.size()) : 0; }
  uint32_t positions() const { return static_cast<uint32_t>(ahead.tokens.size()) + 1; }
  // Returns the number of tokens between position 0 and position `index`.
  uint32_t DepthOf(uint32_t index) const {
    uint32_t depth = 0;
    for (int32_t at = static_cast<int32_t>(index) - 1; at >= 0; at = ahead.parents[static_cast<size_t>(at)]) ++depth;
    return depth;
  }
  // Returns the first draft that follows position `index`, if any.
  std::optional<uint32_t> FirstDraftAfter(uint32_t index) const {
    if (!verifies()) return std::nullopt;
    const auto at = std::ranges::find(ahead.parents, static_cast<int32_t>(index) - 1);
    if (at == ahead.parents.end()) return std::nullopt;
    return static_cast<uint32_t>(at - ahead.parents.begin());
  }
  // Returns the number of positions before `index` that have drafts: the number of its distribution.
  uint32_t DistributionOf(uint32_t index) const;
};

}  // namespace sortition::service
