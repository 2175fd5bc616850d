// What a sequence would see at positions that do not exist yet: after tokens that a drafter proposes, or that are
// given.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kernels/row.h"
#include "service/sequence/edit_log.h"
#include "service/sequence/sequence_state.h"

namespace sortition::service {

// Tokens that may follow the history. parents[i] < i is the token before tokens[i]; -1 is the history's last.
struct TokenTree {
  std::vector<uint32_t> tokens;
  std::vector<int32_t> parents;

  static TokenTree Chain(std::vector<uint32_t> tokens);
  bool operator==(const TokenTree&) const = default;
};

// What a row at one position sees of the history.
struct PositionView {
  std::shared_ptr<const std::vector<kernels::LogitEdit>> edits;
  EditLog trail;                       // of the edits
  std::optional<uint64_t> noise_seed;  // of a watermark: it stands for the sequence's seed, and the position is 0
  std::optional<uint32_t> forced;      // the token that comes whatever the row says; the edits do not matter then
};

using PositionViews = absl::InlinedVector<PositionView, 1>;

// Of edits that the first view does not have, too; views one after the other may share theirs.
uint64_t BytesAhead(const PositionViews& views);

// The views at the history's end and after each token of the tree, tokens.size() + 1 of them. The state is the same
// afterwards. Edits are the borrower's, unless there is no token: then they are lent, as LendEdits says.
PositionViews LookAhead(SequenceState* state, const TokenTree& tree);

}  // namespace sortition::service
