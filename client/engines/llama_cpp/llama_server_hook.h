// Sortition in llama-server, on llama.cpp's side: functions that its server calls where the patch says so.
#pragma once

#include <string>
#include <vector>

#include "sampling.h"

// Makes `sampler` draw by Sortition if SORTITION_LLAMA is set. Throws std::invalid_argument, which names the option,
// for a request that it cannot serve. `post_sampling_probs` and `synthetic_drafts` are options outside of `params`.
void common_sampler_use_sortition(common_sampler* sampler, const llama_model* model,
                                  const common_params_sampling& params, bool post_sampling_probs,
                                  bool synthetic_drafts);

// Returns Sortition's sampler in `sampler`, null if it has llama.cpp's.
llama_sampler* common_sampler_sortition(const common_sampler* sampler);

// Draws the next token by Sortition's sampler. Returns LLAMA_TOKEN_NULL if none can be drawn. A grammar and a forced
// end of the reasoning mask the row first; a row without either is drawn from where it lies.
llama_token common_sampler_sortition_sample(common_sampler* sampler, llama_context* ctx, int index);

// A sampler, the outputs from which it will be sampled next, and the drafts of which they decide.
struct common_sampler_sortition_row {
  common_sampler* sampler;
  std::vector<int> outputs;
  llama_tokens drafts;
};

// Draws for those samplers that are Sortition's and have rows without masks, in one step.
void common_sampler_sortition_ahead(const std::vector<common_sampler_sortition_row>& rows, llama_context* ctx);

// Returns the reason why the sampler has returned LLAMA_TOKEN_NULL.
std::string common_sampler_sortition_error(const common_sampler* sampler);
