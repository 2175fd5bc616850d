// Texts over a CPU and another device, each batch wherever chance sends it, compared with the same texts on a CPU
// alone.
#pragma once

#include <cstdint>
#include <memory>

#include "devices/device.h"

namespace sortition::testing {

// Writes `texts` random texts with drafts in every mode, phases, ends of texts, min_k, min_keep and cuts. Every answer
// has to be the same byte for byte. Fails the test if one is not, or if `device` gets too few batches to say so.
void CompareTexts(std::unique_ptr<devices::Device> device, uint64_t texts);

}  // namespace sortition::testing
