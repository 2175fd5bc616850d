// Sortition as a sampler of llama.cpp: within one of its sampler chains, or called directly for a token.
#pragma once

#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/engines/llama_cpp/decoder.h"
#include "llama.h"

namespace sortition::engines::llama_cpp {

// Makes a sampler. llama_sampler_free, or its chain, destroys it. It must be last in a chain, in place of
// llama_sampler_init_dist: it chooses among the remaining candidates by their logits. If no token can be drawn,
// `selected` stays -1, at which llama_sampler_sample asserts, and LastError has the reason. Not thread-safe.
// `vocabulary_size` is llama_vocab_n_tokens.
llama_sampler* InitSampler(std::unique_ptr<Decoder> decoder, uint32_t vocabulary_size);

// Draws a token from a row of `vocabulary_size` logits, in place. It is not accepted yet, as after llama_sampler_apply.
// LastError has the error, too.
absl::StatusOr<v1::DrawResult> Draw(llama_sampler* sampler, const float* logits);

// As Decoder::NextRow.
struct NextRow {
  llama_sampler* sampler = nullptr;
  const float* logits = nullptr;
  std::span<const uint32_t> drafts;
};

// Draws for several samplers in one step of the service, as Decoder::DrawAhead. Does nothing for samplers in this
// process.
void DrawAhead(std::span<const NextRow> rows);

// Draws the token after output `index` of `context` and accepts it, as llama_sampler_sample does, but reads the logits
// in place, without an array of candidates. `sampler` is one of InitSampler, and in no chain.
absl::StatusOr<v1::DrawResult> Sample(llama_sampler* sampler, llama_context* context, int32_t index);

// Returns the error of the sampler's last draw, apply or accept. After an accept that failed, the text is not the
// engine's: nothing is drawn until the sampler is reset.
const absl::Status& LastError(const llama_sampler* sampler);

}  // namespace sortition::engines::llama_cpp
