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

  // Draws a token from a row of `vocabulary` elements and appends it. The result has token, phase, raw, processed,
  // finish reason and rewind only. `allowed_bits` and `banned` as in client::Row.
  v1::DrawResult Step(v1::DType dtype, const void* logits, uint32_t draw_salt = 0,
                      const uint32_t* allowed_bits = nullptr, std::span<const uint32_t> banned = {});

  // Drafts of a sequence, each with the drafter's probabilities of all tokens.
  struct Drafts {
    std::vector<uint32_t> tokens;
    std::vector<std::vector<float>> probabilities;
    bool as_block = false;  // VERIFY_MODE_BLOCK; otherwise VERIFY_MODE_REJECTION
  };
  // Verifies drafts on adjacent rows of logits and appends the tokens that result, which it returns as if each had been
  // drawn. `allowed_bits` and `banned` hold at every position; `banned_first` at the first one, too.
  std::vector<v1::DrawResult> Verify(v1::DType dtype, const std::byte* logits, const Drafts& drafts, uint32_t draw_salt,
                                     const uint32_t* allowed_bits, const std::vector<uint32_t>& banned,
                                     const std::vector<uint32_t>& banned_first);

  // Returns the scores of tokens, on adjacent rows of logits: phase, raw and processed only.
  v1::ScoreResult Score(v1::DType dtype, const std::byte* logits, std::span<const uint32_t> given,
                        const uint32_t* allowed_bits = nullptr) const;

  // Changes the history as a rewrite by the caller does.
  void SetTokens(std::vector<uint32_t> tokens, uint32_t prompt_length);

  const std::vector<uint32_t>& tokens() const { return tokens_; }
  uint32_t prompt_length() const { return prompt_length_; }

 private:
  // A row of logits and its options.
  struct Ask {
    v1::DType dtype = v1::DTYPE_BF16;
    const void* logits = nullptr;
    uint32_t draw_salt = 0;
    const uint32_t* allowed_bits = nullptr;
    std::vector<uint32_t> banned = {};
    kernels::RowTask task = kernels::RowTask::kDraw;
    uint32_t given = 0;
    std::span<const float> draft = {};  // kVerify: the drafter's probabilities
    uint64_t survival = kernels::RowRequest::kNoBlock;
  };
  kernels::RowOutput Answer(const Ask& ask) const;
  // Returns the noise at the end of the tokens.
  kernels::NoiseKey Noise(uint32_t draw_salt) const;
  // Appends the output's token, and returns it with the row's other answers.
  v1::DrawResult Take(const kernels::RowOutput& output);
  // Verifies the drafts together. `asks` has one for each draft's position and one for the position after them.
  std::vector<v1::DrawResult> VerifyBlock(const Drafts& drafts, std::vector<Ask> asks);

  const v1::SamplingParameters parameters_;
  const uint64_t seed_;
  const uint32_t choice_index_;
  const uint32_t vocabulary_;
  const uint32_t live_vocabulary_;
  std::vector<uint32_t> tokens_;
  uint32_t prompt_length_;
  std::optional<uint64_t> sampler_state_;  // samplers' state after the last step, if they keep one
};

// Returns a readable text that is equal for two draws exactly if their tokens and the bits of all logprobs are equal.
std::string Bits(const v1::DrawResult& draw);
std::string Bits(const v1::ScoreResult& score);
// Returns the finish reason and the rewind of a DrawResult or a VerifyResult.
template <typename Result>
std::string EndBits(const Result& result);
// Prints a result's tokens as if each had been drawn in turn, then its end. Nothing for an error.
std::optional<std::string> Bits(const client::RowResult& result);

}  // namespace sortition::testing
