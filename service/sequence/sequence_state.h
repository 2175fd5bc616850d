// The history of one sequence and what penalties see of it, kept incrementally.
//
// Memory is O(distinct tokens + kept history), never O(vocabulary). Equal to a state rebuilt from the whole history
// after every step, byte for byte.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/row.h"
#include "service/sequence/sequence_spec.h"

namespace sortition::service {

// Not thread-safe. Token ids have been checked against the live vocabulary.
class SequenceState {
 public:
  // `kept_history`: how many tokens back the history can be truncated at least.
  SequenceState(std::shared_ptr<const SequenceSpec> spec, std::span<const uint32_t> tokens, uint32_t prompt_length,
                uint32_t kept_history);

  uint32_t position() const { return position_; }
  uint64_t history_hash() const { return hash_; }
  uint32_t prompt_length() const { return prompt_length_; }
  // Truncation below this position needs a replay.
  uint32_t lowest_truncation() const { return kept_from_ > prompt_length_ ? kept_from_ : prompt_length_; }
  uint64_t bytes() const;

  // Patches the next row sees: listed bias and bans, and the penalties of the history. A later change of this state
  // leaves what was handed out untouched.
  std::shared_ptr<const std::vector<kernels::TokenPatch>> SharePatches() {
    shared_ = true;
    return patches_;
  }

  void Append(uint32_t token);

  // What Edit changed, to take it back.
  struct Undo {
    std::vector<uint32_t> removed;  // tokens cut off, in order
    uint32_t appended = 0;
  };
  // Truncates to `truncate_to` (lowest_truncation() <= it <= position()), then appends at most `kept_history` tokens.
  // Returns how to undo it.
  Undo Edit(std::optional<uint32_t> truncate_to, std::span<const uint32_t> append);
  void Revert(const Undo& undo);

  const SequenceSpec& spec() const { return *spec_; }

 private:
  struct Count {
    uint32_t in_history = 0;  // prompt and output
    uint32_t in_output = 0;
    bool operator==(const Count&) const = default;
  };

  void Truncate(uint32_t position);
  void CountAll(std::span<const uint32_t> tokens);
  void CountToken(uint32_t token, int32_t change, bool output);
  kernels::TokenPatch PatchFor(kernels::TokenPatch listed, Count count) const;
  void PushToken(uint32_t token);
  uint64_t HashAt(uint32_t position) const;
  void TrimKept();

  std::shared_ptr<const SequenceSpec> spec_;
  uint32_t kept_history_;
  uint32_t prompt_length_ = 0;
  uint32_t position_ = 0;
  uint64_t hash_ = 0;

  // tokens_[i] is the token at position kept_from_ + i; marks_[j] is the hash before position (first_mark_ + j) *
  // kMarkSpacing.
  uint32_t kept_from_ = 0;
  std::vector<uint32_t> tokens_;
  uint32_t first_mark_ = 0;
  std::vector<uint64_t> marks_;

  // patches_ and counts_ run in parallel, sorted by token.
  std::shared_ptr<std::vector<kernels::TokenPatch>> patches_;
  std::vector<Count> counts_;
  bool shared_ = false;  // somebody else may read *patches_: copy before writing
};

}  // namespace sortition::service
