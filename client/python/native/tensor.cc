// Reads tensors, and checks their types, devices and layouts.
#include "client/python/native/tensor.h"

#include <nanobind/stl/string.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "kernels/row.h"
#include "sortition/batch.h"

namespace nb = nanobind;

namespace sortition::python {
namespace {

[[noreturn]] void TypeError(const std::string& text) { throw nb::type_error(text.c_str()); }
[[noreturn]] void ValueError(const std::string& text) { throw nb::value_error(text.c_str()); }

// Returns Python's str() of an object.
std::string Text(nb::handle object) {
  const nb::object text = nb::steal(PyObject_Str(object.ptr()));
  if (!text.is_valid()) throw nb::python_error();
  return nb::cast<std::string>(text);
}

std::string ShapeName(const Tensor& tensor) {
  std::vector<std::string> sizes;
  for (size_t i = 0; i < tensor.ndim(); ++i) sizes.push_back(absl::StrCat(tensor.shape(i)));
  return absl::StrCat("(", absl::StrJoin(sizes, ", "), ")");
}

// True for a numpy array of ml_dtypes' bfloat16. numpy cannot export this type, but it can export the array's words.
bool IsBfloat16Array(nb::handle object) {
  return nb::hasattr(object, "view") && nb::hasattr(object, "dtype") && nb::hasattr(object.attr("dtype"), "name") &&
         Text(object.attr("dtype").attr("name")) == "bfloat16";
}

// Imports an array without a copy.
Tensor Import(nb::handle object, const std::string& name) {
  Tensor tensor;
  if (nb::try_cast<Tensor>(object, tensor)) return tensor;
  PyErr_Clear();
  if (IsBfloat16Array(object) && nb::try_cast<Tensor>(object.attr("view")("uint16"), tensor)) return tensor;
  PyErr_Clear();
  TypeError(absl::StrCat(name, ": ", Text(object.type().attr("__name__")),
                         " gives no tensor in this process's memory (DLPack or buffer protocol)"));
}

v1::DType ReadDType(nb::handle object, const Tensor& tensor, const std::string& name,
                    const std::optional<std::string>& dtype) {
  using Code = nb::dlpack::dtype_code;
  const nb::dlpack::dtype type = tensor.dtype();
  const bool words = type.lanes == 1 && type.code == static_cast<uint8_t>(Code::UInt);
  if (type.lanes == 1 && type.code == static_cast<uint8_t>(Code::Float)) {
    if (type.bits == 32 && dtype.value_or("float32") == "float32") return v1::DTYPE_F32;
    if (type.bits == 16 && dtype.value_or("float16") == "float16") return v1::DTYPE_F16;
  }
  if (type.lanes == 1 && type.code == static_cast<uint8_t>(Code::Bfloat) && type.bits == 16 &&
      dtype.value_or("bfloat16") == "bfloat16") {
    return v1::DTYPE_BF16;
  }
  if (words && type.bits == 16) {
    if (dtype == "float16") return v1::DTYPE_F16;
    if (dtype == "bfloat16" || (!dtype && IsBfloat16Array(object))) return v1::DTYPE_BF16;
  }
  if (words && type.bits == 32 && dtype == "float32") return v1::DTYPE_F32;
  const std::string own = nb::hasattr(object, "dtype") ? Text(object.attr("dtype"))
                                                       : absl::StrCat("code ", type.code, ", ", type.bits, " bits");
  TypeError(absl::StrCat(name, ": dtype ", own, dtype ? absl::StrCat(" does not hold ", *dtype) : "", "; ", name,
                         " are float32, float16 or bfloat16"));
}

void CheckMemory(const Tensor& tensor, const std::string& name) {
  if (tensor.device_type() == nb::device::cpu::value) return;
  TypeError(absl::StrCat(name, ": the tensor is on another device (DLPack device type ", tensor.device_type(),
                         "); it has to be copied to the CPU first"));
}

// Sets the device with the logits of `tensor`. It must be the other rows' device.
void TakeMemory(const Tensor& tensor, Cuda cuda, Rows* rows) {
  std::optional<int> device;
  if (cuda == Cuda::kTaken && tensor.device_type() == nb::device::cuda::value) {
    device = tensor.device_id();
  } else {
    CheckMemory(tensor, "logits");
  }
  if (!rows->rows.empty() && rows->cuda_device != device) TypeError("logits: rows on different devices in one step");
  rows->cuda_device = device;
}

const std::byte* Data(const Tensor& tensor) { return static_cast<const std::byte*>(tensor.data()); }

void CheckVector(const Tensor& tensor, const char* name) {
  if (tensor.ndim() != 1) ValueError(absl::StrCat(name, ": shape ", ShapeName(tensor), "; a row has one dimension"));
  if (tensor.shape(0) > 1 && tensor.stride(0) != 1) {
    ValueError(
        absl::StrCat(name, ": the elements of a row lie ", tensor.stride(0), " apart; they have to be contiguous"));
  }
}

uint32_t CheckWidth(size_t width) {
  if (width == 0 || width > kernels::kMaxVocabulary) {
    ValueError(absl::StrCat("logits: rows of ", width, " elements; a row has 1..", kernels::kMaxVocabulary));
  }
  return static_cast<uint32_t>(width);
}

// Checks a matrix of `rows` rows with contiguous elements, and returns the row stride in bytes.
int64_t CheckMatrix(const Tensor& tensor, v1::DType dtype, const std::string& name, size_t rows) {
  if (tensor.ndim() != 2 || tensor.shape(0) != rows) {
    ValueError(absl::StrCat(name, ": shape ", ShapeName(tensor), "; there are ", rows, " rows"));
  }
  if (tensor.shape(1) > 1 && tensor.stride(1) != 1) {
    ValueError(
        absl::StrCat(name, ": the elements of a row lie ", tensor.stride(1), " apart; they have to be contiguous"));
  }
  return tensor.stride(0) * static_cast<int64_t>(client::ElementBytes(dtype));
}

void CheckPacked(int64_t stride, size_t width, v1::DType dtype, const std::string& name) {
  const auto packed = static_cast<int64_t>(width * client::ElementBytes(dtype));
  if (stride == packed) return;
  ValueError(absl::StrCat(name, ": the rows of one sequence lie ", stride, " bytes apart; they have to be contiguous (",
                          packed, ")"));
}

size_t PositionsOf(const std::vector<size_t>& positions, size_t index) {
  return positions.empty() ? 1 : positions[index];
}

// True if the tensor is to be read as a matrix. Among sequences that take several rows, one that takes a single row may
// also have it as a matrix.
bool IsMatrix(const Tensor& tensor, const std::vector<size_t>& positions, size_t taken) {
  return taken > 1 || (!positions.empty() && tensor.ndim() == 2);
}

void SetWidth(size_t shape, Rows* rows) {
  const uint32_t width = CheckWidth(shape);
  if (!rows->rows.empty() && width != rows->width) {
    ValueError(absl::StrCat("logits: rows of ", rows->width, " and of ", width, " elements in one step"));
  }
  rows->width = width;
}

void AddMatrix(Tensor tensor, size_t count, const std::vector<size_t>& positions, Rows* rows) {
  size_t total = 0;
  for (size_t i = 0; i < count; ++i) total += PositionsOf(positions, i);
  if (tensor.shape(0) != total) {
    ValueError(absl::StrCat("logits: shape ", ShapeName(tensor), " for ", count, " sequences",
                            total == count ? "" : absl::StrCat(", which take ", total, " rows")));
  }
  rows->width = CheckWidth(tensor.shape(1));
  const int64_t stride = CheckMatrix(tensor, rows->dtype, "logits", total);
  const std::byte* row = Data(tensor);
  for (size_t i = 0; i < count; ++i) {
    const size_t taken = PositionsOf(positions, i);
    if (taken > 1) CheckPacked(stride, rows->width, rows->dtype, "logits");
    rows->rows.push_back(row);
    row += static_cast<int64_t>(taken) * stride;
  }
  rows->keep.push_back(std::move(tensor));
}

// Adds the rows of one sequence that takes several.
void AddPositions(Tensor tensor, size_t positions, Rows* rows) {
  const int64_t stride = CheckMatrix(tensor, rows->dtype, "logits", positions);
  SetWidth(tensor.shape(1), rows);
  if (positions > 1) CheckPacked(stride, rows->width, rows->dtype, "logits");
  rows->rows.push_back(Data(tensor));
  rows->keep.push_back(std::move(tensor));
}

void AddVector(Tensor tensor, Rows* rows) {
  CheckVector(tensor, "logits");
  SetWidth(tensor.shape(0), rows);
  rows->rows.push_back(Data(tensor));
  rows->keep.push_back(std::move(tensor));
}

}  // namespace

Rows ReadRows(nb::handle logits, size_t count, const std::vector<size_t>& positions,
              const std::optional<std::string>& dtype, Cuda cuda) {
  if (dtype && dtype != "float32" && dtype != "float16" && dtype != "bfloat16") {
    ValueError(absl::StrCat("dtype: \"", *dtype, "\" is not float32, float16 or bfloat16"));
  }
  Rows rows;
  if (nb::isinstance<nb::list>(logits) || nb::isinstance<nb::tuple>(logits)) {
    if (nb::len(logits) != count) {
      ValueError(absl::StrCat("logits: ", nb::len(logits), " rows for ", count, " sequences"));
    }
    for (nb::handle row : logits) {
      Tensor tensor = Import(row, "logits");
      TakeMemory(tensor, cuda, &rows);
      const v1::DType type = ReadDType(row, tensor, "logits", dtype);
      if (!rows.rows.empty() && type != rows.dtype) TypeError("logits: rows of different types in one step");
      rows.dtype = type;
      const size_t taken = PositionsOf(positions, rows.rows.size());
      if (IsMatrix(tensor, positions, taken)) {
        AddPositions(std::move(tensor), taken, &rows);
      } else {
        AddVector(std::move(tensor), &rows);
      }
    }
    return rows;
  }
  Tensor tensor = Import(logits, "logits");
  TakeMemory(tensor, cuda, &rows);
  rows.dtype = ReadDType(logits, tensor, "logits", dtype);
  if (tensor.ndim() == 2) {
    AddMatrix(std::move(tensor), count, positions, &rows);
  } else if (tensor.ndim() == 1 && count == 1 && PositionsOf(positions, 0) == 1) {
    AddVector(std::move(tensor), &rows);
  } else {
    ValueError(
        absl::StrCat("logits: shape ", ShapeName(tensor), " for ", count, " sequences; a matrix has one row for each"));
  }
  return rows;
}

Matrix ReadMatrix(nb::handle object, const std::string& name, size_t rows) {
  Matrix matrix;
  matrix.tensor = Import(object, name);
  CheckMemory(matrix.tensor, name);
  matrix.dtype = ReadDType(object, matrix.tensor, name, std::nullopt);
  const int64_t stride = CheckMatrix(matrix.tensor, matrix.dtype, name, rows);
  if (rows > 1) CheckPacked(stride, matrix.tensor.shape(1), matrix.dtype, name);
  return matrix;
}

Masks ReadMasks(nb::handle masks, size_t count, const std::vector<size_t>& counts, uint32_t width) {
  Masks result;
  if (masks.is_none()) return result;
  if (nb::len(masks) != count)
    ValueError(absl::StrCat("allowed: ", nb::len(masks), " masks for ", count, " sequences"));
  const size_t words = (size_t{width} + 31) / 32;
  for (nb::handle mask : masks) {
    const size_t taken = PositionsOf(counts, result.rows.size());
    if (mask.is_none()) {
      result.rows.push_back(nullptr);
      continue;
    }
    Tensor tensor = Import(mask, "allowed");
    CheckMemory(tensor, "allowed");
    const nb::dlpack::dtype type = tensor.dtype();
    const bool integer = type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::UInt) ||
                         type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Int);
    if (!integer || type.bits != 32) TypeError("allowed: a packed mask consists of uint32 or int32 words");
    const bool is_matrix = IsMatrix(tensor, counts, taken);
    if (is_matrix) {
      const int64_t stride = CheckMatrix(tensor, v1::DTYPE_F32, "allowed", taken);
      if (taken > 1) CheckPacked(stride, tensor.shape(1), v1::DTYPE_F32, "allowed");
    } else {
      CheckVector(tensor, "allowed");
    }
    if (const size_t has = tensor.shape(is_matrix ? 1 : 0); has != words) {
      ValueError(absl::StrCat("allowed: a mask of ", has, " words; ", width, " tokens take ", words));
    }
    result.rows.push_back(reinterpret_cast<const uint32_t*>(Data(tensor)));
    result.keep.push_back(std::move(tensor));
  }
  return result;
}

}  // namespace sortition::python
