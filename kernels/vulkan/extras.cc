// Masks first, then patches of what they leave.
#include "kernels/vulkan/extras.h"

#include <algorithm>

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
  return request.has_allowed_tokens || request.allowed_bits != nullptr || !request.patches.empty();
}

uint32_t WriteRowExtras(const RowRequest& request, uint32_t* visible, uint32_t* patches) {
  WriteMask(request, visible);
  uint32_t count = 0;
  for (const TokenPatch& patch : request.patches) {
    uint32_t& word = visible[patch.token / 32];
    const uint32_t bit = 1u << (patch.token % 32);
    if ((word & bit) == 0) continue;
    word &= ~bit;
    if ((patch.flags & TokenPatch::kBanned) != 0) continue;
    uint32_t* const at = patches + size_t{kPatchWords} * count++;
    at[0] = patch.token;
    at[1] = patch.bias;
    at[2] = (patch.flags & TokenPatch::kRepeated) != 0 ? 1 : 0;
    at[3] = patch.penalty;
  }
  return count;
}

}  // namespace sortition::kernels::vulkan
