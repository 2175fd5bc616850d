// The parameters as a list; ranges are those of kernels/law/parameters.h and limits.h.
#include "service/request/parameter_table.h"

namespace sortition::service {
namespace {

constexpr ParameterDescription kParameters[] = {
    {"temperature", "0 or 0.01..100", "1", "sequence", "Divides the logits; 0 = greedy (Ackley et al. 1985)", true},
    {"top_k", "any; 0 or >= vocabulary = off", "0", "sequence",
     "Keeps the first k tokens, exactly k, ties cut by lowest id (Fan et al. 2018)", true},
    {"top_p", "(0, 1]", "1", "sequence",
     "Keeps the shortest ordered prefix of at least this mass (Holtzman et al. 2019)", true},
    {"min_p", "0..1", "0", "sequence",
     "Keeps tokens at least this fraction as probable as the first (Nguyen et al. 2024)", true},
    {"repetition_penalty", "0.01..100", "1", "sequence",
     "l > 0 ? l / r : l * r for tokens of prompt and output (Keskar et al. 2019)", true},
    {"frequency_penalty", "-100..100", "0", "sequence",
     "Subtracted once for each occurrence in the output (OpenAI API)", true},
    {"presence_penalty", "-100..100", "0", "sequence", "Subtracted if the token is in the output (OpenAI API)", true},
    {"penalty_scope", "window and ignored_prefix 0..max_history", "the chain preset's: vLLM's scopes", "sequence",
     "Which tokens of prompt and output the penalties count", true},
    {"logit_bias", "|bias| < 65504", "none", "sequence", "Added to single logits before everything else (OpenAI API)",
     true},
    {"allowed_token_ids", "", "all", "sequence", "Only these can be drawn (vLLM)", true},
    {"banned_token_ids", "", "none", "sequence", "These cannot be drawn", true},
    {"nan_policy", "FAIL or MASK", "FAIL", "sequence", "What a NaN logit does: fails its row, or counts as masked",
     true},
    {"raw_logprobs", "top 0..1000", "off", "sequence",
     "Natural logarithms of the row's own distribution at temperature 1", true},
    {"processed_logprobs", "top 0..1000", "off", "sequence", "Natural logarithms of the kept tokens' distribution",
     true},
    {"logprob_token_ids", "at most 1000 ids", "none", "sequence",
     "Ids whose log probability and rank are returned by name (vLLM)", true},
    {"entropy", "", "off", "sequence", "Of the processed distribution, in nats", true},
    {"kept_set", "count, tokens", "off", "sequence", "Count and ids of the tokens that passed every filter", true},
    {"chain", "PRESET_VLLM", "PRESET_VLLM", "sequence",
     "Order of the filters; other presets and explicit orders are not built", true},
    {"typical_p", "(0, 1]", "1", "sequence", "Locally typical sampling (Meister et al. 2022)", false},
    {"top_n_sigma", ">= 0", "0", "sequence",
     "Keeps logits within n standard deviations of the first (Tang et al. 2024)", false},
    {"epsilon_cutoff", "0..1", "0", "sequence", "Drops tokens below this probability (Hewitt et al. 2022)", false},
    {"eta_cutoff", "0..1", "0", "sequence", "Drops tokens below an entropy-dependent probability (Hewitt et al. 2022)",
     false},
    {"top_a", "0..1", "0", "sequence", "Drops tokens below a * p_max^2", false},
    {"top_h", "0..1", "0", "sequence", "Entropy-bounded truncation", false},
    {"p_less", "", "off", "sequence", "Parameter-free truncation by collision probability", false},
    {"xtc", "", "off", "sequence", "Excludes top choices (llama.cpp)", false},
    {"dynamic_temperature", "", "off", "sequence", "Temperature by entropy (llama.cpp)", false},
    {"mirostat", "version 1 or 2", "off", "sequence", "Holds the surprise at a target (Basu et al. 2021)", false},
    {"adaptive_p", "", "off", "sequence", "Moves toward a target probability (llama.cpp)", false},
    {"quadratic_smoothing", "", "off", "sequence", "Quadratic transform of the logits", false},
    {"dry",
     "multiplier 0 or 0.01..100, base 1 or 1.01..100, allowed_length 1..1024, window 0..max_history, breakers of "
     "1..1024",
     "multiplier 0 (base 1.75, allowed_length 2, window all, no breakers)", "sequence",
     "Subtracts multiplier * base^(length - allowed_length) from what would go on with a repetition (llama.cpp)", true},
    {"no_repeat_ngram_size", "0..1024", "0", "sequence",
     "Bans tokens that would complete an n-gram of prompt and output once more (Transformers)", true},
    {"min_tokens", "0..max_history", "0", "sequence", "Stop tokens are banned until this many were drawn (vLLM)", true},
    {"stop_token_ids", "", "none", "sequence", "Reported as finish reason when drawn (vLLM)", true},
    {"bad_words", "1..1024 tokens each", "none", "sequence",
     "Token sequences that the output cannot complete (vLLM; with PRESET_HF they may begin in the prompt)", true},
    {"forced_tokens", "start 0..max_history", "none", "sequence",
     "Emitted instead of drawn from an output position on (thinking budgets)", true},
    {"watermark", "context_width 1..64", "off; width 4", "sequence",
     "Noise from a secret key and the last tokens, so that the text can be told (Aaronson 2022)", true},
    {"draw_salt", "0..65535", "0", "step", "Another draw at the same position", true},
    {"mask", "mask_row, allowed_tokens", "none", "step",
     "Tokens that can be drawn in this step; uploaded masks are not built", true},
};

}  // namespace

std::span<const ParameterDescription> Parameters() { return kParameters; }

}  // namespace sortition::service
