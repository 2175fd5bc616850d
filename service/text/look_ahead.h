// Look-ahead: the history that a sequence's options see at positions that do not exist yet, after drafts or given
// tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kernels/row.h"
#include "service/text/sequence_state.h"

namespace sortition::service {

// Tokens that may follow the history. parents[i] < i is the token before tokens[i]; -1 is the history's last.
struct TokenTree {
  std::vector<uint32_t> tokens;
  std::vector<int32_t> parents;

  static TokenTree Chain(std::vector<uint32_t> tokens);
  bool operator==(const TokenTree&) const = default;
};

// The options' view of the history at one position.
struct PositionView {
  std::shared_ptr<const std::vector<kernels::LogitEdit>> edits;
  std::optional<kernels::NoiseKey> marked_noise;  // for a draw that a watermark marks, in place of the sequence's
  std::optional<uint32_t> forced;                 // token that is emitted in any case; the edits do not matter then
  uint32_t phase = kNoPhase;                      // its options hold
  bool ends_result = false;  // the tree's token before the position ends a result (TextEnd::is_last)
};

using PositionViews = absl::InlinedVector<PositionView, 1>;

// Bytes of the edits that the first view does not share; consecutive views may share theirs.
uint64_t BytesAhead(const PositionViews& views);

// Returns the views at the history's end and after each token of the tree, tokens.size() + 1 in all. Leaves the state
// as it was. The borrower owns the edits; without any token they are lent instead, as LendEdits says.
PositionViews LookAhead(SequenceState* state, const TokenTree& tree);

}  // namespace sortition::service
