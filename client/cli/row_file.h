// One row of logits from a file: raw little-endian elements, or a NumPy .npy array.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::cli {

struct RowFile {
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  uint32_t vocabulary = 0;
  std::string bytes;  // vocabulary elements
};

// "f32", "f16" or "bf16".
absl::StatusOr<v1::DType> ParseDType(const std::string& text);

// The bytes of a file; of stdin for "-". INVALID_ARGUMENT naming the path.
absl::StatusOr<std::string> ReadBytes(const std::string& path);

// Takes `bytes` for a .npy array if they begin as one, and for raw elements otherwise. An array has one row: shape (V)
// or (1, V), of '<f4' or '<f2'; bf16, which NumPy does not have, as '<u2' or '<i2' with `dtype`. Raw elements
// need `dtype`; `vocabulary`, if given, must fit either.
absl::StatusOr<RowFile> ParseRow(std::string bytes, std::optional<v1::DType> dtype, std::optional<uint32_t> vocabulary);

}  // namespace sortition::cli
