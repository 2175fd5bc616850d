// Rows of logits or masks from a file: raw little-endian elements, or a NumPy .npy array.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::client {

struct RowFile {
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  uint32_t vocabulary = 0;
  std::string bytes;  // one element for each token of the vocabulary
};

// "f32", "f16" or "bf16".
absl::StatusOr<v1::DType> ParseDType(const std::string& text);

// Returns the bytes of a file, or of stdin for "-". The error is INVALID_ARGUMENT and names the path.
absl::StatusOr<std::string> ReadBytes(const std::string& path);

// Parses `bytes` as a .npy array if they begin like one, otherwise as raw elements. An array has one row, of shape (V)
// or (1, V) and type '<f4' or '<f2'. NumPy has no bf16: it is '<u2' or '<i2' with `dtype`. Raw elements need `dtype`.
// `vocabulary`, if given, must equal the row's size.
absl::StatusOr<RowFile> ParseRow(std::string bytes, std::optional<v1::DType> dtype, std::optional<uint32_t> vocabulary);

// Rows of a file, read one at a time. Not thread-safe.
class RowMatrix {
 public:
  // Opens a .npy array of shape (rows, V) or (V), or raw elements. `width` is the number of elements of a row; an array
  // must have this width. Errors as in ParseRow; they name the path.
  static absl::StatusOr<RowMatrix> Open(const std::string& path, std::optional<v1::DType> dtype, uint32_t width);

  // Opens packed masks: words of 4 bytes, raw or of type '<i4' or '<u4', `width` a row.
  static absl::StatusOr<RowMatrix> OpenWords(const std::string& path, uint32_t width);

  v1::DType dtype() const { return dtype_; }  // f32 for words
  uint64_t rows() const { return rows_; }
  // Reads row `index` < rows(). The error names the path.
  absl::Status Read(uint64_t index, std::string* bytes);
  absl::Status ReadWords(uint64_t index, std::vector<uint32_t>* words);

 private:
  // `type_of` gives the element type for the name of a type in a .npy header.
  using TypeOf = absl::FunctionRef<absl::StatusOr<v1::DType>(const std::string& npy_type)>;
  static absl::StatusOr<RowMatrix> Open(const std::string& path, std::optional<v1::DType> raw, uint32_t width,
                                        TypeOf type_of);

  std::string path_;
  std::ifstream file_;
  v1::DType dtype_ = v1::DTYPE_UNSPECIFIED;
  uint64_t offset_ = 0;
  uint64_t row_bytes_ = 0;
  uint64_t rows_ = 0;
};

}  // namespace sortition::client
