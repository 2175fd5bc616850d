// One edit, and the token that it changes.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/row.h"

namespace sortition::kernels::cpu {

// Returns the token's edit, or null. O(log edits), without branches.
const LogitEdit* FindEdit(std::span<const LogitEdit> edits, uint32_t token);

// Returns the token's bits after its edit. They fail the row if law::IsTooLarge holds.
uint32_t ChangedBits(const RowParameters& parameters, const LogitEdit& edit, uint32_t bits);

// True if the repetition penalty moves tokens up, or widens the distances between them.
inline bool RepetitionRaises(const RowParameters& parameters) {
  constexpr uint32_t kOne = 0x3f800000u;  // f32 bits
  return parameters.repetition != 0 && parameters.repetition < kOne;
}

// False if the edit moves its token down or not at all. The repetition penalty is left out.
inline bool MayRaise(const LogitEdit& edit) { return int32_t(edit.bias) > 0 || int32_t(edit.penalty) > 0; }

}  // namespace sortition::kernels::cpu
