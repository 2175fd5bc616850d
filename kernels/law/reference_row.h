// A row on its way through the law, once its logits, or a compact row's first ones, are known. The references of rows
// and of compact rows share this.
#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "kernels/compact_row.h"
#include "kernels/law/law.h"
#include "kernels/law/reference_chain.h"
#include "kernels/row.h"

namespace sortition::law {

// Returns a logit of the request as it was sent, as f32 bits.
u32 SentBits(const kernels::RowRequest& request, u32 id);
// Returns why a logit that was sent fails its row, or kNone.
kernels::RowFault SentError(u32 sent, const kernels::RowParameters& parameters);

// True if every mask of the request allows the token.
bool IsAllowed(const kernels::RowRequest& request, u32 id);

// Returns the edit of a token, or null.
const kernels::LogitEdit* FindEdit(const kernels::RowRequest& request, u32 id);

// Returns the bits after masks, bans, bias and penalties; IsTooLarge holds where they fail the row.
u32 ChangedBits(const kernels::RowRequest& request, kernels::TokenBits token);

// Returns the tokens that are not masked, first in order first. They are given by ascending id.
std::vector<kernels::TokenBits> LiveInOrder(std::vector<kernels::TokenBits> tokens);

kernels::RowOutput FailedRow(kernels::RowFault error, u32 id);

// The tokens of a row whose logits are known, before and after the changes, and the statements about the others.
struct ListedRow {
  std::vector<kernels::TokenBits> raw;   // in order, live
  std::vector<kernels::TokenBits> kept;  // after the changes: in order, live
  std::optional<Rest> raw_rest;          // absent: `raw` has every live token
  std::optional<Rest> rest;              // absent: `kept` has every token
};

// Runs the row's stages and its draw. `row.kept` is not empty, nor is `row.raw` if the raw distribution is wanted.
// Without a rest the row is always decided.
std::variant<kernels::RowOutput, kernels::RowRequiredReason> RunListed(const kernels::RowRequest& request,
                                                                       const ListedRow& row);

}  // namespace sortition::law
