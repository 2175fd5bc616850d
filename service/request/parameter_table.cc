// The list. Its ranges are those of kernels/law/ranges.cc and limits.h.
#include "service/request/parameter_table.h"

namespace sortition::service {
namespace {

constexpr ParameterDescription kParameters[] = {
    {"temperature", "0 or 0.01..100", "1", "Divides the logits; 0 = greedy (Ackley et al. 1985)", true},
    {"top_k", "any; 0 or >= vocabulary = off", "0",
     "Keeps the first k tokens, exactly k, ties cut by lowest id (Fan et al. 2018)", true},
    {"top_p", "(0, 1]", "1", "Keeps the shortest ordered prefix of at least this mass (Holtzman et al. 2019)", true},
    {"min_p", "0..1", "0", "Keeps tokens at least this fraction as probable as the first (Nguyen et al. 2024)", true},
    {"repetition_penalty", "0.01..100", "1",
     "l > 0 ? l / r : l * r for tokens of prompt and output (Keskar et al. 2019)", true},
    {"frequency_penalty", "-100..100", "0", "Subtracted once for each occurrence in the output (OpenAI API)", true},
    {"presence_penalty", "-100..100", "0", "Subtracted if the token is in the output (OpenAI API)", true},
    {"penalty_scope", "window and ignored_prefix 0..max_history", "the chain preset's: vLLM's scopes",
     "Which tokens of prompt and output the penalties count", true},
    {"logit_bias", "|bias| < 65504", "none", "Added to single logits before everything else (OpenAI API)", true},
    {"allowed_token_ids", "", "all", "Only these can be drawn (vLLM)", true},
    {"banned_token_ids", "", "none", "These cannot be drawn", true},
    {"nan_policy", "FAIL or MASK", "FAIL", "What a NaN logit does: fails its row, or counts as masked", true},
    {"raw_logprobs", "top 0..1000", "off", "Natural logarithms of the row's own distribution at temperature 1", true},
    {"processed_logprobs", "top 0..1000", "off", "Natural logarithms of the kept tokens' distribution", true},
    {"logprob_token_ids", "at most 1000 ids", "none", "Ids whose log probability and rank are returned by name (vLLM)",
     true},
    {"entropy", "", "off", "Of the processed distribution, in nats", true},
    {"kept_set", "count, tokens", "off", "Count and ids of the tokens that passed every filter", true},
    {"chain", "PRESET_VLLM, PRESET_LLAMA_CPP, PRESET_HF or explicit", "PRESET_VLLM",
     "Order of temperature, filters and what else reshapes the distribution", true},
    {"typical_p", "(0, 1]", "1",
     "Keeps the tokens whose surprise is nearest to the entropy, up to this mass (Meister et al. 2022)", true},
    {"top_n_sigma", "0 or 0.01..100", "0", "Keeps logits within n standard deviations of the first (Tang et al. 2024)",
     true},
    {"epsilon_cutoff", "0..1", "0", "Drops tokens below this probability (Hewitt et al. 2022)", true},
    {"eta_cutoff", "0..1", "0", "Drops tokens below an entropy-dependent probability (Hewitt et al. 2022)", true},
    {"top_a", "0..1", "0", "Drops tokens below a * p_first^2 (KoboldAI)", true},
    {"top_h", "0..1", "0", "Keeps first tokens up to this share of their entropy (Transformers)", true},
    {"p_less", "", "off", "Drops tokens below the chance that two draws meet (arXiv 2509.23234)", true},
    {"min_k", "tau 0..100", "absent, tau 3",
     "Keeps the tokens before the steepest step of the sorted logits, of the first 256 (arXiv 2604.11012)", true},
    {"min_keep", "0..1000", "0", "Least number of tokens that every filter keeps (Transformers, llama.cpp)", true},
    {"xtc", "probability 0..1, threshold (0, 1]", "probability 0, threshold 0.1",
     "Sometimes drops the tokens of at least the threshold, but for the last of them; above 0.5 off (llama.cpp)", true},
    {"dynamic_temperature", "range 0..100, exponent 0.01..10", "range 0, exponent 1",
     "Temperature within the range about temperature, by the entropy (llama.cpp)", true},
    {"mirostat", "version 0..2, tau (0, 20], eta (0, 1], m 2..1000", "version 0, tau 5, eta 0.1, m 100",
     "Holds the surprise at a target (Basu et al. 2021)", true},
    {"adaptive_p", "target 0..1, decay 0..0.99", "absent, decay 0.9",
     "Prefers tokens near a target probability (llama.cpp)", true},
    {"quadratic_smoothing", "factor 0..100, curve 1..3", "factor 0, curve 1",
     "Logits become a polynomial of what they lie below the first (text-generation-webui)", true},
    {"dry",
     "multiplier 0 or 0.01..100, base 1 or 1.01..100, allowed_length 1..1024, window 0..max_history, breakers of "
     "1..1024",
     "multiplier 0 (base 1.75, allowed_length 2, window all, no breakers)",
     "Subtracts multiplier * base^(length - allowed_length) from what would go on with a repetition (llama.cpp)", true},
    {"no_repeat_ngram_size", "0..1024", "0",
     "Bans tokens that would complete an n-gram of prompt and output once more (Transformers)", true},
    {"min_tokens", "0..max_history", "0", "Stop tokens are banned until this many were drawn (vLLM)", true},
    {"stop_token_ids", "", "none", "Reported as finish reason when drawn (vLLM)", true},
    {"bad_words", "1..1024 tokens each", "none",
     "Token sequences that the output cannot complete (vLLM; with PRESET_HF they may begin in the prompt)", true},
    {"phases", "at most 8; begin and end at most 32 tokens, max_tokens 0..max_history", "none",
     "Parts of the text with tags, budgets and parameters (thinking budgets)", true},
    {"watermark", "context_width 1..64; skip_repeated_contexts", "off; width 4",
     "Noise from a secret key and the last tokens, so that the text can be told (Aaronson 2022)", true},
    {"tempered_logprobs", "top 0..1000", "off",
     "Natural logarithms of the distribution after edits and temperature, before the filters", true},
    {"kept_log_mass", "", "off", "Logarithm of the kept tokens' mass in the tempered distribution", true},
    {"repetition_stop",
     "repeats 0 or 2..16384, periods 1..512, min_length 0..16384, min_tokens 0..max_history; repeats * max_period <= "
     "16384",
     "repeats 0 (periods 1..256, min_length 256, min_tokens 0)",
     "Reports as finish reason that the output ends in a repetition (vLLM's repetition_detection)", true},
    {"banned_phrases", "1..1024 tokens each", "none",
     "Token sequences that are taken back when the output completes one (koboldcpp)", true},
    {"draw_salt", "0..65535", "0", "Another draw at the same position", true, true},
    {"mask", "mask_row, uploaded_mask_id, allowed_tokens; banned_tokens", "none",
     "Tokens that can be drawn in this step, and tokens that cannot", true, true},
    {"score", "1..max_score_tokens tokens; requested, race", "none",
     "Log probabilities of given tokens in place of a draw (prompt logprobs)", true, true},
    {"verify_draft", "modes GREEDY, REJECTION, COUPLED, BLOCK; 1..max_draft_tokens tokens", "none",
     "Verifies a sequence of drafts in place of a draw (Leviathan et al. 2023; blocks: Sun et al. 2024)", true, true},
    {"verify_tree", "modes GREEDY, REJECTION, COUPLED; 1..max_draft_tokens tokens", "none",
     "Verifies a tree of drafts in place of a draw", true, true},
};

struct NamedFeature {
  std::string_view name;
  kernels::Features feature;
};
using kernels::FeatureOf;
using kernels::StageKind;
constexpr NamedFeature kNamedFeatures[] = {
    {"temperature", FeatureOf(StageKind::kTemperature)},
    {"top_k", FeatureOf(StageKind::kTopK)},
    {"top_p", FeatureOf(StageKind::kTopP)},
    {"min_p", FeatureOf(StageKind::kMinP)},
    {"entropy", kernels::kFeatureEntropy},
    {"kept_set", kernels::kFeatureKeptSet},
    {"logprob_token_ids", kernels::kFeatureRequested},
    {"typical_p", FeatureOf(StageKind::kTypicalP)},
    {"top_n_sigma", FeatureOf(StageKind::kTopNSigma)},
    {"epsilon_cutoff", FeatureOf(StageKind::kEpsilonCutoff)},
    {"eta_cutoff", FeatureOf(StageKind::kEtaCutoff)},
    {"top_a", FeatureOf(StageKind::kTopA)},
    {"top_h", FeatureOf(StageKind::kTopH)},
    {"p_less", FeatureOf(StageKind::kPLess)},
    {"xtc", FeatureOf(StageKind::kXtc)},
    {"dynamic_temperature", FeatureOf(StageKind::kDynamicTemperature)},
    {"mirostat", FeatureOf(StageKind::kMirostat1) | FeatureOf(StageKind::kMirostat2)},
    {"adaptive_p", FeatureOf(StageKind::kAdaptiveP)},
    {"quadratic_smoothing", FeatureOf(StageKind::kQuadraticSmoothing)},
    {"tempered_logprobs", kernels::kFeatureTempered},
    {"kept_log_mass", kernels::kFeatureTempered},
    {"min_k", FeatureOf(StageKind::kMinK)},
    {"min_keep", kernels::kFeatureMinKeep},
    {"score", kernels::kFeatureScore},
    {"VERIFY_MODE_REJECTION", kernels::kFeatureVerify},
    {"VERIFY_MODE_BLOCK", kernels::kFeatureVerify | kernels::kFeatureBlock},
    {"DRAFT_SAMPLING_WITHOUT_REPLACEMENT", kernels::kFeatureVerify | kernels::kFeatureRounds},
    {"DRAFT_SAMPLING_WITH_REPLACEMENT", kernels::kFeatureVerify | kernels::kFeatureRounds},
};

}  // namespace

std::span<const ParameterDescription> Parameters() { return kParameters; }

std::vector<std::string_view> NamesOf(kernels::Features features) {
  std::vector<std::string_view> names;
  for (const NamedFeature& named : kNamedFeatures) {
    if ((named.feature & features) != 0) names.push_back(named.name);
  }
  return names;
}

std::string DevicesLack(kernels::Features features) {
  std::string message = "no device of this server has";
  const char* separator = " ";
  for (const std::string_view name : NamesOf(features)) {
    message.append(separator).append(name);
    separator = ", ";
  }
  return message;
}

}  // namespace sortition::service
