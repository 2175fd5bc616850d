// Rows of logits from Python: numpy arrays, torch tensors, and other objects with DLPack or the buffer protocol.
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

// Rows of one width and type, in place; `keep` keeps their memory alive. To be destroyed under the GIL.
struct Rows {
  std::optional<int> cuda_device;  // the device on which they lie; absent: the host
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  uint32_t width = 0;
  std::vector<const void*> rows;
  std::vector<Tensor> keep;
};

enum class Cuda { kRefused, kTaken };  // kTaken: the rows may lie on a CUDA device, if all of them do

// Reads rows from a matrix [count, width] with any row stride, from a sequence of `count` vectors or, for one row, from
// a vector. If sequences take several rows, `positions` has their numbers: the matrix has all these rows, or the
// sequence has matrices in place of vectors; the rows of one sequence must be adjacent. `dtype` ("float32", "float16",
// "bfloat16") names the type of tensors with a type that has only a width (uint16, uint32). Nothing is copied. Raises
// TypeError for a type or a device that cannot be sampled from, ValueError for a shape or a layout.
Rows ReadRows(nanobind::handle logits, size_t count, const std::vector<size_t>& positions,
              const std::optional<std::string>& dtype, Cuda cuda = Cuda::kRefused);

// A matrix in the host's memory with adjacent rows.
struct Matrix {
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  Tensor tensor;
};
Matrix ReadMatrix(nanobind::handle object, const std::string& name, size_t rows);

// One packed mask for each row, or null: arrays of ceil(width / 32) uint32 words. If rows take several masks (`counts`
// has their numbers, otherwise it is empty), a matrix of them.
struct Masks {
  std::vector<const uint32_t*> rows;  // empty: no row has a mask
  std::vector<Tensor> keep;
};
Masks ReadMasks(nanobind::handle masks, size_t count, const std::vector<size_t>& counts, uint32_t width);

}  // namespace sortition::python
