// The search for a token's edit, and the edit.
#include "kernels/cpu/one_edit.h"

#include "kernels/law/row_law.h"

namespace sortition::kernels::cpu {

// The processor cannot guess branches here.
const LogitEdit* FindEdit(std::span<const LogitEdit> edits, uint32_t token) {
  if (edits.empty()) return nullptr;
  const LogitEdit* first = edits.data();
  for (size_t count = edits.size(); count > 1;) {
    const size_t half = count / 2;
    first += first[half].token <= token ? half : 0;
    count -= half;
  }
  return first->token == token ? first : nullptr;
}

uint32_t ChangedBits(const RowParameters& parameters, const LogitEdit& edit, uint32_t bits) {
  if ((edit.flags & LogitEdit::kBanned) != 0) return law::kMaskedBits;
  const bool repeated = (edit.flags & LogitEdit::kRepeated) != 0;
  return law::Changed(bits, edit.bias, repeated ? parameters.repetition : 0,
                      repeated ? parameters.inverse_repetition : 0, edit.penalty);
}

}  // namespace sortition::kernels::cpu
