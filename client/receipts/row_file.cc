// Raw rows and the .npy format, versions 1 to 3.
#include "client/receipts/row_file.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "sortition/batch.h"

namespace sortition::client {
namespace {

constexpr char kNpyMagic[] = "\x93NUMPY";
constexpr size_t kNpyMagicBytes = 6;

struct NpyHeader {
  std::string type;  // such as "<f4"
  std::vector<uint32_t> shape;
  size_t data_offset = 0;
};

absl::Status NpyError(absl::string_view what) { return absl::InvalidArgumentError(absl::StrCat(".npy: ", what)); }

// Returns the text after 'key': in the header's dictionary.
absl::StatusOr<absl::string_view> FindValue(absl::string_view dictionary, absl::string_view key) {
  const size_t at = dictionary.find(absl::StrCat("'", key, "':"));
  if (at == absl::string_view::npos) return NpyError(absl::StrCat("the header has no '", key, "'"));
  return absl::StripLeadingAsciiWhitespace(dictionary.substr(at + key.size() + 3));
}

absl::StatusOr<NpyHeader> ParseNpyHeader(const std::string& bytes) {
  const auto byte = [&](size_t at) { return static_cast<size_t>(static_cast<uint8_t>(bytes[at])); };
  if (bytes.size() < 12) return NpyError("the header is cut off");
  const size_t version = byte(6);
  if (version < 1 || version > 3) return NpyError(absl::StrCat("version ", version, " is not known (1, 2, 3)"));
  const size_t start = version == 1 ? 10 : 12;
  const size_t length =
      version == 1 ? byte(8) | byte(9) << 8 : byte(8) | byte(9) << 8 | byte(10) << 16 | byte(11) << 24;
  if (bytes.size() - start < length) return NpyError("the header is cut off");
  const absl::string_view dictionary(bytes.data() + start, length);

  NpyHeader header;
  header.data_offset = start + length;
  const auto type = FindValue(dictionary, "descr");
  const auto order = FindValue(dictionary, "fortran_order");
  const auto shape = FindValue(dictionary, "shape");
  for (const auto* value : {&type, &order, &shape}) {
    if (!value->ok()) return value->status();
  }
  if (!absl::StartsWith(*type, "'")) return NpyError("arrays of records are not rows");
  header.type = std::string(type->substr(1, type->find('\'', 1) - 1));
  const size_t end = shape->find(')');
  if (!absl::StartsWith(*shape, "(") || end == absl::string_view::npos) return NpyError("the shape is no tuple");
  for (absl::string_view part : absl::StrSplit(shape->substr(1, end - 1), ',', absl::SkipWhitespace())) {
    uint32_t size;
    if (!absl::SimpleAtoi(part, &size))
      return NpyError(absl::StrCat("a dimension of the shape is out of range: ", part));
    header.shape.push_back(size);
  }
  // An array of one dimension has the same bytes in both orders.
  if (!absl::StartsWith(*order, "False") && header.shape.size() > 1) {
    return NpyError("fortran_order must be False: rows are read one after the other (numpy.ascontiguousarray)");
  }
  return header;
}

absl::StatusOr<v1::DType> NpyDType(const std::string& type, std::optional<v1::DType> wanted) {
  v1::DType dtype;
  if (type == "<f4") {
    dtype = v1::DTYPE_F32;
  } else if (type == "<f2") {
    dtype = v1::DTYPE_F16;
  } else if ((type == "<u2" || type == "<i2") && wanted == v1::DTYPE_BF16) {
    dtype = v1::DTYPE_BF16;
  } else {
    return NpyError(
        absl::StrCat("elements of type ", type, " are not logits ('<f4', '<f2', or '<u2' with --dtype=bf16)"));
  }
  if (wanted && *wanted != dtype)
    return NpyError(absl::StrCat("elements of type ", type, " are not of the --dtype given"));
  return dtype;
}

absl::StatusOr<RowFile> ParseNpy(const std::string& bytes, std::optional<v1::DType> wanted) {
  const auto header = ParseNpyHeader(bytes);
  if (!header.ok()) return header.status();
  const auto dtype = NpyDType(header->type, wanted);
  if (!dtype.ok()) return dtype.status();
  const bool one_row = header->shape.size() == 1 || (header->shape.size() == 2 && header->shape[0] == 1);
  if (!one_row || header->shape.back() == 0) return NpyError("the array must have one row: shape (V,) or (1, V)");
  RowFile row{*dtype, header->shape.back(), bytes.substr(header->data_offset)};
  const size_t expected = size_t{row.vocabulary} * client::ElementBytes(row.dtype);
  if (row.bytes.size() != expected) {
    return NpyError(absl::StrCat("the shape needs ", expected, " bytes, the file has ", row.bytes.size()));
  }
  return row;
}

absl::StatusOr<RowFile> ParseRaw(std::string bytes, std::optional<v1::DType> dtype) {
  if (!dtype) return absl::InvalidArgumentError("raw elements need --dtype (f32, f16 or bf16)");
  const uint32_t element = client::ElementBytes(*dtype);
  if (bytes.empty() || bytes.size() % element != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes.size(), " bytes are no row of elements of ", element, " bytes"));
  }
  const size_t elements = bytes.size() / element;
  if (elements > UINT32_MAX)
    return absl::InvalidArgumentError(absl::StrCat("a row of ", elements, " elements is too long"));
  return RowFile{*dtype, static_cast<uint32_t>(elements), std::move(bytes)};
}

}  // namespace

absl::StatusOr<v1::DType> ParseDType(const std::string& text) {
  if (text == "f32") return v1::DTYPE_F32;
  if (text == "f16") return v1::DTYPE_F16;
  if (text == "bf16") return v1::DTYPE_BF16;
  return absl::InvalidArgumentError(absl::StrCat("--dtype must be f32, f16 or bf16, not ", text));
}

absl::StatusOr<std::string> ReadBytes(const std::string& path) {
  std::ostringstream bytes;
  if (path == "-") {
    bytes << std::cin.rdbuf();
  } else {
    std::ifstream file(path, std::ios::binary);
    if (!file) return absl::InvalidArgumentError(absl::StrCat("cannot read ", path));
    bytes << file.rdbuf();
  }
  return std::move(bytes).str();
}

absl::StatusOr<RowFile> ParseRow(std::string bytes, std::optional<v1::DType> dtype,
                                 std::optional<uint32_t> vocabulary) {
  const bool npy = bytes.compare(0, kNpyMagicBytes, kNpyMagic, kNpyMagicBytes) == 0;
  absl::StatusOr<RowFile> row = npy ? ParseNpy(bytes, dtype) : ParseRaw(std::move(bytes), dtype);
  if (row.ok() && vocabulary && *vocabulary != row->vocabulary) {
    return absl::InvalidArgumentError(
        absl::StrCat("the row has ", row->vocabulary, " elements, --vocabulary says ", *vocabulary));
  }
  return row;
}

absl::StatusOr<RowMatrix> RowMatrix::Open(const std::string& path, std::optional<v1::DType> dtype, uint32_t width) {
  return Open(path, dtype, width, [&](const std::string& type) { return NpyDType(type, dtype); });
}

absl::StatusOr<RowMatrix> RowMatrix::OpenWords(const std::string& path, uint32_t width) {
  return Open(path, v1::DTYPE_F32, width, [](const std::string& type) -> absl::StatusOr<v1::DType> {
    if (type == "<i4" || type == "<u4") return v1::DTYPE_F32;
    return NpyError(absl::StrCat("elements of type ", type, " are no words of masks ('<i4' or '<u4')"));
  });
}

absl::StatusOr<RowMatrix> RowMatrix::Open(const std::string& path, std::optional<v1::DType> raw, uint32_t width,
                                          TypeOf type_of) {
  constexpr size_t kMostHeaderBytes = 1 << 16;
  RowMatrix matrix;
  const auto refuse = [&](const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
  };
  matrix.path_ = path;
  matrix.file_.open(path, std::ios::binary | std::ios::ate);
  if (!matrix.file_) return absl::InvalidArgumentError(absl::StrCat("cannot read ", path));
  const auto size = static_cast<uint64_t>(matrix.file_.tellg());
  std::string begin(std::min<uint64_t>(size, kMostHeaderBytes), '\0');
  matrix.file_.seekg(0);
  matrix.file_.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  if (begin.compare(0, kNpyMagicBytes, kNpyMagic, kNpyMagicBytes) == 0) {
    const auto header = ParseNpyHeader(begin);
    if (!header.ok()) return refuse(header.status());
    const auto type = type_of(header->type);
    if (!type.ok()) return refuse(type.status());
    const bool is_matrix = header->shape.size() == 1 || header->shape.size() == 2;
    if (!is_matrix || header->shape.back() != width) {
      return refuse(NpyError(absl::StrCat("the shape must be (rows, ", width, ") or (", width, ",)")));
    }
    matrix.dtype_ = *type;
    matrix.offset_ = header->data_offset;
    matrix.rows_ = header->shape.size() == 1 ? 1 : header->shape[0];
  } else {
    if (!raw) return refuse(absl::InvalidArgumentError("raw elements need --dtype (f32, f16 or bf16)"));
    matrix.dtype_ = *raw;
  }
  matrix.row_bytes_ = uint64_t{width} * client::ElementBytes(matrix.dtype_);
  const uint64_t data = size - std::min(size, matrix.offset_);
  if (matrix.offset_ == 0) matrix.rows_ = data / matrix.row_bytes_;
  if (matrix.rows_ * matrix.row_bytes_ != data) {
    return refuse(
        absl::InvalidArgumentError(absl::StrCat(data, " bytes are no rows of ", matrix.row_bytes_, " bytes")));
  }
  return matrix;
}

absl::Status RowMatrix::Read(uint64_t index, std::string* bytes) {
  bytes->resize(row_bytes_);
  file_.seekg(static_cast<std::streamoff>(offset_ + index * row_bytes_));
  if (file_.read(bytes->data(), static_cast<std::streamsize>(row_bytes_))) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cannot read ", path_));
}

absl::Status RowMatrix::ReadWords(uint64_t index, std::vector<uint32_t>* words) {
  std::string bytes;
  if (absl::Status status = Read(index, &bytes); !status.ok()) return status;
  words->resize(bytes.size() / sizeof(uint32_t));
  std::memcpy(words->data(), bytes.data(), bytes.size());
  return absl::OkStatus();
}

}  // namespace sortition::client
