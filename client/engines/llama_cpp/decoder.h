// One text that llama.cpp writes, as a sequence of Sortition's: tokens come in as the engine accepts them, and go out
// as they are drawn.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "client/cpp/local_sequence.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::engines::llama_cpp {

// Not thread-safe. llama.cpp applies a sampler and then tells it the accepted token, which may be another one, or none;
// a token that was drawn and not accepted was never there, though mirostat and adaptive-p go on from it, as llama.cpp's
// own do. What is accepted before the first draw is the prompt.
class Decoder {
 public:
  // Rows are sampled by the service behind `client`, which outlives the decoder, or on the calling thread if it is
  // null. `options` has everything but prompt and vocabulary. An absent seed is drawn once, and kept over Reset.
  Decoder(client::Client* client, client::SequenceOptions options);

  // Draws the next token from a row of `vocabulary_size` f32 logits, the same at every call. Blocks for the step; its
  // error, or that of opening the sequence, leaves the decoder as it was.
  absl::StatusOr<v1::DrawResult> Draw(const float* logits, uint32_t vocabulary_size);

  // The token that comes next in the text.
  absl::Status Accept(uint32_t token);

  // Forgets the text.
  void Reset();
  // Another decoder that goes on from here, with the same seed. What mirostat and adaptive-p have come to in a service
  // belongs to their sequence there: such a clone fails to draw with FAILED_PRECONDITION, until it is reset.
  std::unique_ptr<Decoder> Clone() const;

  const std::vector<uint32_t>& accepted() const { return accepted_; }

 private:
  bool is_open() const { return remote_ != nullptr || local_ != nullptr; }
  // All of it, or nothing.
  absl::Status Open(uint32_t vocabulary_size);
  absl::StatusOr<v1::DrawResult> Step(const float* logits, uint32_t vocabulary_size);
  // On whichever of the two there is.
  template <typename Rewrite>
  absl::Status RewriteSequence(Rewrite rewrite);

  client::Client* const client_;
  client::SequenceOptions options_;
  std::vector<uint32_t> accepted_;
  std::optional<uint32_t> prompt_length_;  // since the text was opened
  bool lacks_sampler_state_ = false;       // which the decoder has that this is a clone of
  std::optional<uint32_t> drawn_;          // by the last Draw, since which nothing was accepted
  std::unique_ptr<client::Sequence> remote_;
  std::unique_ptr<client::LocalSequence> local_;
};

}  // namespace sortition::engines::llama_cpp
