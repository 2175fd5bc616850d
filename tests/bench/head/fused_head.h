// A study's prototype (docs/benchmarks/fused_head.md): sampling as the end of a language model's head, on a CPU.
//
// The head is a matrix of one row of weights a token. Its product with a hidden state is a row of logits, which is
// never written whole. Either the exact product leaves the largest logit of each group of 64 tokens, and groups that
// matter are computed again; or a product of low precision leaves bounds of each logit, and tokens that matter are
// computed exactly. Each way gives the law's token. Counted is how much is computed again. Plain code, not fast.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/row.h"

namespace sortition::bench {

// A row of logits that are computed one by one.
struct LazyRow {
  uint32_t vocabulary = 0;
  std::function<float(uint32_t token)> exact;
  std::vector<float> low;  // bounds of `exact`, both included
  std::vector<float> high;
};

struct Drawn {
  uint32_t token = 0;
  uint32_t computed = 0;  // tokens whose logits were computed exactly, after the first pass
};

// Draws from what a first pass of low precision leaves: the bounds. `parameters` are greedy, or have a temperature and
// at most one of top-k and min-p. All logits are finite and live.
Drawn DrawScreened(const LazyRow& row, const kernels::RowParameters& parameters, const kernels::NoiseKey& noise);

// Draws from an exact first pass's result: the largest logit of each group.
Drawn DrawFromMaxima(const LazyRow& row, const kernels::RowParameters& parameters, const kernels::NoiseKey& noise);

}  // namespace sortition::bench
