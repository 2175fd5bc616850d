// The draw again, from the kept tokens of a receipt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "service/receipt/record.h"
#include "service/sequence/sequence_spec.h"

namespace sortition::cli {

// The token and logprob that follow from a receipt's kept tokens.
struct RedrawnToken {
  // Why the token cannot have been drawn; empty if it can.
  std::string wrong_token = {};
  // Why the logprob cannot be the token's; empty if it can. Not looked at for a token that is not kept.
  std::string wrong_logprob = {};
  bool is_drawn = false;  // the draw was made again
};

// True for a sequence whose draws cannot be made again from kept tokens: adaptive-p.
bool IsAdapted(const service::SequenceSpec& spec);

// `receipt` lists its kept tokens. `spec` has the chain's parameters. Any receipt that was decoded may be given.
// Thread-safe. Takes some 100 ns a kept token.
RedrawnToken Redraw(const service::SequenceSpec& spec, std::optional<uint64_t> seed, const service::Receipt& receipt);

}  // namespace sortition::cli
