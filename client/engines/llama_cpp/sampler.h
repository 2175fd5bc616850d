// Sortition as a sampler of llama.cpp's: in a chain of its own making, or asked for a token directly.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/engines/llama_cpp/decoder.h"
#include "llama.h"

namespace sortition::engines::llama_cpp {

// A sampler that llama_sampler_free, or the chain that it is added to, destroys. It belongs last in a chain, in place
// of llama_sampler_init_dist: it chooses among the candidates that are left, and takes their logits as they are. Where
// nothing can be drawn `selected` stays -1, at which llama_sampler_sample asserts; LastError says why. Not thread-safe.
// `vocabulary_size` is llama_vocab_n_tokens.
llama_sampler* InitSampler(std::unique_ptr<Decoder> decoder, uint32_t vocabulary_size);

// Draws the token after output `index` of `context` and accepts it, as llama_sampler_sample does, but from the logits
// where they lie: no array of candidates is made. `sampler` is one of InitSampler's, alone.
absl::StatusOr<v1::DrawResult> Sample(llama_sampler* sampler, llama_context* context, int32_t index);

// Why the last apply or accept of the sampler failed.
const absl::Status& LastError(const llama_sampler* sampler);

}  // namespace sortition::engines::llama_cpp
