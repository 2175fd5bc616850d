// A row of logits that a test lays out, and a request for it.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/law/reference_row.h"
#include "kernels/law/row_law.h"
#include "kernels/row.h"

namespace sortition::testing {

inline constexpr float kOctave = 1.442695f;  // at this temperature a logit is an octave

// The members are the test's. Not thread-safe.
class LaidRow {
 protected:
  using RowRequest = kernels::RowRequest;
  using DType = kernels::DType;
  using LogitEdit = kernels::LogitEdit;

  // Lays `logits` as a row of `groups` groups. Each other token is far below 0.
  void Lay(uint32_t groups, const std::vector<std::pair<uint32_t, float>>& logits) {
    logits_.assign(size_t{groups} * law::kGroupSize, -200.0f);
    for (const auto& [token, logit] : logits) logits_[token] = logit;
  }

  // Draws the logits from a normal distribution. `head` of them come from 4 deviations and `above` on downwards, as in
  // Zipf's law. Multiples of a quarter have ties.
  struct Shape {
    float deviation;
    uint64_t head;
    float above = 0;
    bool has_ties = false;
  };
  void LayAtRandom(const Shape& shape, std::mt19937_64* random) {
    std::normal_distribution<float> normal(0, shape.deviation);
    for (float& logit : logits_) logit = normal(*random);
    for (uint64_t i = 0; i < shape.head; ++i) {
      logits_[(*random)() % logits_.size()] = 4 * shape.deviation + shape.above - 1.5f * std::log(float(1 + i));
    }
    if (!shape.has_ties) return;
    for (float& logit : logits_) logit = std::round(4 * logit) / 4;
  }

  // Edits one token in 250, and bans one of eight of these.
  void EditAtRandom(std::mt19937_64* random) {
    edits_.clear();
    for (auto id = uint32_t((*random)() % 64); id < logits_.size(); id += 1 + uint32_t((*random)() % 500)) {
      edits_.push_back({.token = id,
                        .flags = (*random)() % 8 == 0 ? uint32_t{LogitEdit::kBanned} : 0,
                        .penalty = law::CanonicalBits(-float((*random)() % 4))});
    }
  }

  // Rounds the logits towards 0 to numbers of the type, and sends them in it.
  void Narrow(DType dtype) {
    dtype_ = dtype;
    const uint32_t dropped = dtype == DType::kF32 ? 0 : dtype == DType::kF16 ? 0x1fff : 0xffff;
    narrow_.clear();
    for (float& logit : logits_) {
      const uint32_t bits = std::fabs(logit) < 0x1p-14f ? 0 : std::bit_cast<uint32_t>(logit) & ~dropped;
      logit = std::bit_cast<float>(bits);
      if (dtype != DType::kF32) narrow_.push_back(uint16_t(law::Narrow(dtype, bits)));
    }
  }

  // Hides the tokens of which is_hidden(id) is true.
  template <typename IsHidden>
  void Mask(IsHidden is_hidden) {
    allowed_.assign((logits_.size() + 31) / 32, 0);
    for (uint32_t id = 0; id < logits_.size(); ++id) {
      if (!is_hidden(id)) allowed_[id / 32] |= 1u << (id % 32);
    }
  }

  // Refers to the members.
  RowRequest Request() const {
    RowRequest request;
    request.logits = dtype_ == DType::kF32 ? static_cast<const void*>(logits_.data()) : narrow_.data();
    request.dtype = dtype_;
    request.live_vocabulary = uint32_t(logits_.size());
    request.parameters = &parameters_;
    request.edits = edits_;
    if (!allowed_.empty()) request.allowed_bits = allowed_.data();
    request.noise = {.seed = seed_, .position = 1, .stream = 0};
    return request;
  }

  // Returns the live tokens in order, after masks and edits.
  std::vector<kernels::TokenBits> Order() const {
    const RowRequest request = Request();
    std::vector<kernels::TokenBits> tokens;
    for (uint32_t id = 0; id < logits_.size(); ++id) {
      if (!allowed_.empty() && (allowed_[id / 32] >> (id % 32) & 1) == 0) continue;
      const uint32_t sent = law::Canonical(std::bit_cast<uint32_t>(logits_[id]));
      const uint32_t bits = edits_.empty() ? sent : law::ChangedBits(request, {id, sent});
      if (bits != law::kMaskedBits) tokens.push_back({id, bits});
    }
    std::ranges::sort(tokens, [](const auto& a, const auto& b) {
      return std::tuple(law::Key(a.bits), b.token) > std::tuple(law::Key(b.bits), a.token);
    });
    return tokens;
  }

  std::vector<float> logits_;
  DType dtype_ = DType::kF32;
  std::vector<uint16_t> narrow_;  // the logits, if they are not f32
  kernels::RowParameters parameters_;
  std::vector<LogitEdit> edits_;
  std::vector<uint32_t> allowed_;  // bits; empty: no mask
  uint64_t seed_ = 1;
};

}  // namespace sortition::testing
