// The interface between a patched llama-server and libsortition_llama_server, in C: the server loads the library by its
// name when SORTITION_LLAMA is set, and knows nothing else of Sortition.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct llama_sampler;

struct sortition_llama_bias {
  int32_t token;
  float bias;  // -Inf bans the token
};

// Fields have the names, defaults and off values of llama.cpp's common_params_sampling.
struct sortition_llama_options {
  uint64_t seed;
  int32_t has_seed;  // 0: the seed is drawn
  int32_t top_k;
  float top_p;
  float min_p;
  float typ_p;
  float top_n_sigma;
  float temp;
  float dynatemp_range;
  float dynatemp_exponent;
  float xtc_probability;
  float xtc_threshold;
  int32_t penalty_last_n;
  float penalty_repeat;
  float penalty_freq;
  float penalty_present;
  int32_t mirostat;
  float mirostat_tau;
  float mirostat_eta;
  float adaptive_target;
  float adaptive_decay;
  int32_t min_keep;
  const char* const* samplers;  // llama.cpp's names, first applied first
  size_t sampler_count;
  const struct sortition_llama_bias* biases;
  size_t bias_count;
};

// The row from which a sampler draws next. With drafts it is the first of draft_count + 1 adjacent ones, from which the
// sampler draws as long as the token of the row before is the draft.
struct sortition_llama_row {
  struct llama_sampler* sampler;
  const float* logits;
  const int32_t* drafts;
  size_t draft_count;
};

// A table of functions. Texts end with 0. The samplers are not thread-safe; different ones may be used at once.
struct sortition_llama_functions {
  // Makes a sampler for rows of `vocabulary_size` logits. llama_sampler_free, or its chain, destroys it. Returns null,
  // and the reason in `error` of `error_size` bytes, if these options cannot draw.
  struct llama_sampler* (*make)(const struct sortition_llama_options* options, uint32_t vocabulary_size, char* error,
                                size_t error_size);
  // Draws from a row where it lies. Returns -1 if no token can be drawn. The token must be accepted, as after
  // llama_sampler_apply. Blocks for a step of the service.
  int32_t (*draw)(struct llama_sampler* sampler, const float* logits);
  // Draws for several samplers in one step of the service. Their draws from these rows then return at once, until the
  // next call for the same sampler. Does nothing for samplers in this process.
  void (*draw_ahead)(const struct sortition_llama_row* rows, size_t count);
  // Returns the reason why the last draw or accept failed, "" if it did not. Valid until the next call.
  const char* (*error)(const struct llama_sampler* sampler);
  // Returns a line for a log: the versions, and where tokens are drawn now. Valid until the thread's next call.
  const char* (*where)(void);
};

#define SORTITION_LLAMA_VERSION 3

// Returns the functions; null for another version than SORTITION_LLAMA_VERSION. Thread-safe.
__attribute__((visibility("default"))) const struct sortition_llama_functions* sortition_llama(uint32_t version);

#ifdef __cplusplus
}
#endif
