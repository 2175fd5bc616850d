// Applies masks first, then edits of the tokens that they leave.
#include "kernels/vulkan/extras.h"

#include <algorithm>
#include <iterator>

#include "kernels/law/law.h"
#include "kernels/vulkan/layout.h"

namespace sortition::kernels::vulkan {
namespace {

void WriteMask(const RowRequest& request, uint32_t* visible) {
  const uint64_t words = VisibleWords(request);
  if (!request.has_allowed_tokens) {
    if (request.allowed_bits == nullptr) {
      std::fill_n(visible, words, 0xffffffffu);
    } else {
      std::copy_n(request.allowed_bits, words, visible);
    }
    return;
  }
  std::fill_n(visible, words, 0u);
  for (const uint32_t token : request.allowed_tokens) {
    const uint32_t bit = 1u << (token % 32);
    if (request.allowed_bits == nullptr || (request.allowed_bits[token / 32] & bit) != 0) visible[token / 32] |= bit;
  }
}

}  // namespace

bool HasExtras(const RowRequest& request) {
  return request.has_allowed_tokens || request.allowed_bits != nullptr || !request.edits.empty();
}

uint32_t WriteRowExtras(const RowRequest& request, uint32_t* visible, uint32_t* edits) {
  WriteMask(request, visible);
  uint32_t count = 0;
  for (const LogitEdit& edit : request.edits) {
    uint32_t& word = visible[edit.token / 32];
    const uint32_t bit = 1u << (edit.token % 32);
    if ((word & bit) == 0) continue;
    word &= ~bit;
    if ((edit.flags & LogitEdit::kBanned) != 0) continue;
    uint32_t* const at = edits + size_t{kEditWords} * count++;
    at[0] = edit.token;
    at[1] = edit.bias;
    at[2] = (edit.flags & LogitEdit::kRepeated) != 0 ? 1 : 0;
    at[3] = edit.penalty;
  }
  return count;
}

void WriteTables(uint32_t* tables) {
  static_assert(kTableWords == std::size(law::kPowers) + std::size(law::kInverses) + std::size(law::kLogs));
  tables = std::ranges::copy(law::kPowers, tables).out;
  tables = std::ranges::copy(law::kInverses, tables).out;
  std::ranges::copy(law::kLogs, tables);
}

void WriteStages(std::span<const Stage> chain, uint32_t* stages) {
  for (const Stage& stage : chain) {
    *stages++ = uint32_t(stage.kind);
    stages = std::copy_n(stage.operands.begin(), kStageWords - 1, stages);
  }
}

}  // namespace sortition::kernels::vulkan
