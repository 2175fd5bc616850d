// The draw again, from the kept tokens of a receipt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "service/receipt/record.h"
#include "service/text/sequence_spec.h"

namespace sortition::client {

// The token and logprob that follow from a receipt's kept tokens.
struct RedrawnToken {
  // Why no row can have these kept tokens; empty if one can.
  std::string why_not = {};
  std::optional<uint32_t> logprob_bits;  // absent for adaptive-p and for a token that is not kept
  bool is_kept = false;                  // the receipt's token is
  // The token of the race; absent without a seed, or where the method is another one.
  std::optional<uint32_t> token;
};

// True if the sequence's draws cannot be made again from kept tokens: adaptive-p.
bool IsAdapted(const service::SequenceSpec& spec);

// `receipt` lists its kept tokens. `spec` has the chain's parameters. Any receipt that was decoded may be given.
// Thread-safe. Takes some 100 ns a kept token.
RedrawnToken Redraw(const service::SequenceSpec& spec, std::optional<uint64_t> seed, const service::Receipt& receipt);

}  // namespace sortition::client
