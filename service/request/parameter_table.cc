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
    {"logprob_token_ids", "", "none", "sequence", "Ids whose log probability is returned by name (vLLM)", false},
    {"entropy", "", "off", "sequence", "Of the processed distribution, in nats", false},
    {"kept_set", "", "off", "sequence", "Count and ids of the tokens that passed every filter", false},
    {"chain", "PRESET_VLLM, PRESET_LLAMA_CPP, PRESET_HF or explicit", "PRESET_VLLM", "sequence",
     "Order of temperature, filters and what else reshapes the distribution", true},
    {"typical_p", "(0, 1]", "1", "sequence",
     "Keeps the tokens whose surprise is nearest to the entropy, up to this mass (Meister et al. 2022)", true},
    {"top_n_sigma", "0 or 0.01..100", "0", "sequence",
     "Keeps logits within n standard deviations of the first (Tang et al. 2024)", true},
    {"epsilon_cutoff", "0..1", "0", "sequence", "Drops tokens below this probability (Hewitt et al. 2022)", true},
    {"eta_cutoff", "0..1", "0", "sequence", "Drops tokens below an entropy-dependent probability (Hewitt et al. 2022)",
     true},
    {"top_a", "0..1", "0", "sequence", "Drops tokens below a * p_first^2 (KoboldAI)", true},
    {"top_h", "0..1", "0", "sequence", "Keeps first tokens up to this share of their entropy (Transformers)", true},
    {"p_less", "", "off", "sequence", "Drops tokens below the chance that two draws meet (arXiv 2509.23234)", true},
    {"xtc", "probability 0..1, threshold (0, 1]", "probability 0, threshold 0.1", "sequence",
     "Sometimes drops the tokens of at least the threshold, but for the last of them; above 0.5 off (llama.cpp)", true},
    {"dynamic_temperature", "range 0..100, exponent 0.01..10", "range 0, exponent 1", "sequence",
     "Temperature within the range about temperature, by the entropy (llama.cpp)", true},
    {"mirostat", "version 0..2, tau (0, 20], eta (0, 1], m 2..1000", "version 0, tau 5, eta 0.1, m 100", "sequence",
     "Holds the surprise at a target (Basu et al. 2021)", false},
    {"adaptive_p", "target 0..1, decay 0..0.99", "absent, decay 0.9", "sequence",
     "Prefers tokens near a target probability (llama.cpp)", false},
    {"quadratic_smoothing", "factor 0..100, curve 1..3", "factor 0, curve 1", "sequence",
     "Logits become a polynomial of what they lie below the first (text-generation-webui)", true},
    {"dry", "", "off", "sequence", "Penalises the continuation of repeated sequences (llama.cpp)", false},
    {"no_repeat_ngram_size", ">= 0", "0", "sequence", "Bans tokens that would repeat an n-gram (Transformers)", false},
    {"min_tokens", ">= 0", "0", "sequence", "Stop tokens are banned until this many were drawn (vLLM)", false},
    {"stop_token_ids", "", "none", "sequence", "Reported as finish reason", false},
    {"bad_words", "", "none", "sequence", "Token sequences that cannot be completed (vLLM)", false},
    {"forced_tokens", "", "none", "sequence", "Emitted instead of drawn from a position on (thinking budgets)", false},
    {"watermark", "", "off", "sequence", "Keyed watermark on the race", false},
    {"draw_salt", "0..65535", "0", "step", "Another draw at the same position", true},
    {"mask", "mask_row, allowed_tokens", "none", "step",
     "Tokens that can be drawn in this step; uploaded masks are not built", true},
};

}  // namespace

std::span<const ParameterDescription> Parameters() { return kParameters; }

}  // namespace sortition::service
