// Look-ahead: the history that a sequence's options see at positions that do not exist yet, after drafts or given
// tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kernels/row.h"
#include "service/text/cost.h"
#include "service/text/history/position_edits.h"
#include "service/text/text.h"

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
  // The view at the end of `state`.
  PositionView(const Text& state, PositionEdits changed)
      : edits(std::move(changed)),
        marked_noise(state.marked_noise()),
        forced(state.forced_token()),
        phase(state.phase()) {}

  PositionEdits edits;
  std::optional<kernels::NoiseKey> marked_noise;  // for a draw that a watermark marks, in place of the sequence's
  std::optional<uint32_t> forced;                 // token that is emitted in any case; the edits do not matter then
  uint32_t phase = kNoPhase;                      // its options hold
  bool ends_result = false;  // the tree's token before the position ends a result (TextEnd::is_last)
  bool made_edits = false;   // the list was made for the row, and is not the state's
};

using PositionViews = absl::InlinedVector<PositionView, 1>;

// How the lists of a row's positions are used.
enum class EditsUse : uint8_t {
  kInTurn,    // one after the other
  kTogether,  // at once: each list that differs has memory for itself
  kChanged,   // at once, and each is changed further
};

// Bytes of the views after the first, and of the lists that all of them need beside the state's.
uint64_t BytesAhead(const PositionViews& views, EditsUse use);

// Returns the views at the history's end and after each token of the tree, tokens.size() + 1 in all. Leaves the state
// as it was. The edits are lent, as Text::LendEdits says. Returns fewer views if `bill`, which may be null,
// does not suffice for all of them.
PositionViews LookAhead(Text* state, const TokenTree& tree, EditsUse use = EditsUse::kTogether, Bill* bill = nullptr);

}  // namespace sortition::service
