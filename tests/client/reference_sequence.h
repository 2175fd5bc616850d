// One sequence sampled by the plain reference of the law, with its penalties counted anew from the whole history at
// every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/cpp/batch.h"
#include "kernels/row.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::testing {

class ReferenceSequence {
 public:
  // Parameters as PlainRowParameters and PlainEdits take them.
  ReferenceSequence(v1::SamplingParameters parameters, uint64_t seed, uint32_t choice_index, uint32_t vocabulary,
                    uint32_t live_vocabulary, std::vector<uint32_t> prompt);

  // Draws a token from a row of `vocabulary` elements and appends it. The result has token, raw, processed and finish
  // reason only. `allowed_bits` as in client::Row.
  v1::DrawResult Step(v1::DType dtype, const void* logits, uint32_t draw_salt = 0,
                      const uint32_t* allowed_bits = nullptr);

  // What a score of these tokens says, on a row of logits for each, one right after the other: raw and processed only.
  v1::ScoreResult Score(v1::DType dtype, const std::byte* logits, std::span<const uint32_t> given,
                        const uint32_t* allowed_bits = nullptr) const;

  // What an override by the caller leaves as history.
  void SetTokens(std::vector<uint32_t> tokens, uint32_t prompt_length);

  const std::vector<uint32_t>& tokens() const { return tokens_; }
  uint32_t prompt_length() const { return prompt_length_; }

 private:
  // What the row says; `given` is scored instead of a draw.
  kernels::RowOutput Answer(v1::DType dtype, const void* logits, uint32_t draw_salt, const uint32_t* allowed_bits,
                            std::optional<uint32_t> given) const;

  const v1::SamplingParameters parameters_;
  const uint64_t seed_;
  const uint32_t choice_index_;
  const uint32_t vocabulary_;
  const uint32_t live_vocabulary_;
  std::vector<uint32_t> tokens_;
  uint32_t prompt_length_;
  std::optional<uint64_t> sampler_state_;  // of samplers that keep one, after the last step
};

// A readable form in which two draws are equal exactly if their tokens are and every logprob is to the bit.
std::string Bits(const v1::DrawResult& draw);
std::string Bits(const v1::ScoreResult& score);
// Of an outcome: that of its tokens as if each had been drawn, one after the other, then kStop if one of them is a stop
// token; nothing of an error.
inline constexpr const char* kStop = " stop";
std::optional<std::string> Bits(const client::RowResult& outcome);

}  // namespace sortition::testing
