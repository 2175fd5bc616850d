// Checks of tensors before anything is done with them.
#include "client/python/native/tensor.h"

#include <nanobind/stl/string.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "client/cpp/batch.h"
#include "kernels/row.h"

namespace nb = nanobind;

namespace sortition::python {
namespace {

[[noreturn]] void TypeError(const std::string& text) { throw nb::type_error(text.c_str()); }
[[noreturn]] void ValueError(const std::string& text) { throw nb::value_error(text.c_str()); }

// As Python's str() has it.
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

// An array of numpy's whose type is ml_dtypes' bfloat16. numpy cannot export it, but the words it consists of.
bool IsBfloat16Array(nb::handle object) {
  return nb::hasattr(object, "view") && nb::hasattr(object, "dtype") && nb::hasattr(object.attr("dtype"), "name") &&
         Text(object.attr("dtype").attr("name")) == "bfloat16";
}

// The array, without a copy.
Tensor Import(nb::handle object, const char* name) {
  Tensor tensor;
  if (nb::try_cast<Tensor>(object, tensor)) return tensor;
  PyErr_Clear();
  if (IsBfloat16Array(object) && nb::try_cast<Tensor>(object.attr("view")("uint16"), tensor)) return tensor;
  PyErr_Clear();
  TypeError(absl::StrCat(name, ": ", Text(object.type().attr("__name__")),
                         " gives no tensor in this process's memory (DLPack or buffer protocol)"));
}

v1::DType TypeOf(nb::handle object, const Tensor& tensor, const std::optional<std::string>& dtype) {
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
  TypeError(absl::StrCat("logits: dtype ", own, dtype ? absl::StrCat(" does not hold ", *dtype) : "",
                         "; logits are float32, float16 or bfloat16"));
}

void CheckMemory(const Tensor& tensor, const char* name) {
  if (tensor.device_type() == nb::device::cpu::value) return;
  TypeError(absl::StrCat(name, ": the tensor is on another device (DLPack device type ", tensor.device_type(),
                         "); it has to be copied to the CPU first"));
}

// Where the logits of `tensor` lie, which is where those lie that `rows` has.
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

void AddMatrix(Tensor tensor, size_t count, Rows* rows) {
  if (tensor.shape(0) != count) {
    ValueError(absl::StrCat("logits: shape ", ShapeName(tensor), " for ", count, " sequences"));
  }
  rows->width = CheckWidth(tensor.shape(1));
  if (tensor.shape(1) > 1 && tensor.stride(1) != 1) {
    ValueError(
        absl::StrCat("logits: the elements of a row lie ", tensor.stride(1), " apart; they have to be contiguous"));
  }
  const int64_t stride = tensor.stride(0) * static_cast<int64_t>(client::ElementBytes(rows->dtype));
  for (size_t i = 0; i < count; ++i) rows->rows.push_back(Data(tensor) + static_cast<int64_t>(i) * stride);
  rows->keep.push_back(std::move(tensor));
}

void AddVector(Tensor tensor, Rows* rows) {
  CheckVector(tensor, "logits");
  const uint32_t width = CheckWidth(tensor.shape(0));
  if (!rows->rows.empty() && width != rows->width) {
    ValueError(absl::StrCat("logits: rows of ", rows->width, " and of ", width, " elements in one step"));
  }
  rows->width = width;
  rows->rows.push_back(Data(tensor));
  rows->keep.push_back(std::move(tensor));
}

}  // namespace

Rows ReadRows(nb::handle logits, size_t count, const std::optional<std::string>& dtype, Cuda cuda) {
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
      const v1::DType type = TypeOf(row, tensor, dtype);
      if (!rows.rows.empty() && type != rows.dtype) TypeError("logits: rows of different types in one step");
      rows.dtype = type;
      AddVector(std::move(tensor), &rows);
    }
    return rows;
  }
  Tensor tensor = Import(logits, "logits");
  TakeMemory(tensor, cuda, &rows);
  rows.dtype = TypeOf(logits, tensor, dtype);
  if (tensor.ndim() == 2) {
    AddMatrix(std::move(tensor), count, &rows);
  } else if (tensor.ndim() == 1 && count == 1) {
    AddVector(std::move(tensor), &rows);
  } else {
    ValueError(
        absl::StrCat("logits: shape ", ShapeName(tensor), " for ", count, " sequences; a matrix has one row for each"));
  }
  return rows;
}

Masks ReadMasks(nb::handle masks, size_t count, uint32_t width) {
  Masks result;
  if (masks.is_none()) return result;
  if (nb::len(masks) != count)
    ValueError(absl::StrCat("allowed: ", nb::len(masks), " masks for ", count, " sequences"));
  const size_t words = (size_t{width} + 31) / 32;
  for (nb::handle mask : masks) {
    if (mask.is_none()) {
      result.rows.push_back(nullptr);
      continue;
    }
    Tensor tensor = Import(mask, "allowed");
    CheckMemory(tensor, "allowed");
    CheckVector(tensor, "allowed");
    const nb::dlpack::dtype type = tensor.dtype();
    const bool integer = type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::UInt) ||
                         type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Int);
    if (!integer || type.bits != 32) TypeError("allowed: a packed mask consists of uint32 or int32 words");
    if (tensor.shape(0) != words) {
      ValueError(absl::StrCat("allowed: a mask of ", tensor.shape(0), " words; ", width, " tokens take ", words));
    }
    result.rows.push_back(reinterpret_cast<const uint32_t*>(Data(tensor)));
    result.keep.push_back(std::move(tensor));
  }
  return result;
}

}  // namespace sortition::python
