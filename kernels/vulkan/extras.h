// A row's input besides its logits, as kernels read it: a bitmap of the tokens that show their sent logit, the edits,
// and the row's stages.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/row.h"

namespace sortition::kernels::vulkan {

// True if the row has masks, bans or edits at all; otherwise it has no extras.
bool HasExtras(const RowRequest& request);

inline uint64_t VisibleWords(const RowRequest& request) { return (uint64_t{request.live_vocabulary} + 31) / 32; }

// Writes VisibleWords words to `visible`, one bit a token, clear where it is masked, banned or edited; and to `edits`
// the edits that change a token, kEditWords words each. Returns their number.
uint32_t WriteRowExtras(const RowRequest& request, uint32_t* visible, uint32_t* edits);

// Writes the law's tables, kTableWords words.
void WriteTables(uint32_t* tables);

// Writes kStageWords words for each stage.
void WriteStages(std::span<const Stage> chain, uint32_t* stages);

}  // namespace sortition::kernels::vulkan
