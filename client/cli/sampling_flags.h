// The flags of rows and texts that sample and bench have in common.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sortition/client.h"

namespace sortition::cli {

// The errors of all functions are INVALID_ARGUMENT, and name the flag or the file.

// Returns the token ids in the value of that flag.
absl::StatusOr<std::vector<uint32_t>> ParseTokens(const std::string& flag, const std::vector<std::string>& texts);

// Returns --dtype and --vocabulary, where they are given.
struct RowFlags {
  std::optional<v1::DType> dtype;
  std::optional<uint32_t> vocabulary;
};
absl::StatusOr<RowFlags> GetRowFlags();

// Returns the options of a text: seed, prompt, live vocabulary, and the flags' parameters, which override --parameters.
// It has no request id.
absl::StatusOr<client::SequenceOptions> GetTextFlags(uint32_t vocabulary);

}  // namespace sortition::cli
