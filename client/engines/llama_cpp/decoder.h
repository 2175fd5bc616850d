// One text that llama.cpp writes, as a sequence: it draws tokens and is told which ones the engine accepts.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sortition/client.h"
#include "sortition/local_sequence.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::engines::llama_cpp {

// Not thread-safe. llama.cpp applies a sampler and then accepts a token, which may be another one, or none. A drawn
// token that is not accepted is not part of the text, but mirostat and adaptive-p continue from it, as llama.cpp's own
// do. Tokens accepted before the first draw are the prompt.
class Decoder {
 public:
  // Samples rows through `client`, which outlives the decoder, or on the calling thread if it is null. `options` has
  // everything but prompt and vocabulary. An absent seed is drawn once, and kept by Reset.
  Decoder(client::Client* client, client::SequenceOptions options);

  // Draws the next token from a row of `vocabulary_size` f32 logits; the size must not change. Blocks for the step. On
  // an error of the step, or of opening the sequence, the decoder is unchanged.
  absl::StatusOr<v1::DrawResult> Draw(const float* logits, uint32_t vocabulary_size);

  // The row from which a decoder draws next. With drafts it is the first of drafts.size() + 1 adjacent ones, from which
  // the decoder draws as long as the token of the row before is the draft.
  struct NextRow {
    Decoder* decoder = nullptr;
    const float* logits = nullptr;
    std::span<const uint32_t> drafts;
  };

  // Draws the next tokens of several decoders of one client in one step. The next Draw of each from the same row
  // returns its token or error at once; so do those from the rows that follow, if the token before was accepted.
  // Decoders without a client are left out. Blocks for the step.
  static void DrawAhead(std::span<const NextRow> rows, uint32_t vocabulary_size);

  // Appends a token to the text.
  absl::Status Accept(uint32_t token);

  // Forgets the text.
  void Reset();
  // Returns another decoder that continues this text, with the same seed. The state of mirostat and adaptive-p at a
  // service cannot be copied: such a clone fails to draw with FAILED_PRECONDITION until it is reset.
  std::unique_ptr<Decoder> Clone() const;

  const std::vector<uint32_t>& accepted() const { return accepted_; }

 private:
  bool is_open() const { return remote_ != nullptr || local_ != nullptr; }
  // Opens the sequence with the accepted tokens. On an error nothing has changed.
  absl::Status Open(uint32_t vocabulary_size);
  // Opens the sequence if it is not, and takes back what was drawn and not accepted.
  absl::Status Prepare(uint32_t vocabulary_size);
  absl::StatusOr<v1::DrawResult> Step(const float* logits, uint32_t vocabulary_size);
  // Notes the drawn token.
  absl::StatusOr<v1::DrawResult> Drawn(absl::StatusOr<v1::DrawResult> result);
  // Takes a row's result of DrawAhead.
  void TakeAhead(const NextRow& row, uint32_t vocabulary_size, absl::StatusOr<client::RowResult> result);
  // Rewrites the remote or the local sequence.
  template <typename Rewrite>
  absl::Status RewriteSequence(Rewrite rewrite);

  client::Client* const client_;
  client::SequenceOptions options_;
  std::vector<uint32_t> accepted_;
  std::optional<uint32_t> prompt_length_;  // absent until the text is opened
  bool lacks_sampler_state_ = false;       // the state stayed with the decoder that this was cloned from
  std::deque<uint32_t> drawn_;             // tokens of the sequence that are not accepted yet
  struct Ahead {
    const float* row;
    absl::StatusOr<v1::DrawResult> result;
  };
  std::deque<Ahead> ahead_;  // by DrawAhead, until Draw takes them
  std::unique_ptr<client::Sequence> remote_;
  std::unique_ptr<client::LocalSequence> local_;
};

}  // namespace sortition::engines::llama_cpp
