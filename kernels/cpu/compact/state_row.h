// States a compact row on the CPU (kernels/law/COMPACT.md), with the bits of law::StateRowReference.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/compact_row.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/target.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// The parts of a compact row that are wanted.
struct StatedParts {
  uint32_t count = 256;                  // first tokens in order, 1 to the law's largest vocabulary
  std::span<const uint32_t> named = {};  // further tokens, sorted
  bool unit_sum = false;
  bool sum = false;
};

// States the logits of `request`, whose masks, edits and task are ignored, and overwrites `*row`. Returns false if the
// row fails with these logits: then `*row` has no meaning, and the caller sends the whole row. Every target states the
// same. Takes one pass over the logits, and one more for each sum. Thread-safe for distinct scratches and rows.
bool StateRow(const Target& target, const RowRequest& request, const StatedParts& parts, Scratch* scratch,
              StatedRow* row);

// States it on the best target.
bool StateRow(const RowRequest& request, const StatedParts& parts, Scratch* scratch, StatedRow* row);

}  // namespace sortition::kernels::cpu
