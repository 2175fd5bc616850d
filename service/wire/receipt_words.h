// Sampling parameters as the words of a receipt's opening (docs/receipts.md), and back.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sortition/v1/parameters.pb.h"

namespace sortition::service {

// Returns the words of the set fields, without fields that only request answers and without the watermark. Thread-safe.
std::vector<uint32_t> ReceiptWords(const v1::SamplingParameters& parameters);

// Returns the parameters of these words; nothing if they are not the words of any. Thread-safe.
std::optional<v1::SamplingParameters> ParseReceiptWords(std::span<const uint32_t> words);

}  // namespace sortition::service
