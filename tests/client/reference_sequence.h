// A sequence sampled by the law's reference. Its penalties are counted from the whole history at every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/row.h"
#include "sortition/batch.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::testing {

class ReferenceSequence {
 public:
  // Parameters as PlainRowParameters and PlainEdits take them.
  ReferenceSequence(v1::SamplingParameters parameters, uint64_t seed, uint32_t choice_index, uint32_t vocabulary,
                    uint32_t live_vocabulary, std::vector<uint32_t> prompt);

  // Draws a token from a row of `vocabulary` elements and appends it. The result has token, raw, processed, finish
  // reason and rewind only. `allowed_bits` and `banned` as in client::Row.
  v1::DrawResult Step(v1::DType dtype, const void* logits, uint32_t draw_salt = 0,
                      const uint32_t* allowed_bits = nullptr, std::span<const uint32_t> banned = {});

  // Returns the scores of tokens, on adjacent rows of logits: raw and processed only.
  v1::ScoreResult Score(v1::DType dtype, const std::byte* logits, std::span<const uint32_t> given,
                        const uint32_t* allowed_bits = nullptr) const;

  // Changes the history as a rewrite by the caller does.
  void SetTokens(std::vector<uint32_t> tokens, uint32_t prompt_length);

  const std::vector<uint32_t>& tokens() const { return tokens_; }
  uint32_t prompt_length() const { return prompt_length_; }

 private:
  // Returns the row's output. `given` is scored instead of a draw.
  kernels::RowOutput Answer(v1::DType dtype, const void* logits, uint32_t draw_salt, const uint32_t* allowed_bits,
                            std::optional<uint32_t> given, std::span<const uint32_t> banned = {}) const;

  const v1::SamplingParameters parameters_;
  const uint64_t seed_;
  const uint32_t choice_index_;
  const uint32_t vocabulary_;
  const uint32_t live_vocabulary_;
  std::vector<uint32_t> tokens_;
  uint32_t prompt_length_;
  std::optional<uint64_t> sampler_state_;  // of samplers that keep one, after the last step
};

// Returns a readable text that is equal for two draws exactly if their tokens and the bits of all logprobs are equal.
std::string Bits(const v1::DrawResult& draw);
std::string Bits(const v1::ScoreResult& score);
// Returns the finish reason and the rewind of a DrawResult or a VerifyResult.
template <typename Result>
std::string EndBits(const Result& result);
// Returns that of a result's tokens as if each had been drawn, one after the other, and then its end. Nothing for an
// error.
std::optional<std::string> Bits(const client::RowResult& result);

}  // namespace sortition::testing
