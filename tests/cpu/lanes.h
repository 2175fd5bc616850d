// The lanes of kernels/cpu/simd/law.inc, made callable: arrays in, arrays out, one table per target.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/scale.h"
#include "kernels/law/law.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// Every array has kBatch elements, one a lane.
inline constexpr uint32_t kBatch = 64;

struct Lanes {
  const char* name;
  void (*load)(DType dtype, const void* elements, uint32_t* bits);
  void (*key)(const uint32_t* bits, uint32_t* keys);
  void (*key_bits)(const uint32_t* keys, uint32_t* bits);
  void (*distance)(const uint32_t* keys, const RowScale& scale, uint32_t* t);
  void (*weight)(const uint32_t* keys, const RowScale& scale, uint64_t* weights);  // keys of distances below 49 octaves
  // By the weigher that serves the row; numbers as they were sent, masked ones and such that weigh nothing among them.
  void (*weight_of_number)(const uint32_t* bits, const RowScale& scale, uint64_t* weights);
  // Both words of each of kBatch / 2 pairs, as NoiseWords gives them: x, y, z, w in four arrays of kBatch / 2 elements.
  void (*noise)(const uint32_t* pairs, uint32_t tag, const law::DrawKey& key, uint32_t* words);
  // 1 in `large` where a logit became too large.
  void (*changed)(const uint32_t* bits, const uint32_t* bias, uint32_t repetition, uint32_t inverse_repetition,
                  const uint32_t* repeated, const uint32_t* penalty, uint32_t* changed, uint32_t* large);
  // Lists the values with a set bit in `mask`, and the odd ones of `wide`; returns how many.
  uint32_t (*where)(uint64_t mask, const uint32_t* values, uint32_t* listed);
  uint32_t (*where_odd)(const uint64_t* wide, uint64_t* listed);
};

// Returns the functions of all targets that this machine can run.
std::vector<Lanes> RunnableLanes();

}  // namespace sortition::kernels::cpu
