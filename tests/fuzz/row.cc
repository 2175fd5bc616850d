// Repeats the remaining input until the row is full.
#include "tests/fuzz/row.h"

namespace sortition::fuzz {

using kernels::DType;

namespace {

// Seed and vocabulary, in this order.
kernels::RandomRow MakeRandomRow(Input* input) {
  const uint32_t seed = input->Word();
  return kernels::RandomRow(seed, 1 + input->Below(input->OneIn(4) ? 5000 : 200));
}

}  // namespace

Row::Row(Input* input) : options_(MakeRandomRow(input)), request_(options_.request()) {
  // Most bytes would make some NaN, or something too large, which ends a row at once; so bits are cleared, mostly.
  const bool any_bits = input->OneIn(8);
  const Bytes rest = input->Rest();
  const uint32_t bytes = kernels::ElementBytes(request_.dtype);
  tensor_.resize(size_t{request_.live_vocabulary} * bytes);
  for (size_t i = 0; i < tensor_.size(); ++i) {
    tensor_[i] = std::byte(rest.empty() ? 0 : rest[i % rest.size()]);
    const bool is_upper = i % bytes == bytes - 1;
    if (is_upper && !any_bits) tensor_[i] &= std::byte(request_.dtype == DType::kF16 ? 0xdb : 0xc5);
  }
  request_.logits = tensor_.data();
}

}  // namespace sortition::fuzz
