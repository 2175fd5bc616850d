// A row for a kernel, out of an input's bytes: options at random from a seed, logits to the bit as the input has them.
#pragma once

#include <cstddef>
#include <vector>

#include "tests/conformance/random_row.h"
#include "tests/fuzz/fuzz_target.h"

namespace sortition::fuzz {

// Not copyable: the request points into it.
class Row {
 public:
  explicit Row(Input* input);
  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;

  const kernels::RowRequest& request() const { return request_; }
  const std::vector<std::byte>& tensor() const { return tensor_; }

 private:
  const kernels::RandomRow options_;
  std::vector<std::byte> tensor_;
  kernels::RowRequest request_;
};

}  // namespace sortition::fuzz
