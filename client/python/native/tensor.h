// Rows of logits as Python has them: numpy arrays, torch tensors, whatever speaks DLPack or the buffer protocol.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sortition/v1/sampling.pb.h"

namespace sortition::python {

using Tensor = nanobind::ndarray<nanobind::ro>;

// `count` rows of one width and type, in place; `keep` keeps their memory alive. To be destroyed under the GIL.
struct Rows {
  std::optional<int> cuda_device;  // in whose memory they lie; absent: in the host's
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  uint32_t width = 0;
  std::vector<const void*> rows;
  std::vector<Tensor> keep;
};

// From a matrix [count, width] whose rows may lie apart, from a sequence of `count` vectors, or, for one row, from a
// vector. Where sequences take several rows, `positions` says how many each: the matrix has all of them, and in place
// of a vector there is a matrix, but a sequence's rows lie one right after the other. `dtype` ("float32", "float16",
// "bfloat16") names the type of tensors whose own says only how wide an element is (uint16, uint32). Raises TypeError
// for a type or a device that cannot be sampled from, ValueError for a shape or a layout; nothing is copied.
enum class Cuda { kRefused, kTaken };  // whether rows, all of them, may lie on a CUDA device
Rows ReadRows(nanobind::handle logits, size_t count, const std::vector<size_t>& positions,
              const std::optional<std::string>& dtype, Cuda cuda = Cuda::kRefused);

// `rows` rows in the host's memory, one right after the other.
struct Matrix {
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  Tensor tensor;
};
Matrix ReadMatrix(nanobind::handle object, const std::string& name, size_t rows);

// One packed mask for each row, null where there is none: arrays of ceil(width / 32) uint32 words. Where a row takes
// several (`counts`, otherwise empty), a matrix of them.
struct Masks {
  std::vector<const uint32_t*> rows;  // empty: no row has one
  std::vector<Tensor> keep;
};
Masks ReadMasks(nanobind::handle masks, size_t count, const std::vector<size_t>& counts, uint32_t width);

}  // namespace sortition::python
