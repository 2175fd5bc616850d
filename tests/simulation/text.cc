// Draws callers' choices, and computes their texts by the plain reference.
#include "tests/simulation/text.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "tests/client/reference_sequence.h"
#include "tests/client/rows.h"
#include "tests/simulation/draw.h"
#include "tests/support/plain_history.h"

namespace sortition::simulation {
namespace {

void ScopePenalties(Draws* draws, v1::PenaltyScope* scope) {
  if (draws->OneIn(2)) scope->set_window(draws->Between(1, 12));
  if (draws->OneIn(2)) scope->set_ignored_prefix(draws->Below(8));
  if (draws->OneIn(2)) scope->set_repetition_counts_prompt(false);
  if (draws->OneIn(2)) scope->set_frequency_counts_prompt(true);
}

v1::TokenSequence Tokens(Draws* draws, uint32_t count) {
  v1::TokenSequence tokens;
  while (count-- > 0) tokens.add_tokens(draws->Below(kVocabulary));
  return tokens;
}

// Sets options other than penalties that look at the history. Each leaves some token to draw.
void LookAtHistory(Draws* draws, v1::SamplingParameters* parameters) {
  if (draws->OneIn(3)) {
    v1::Dry& dry = *parameters->mutable_dry();
    dry.set_multiplier(0.5f);
    if (draws->OneIn(2)) dry.set_allowed_length(draws->Between(1, 2));
    if (draws->OneIn(3)) dry.set_base(1.2f);
    if (draws->OneIn(2)) dry.set_window(draws->Between(2, 30));
    if (draws->OneIn(2)) *dry.add_sequence_breakers() = Tokens(draws, draws->Between(1, 2));
  }
  if (draws->OneIn(4)) parameters->set_no_repeat_ngram_size(draws->Between(2, 3));
  if (draws->OneIn(4)) *parameters->add_bad_words() = Tokens(draws, draws->Between(1, 2));
  if (draws->OneIn(3)) {
    parameters->add_stop_token_ids(draws->Below(12));
    parameters->add_stop_token_ids(12 + draws->Below(12));
    if (draws->OneIn(2)) parameters->set_min_tokens(draws->Between(1, 8));
  }
  if (draws->OneIn(3)) {
    v1::RepetitionStop& stop = *parameters->mutable_repetition_stop();
    stop.set_repeats(2);
    stop.set_max_period(draws->Between(1, 6));
    stop.set_min_length(draws->Between(0, 3));
    if (draws->OneIn(2)) stop.set_min_tokens(draws->Between(1, 5));
  }
  if (draws->OneIn(3)) {
    *parameters->add_banned_phrases() = Tokens(draws, 1);
    v1::TokenSequence& phrase = *parameters->add_banned_phrases();
    phrase = Tokens(draws, 2);
    // The phrase may begin with the first token of the shorter one.
    if (draws->OneIn(2)) phrase.set_tokens(0, parameters->banned_phrases(0).tokens(0));
  }
  if (draws->OneIn(4)) {
    v1::Phase& first = *parameters->add_phases();  // from the output's first position on
    first.set_max_tokens(draws->Below(6));
    *first.mutable_then() = Tokens(draws, draws->Between(1, 3)).tokens();
  }
  if (draws->OneIn(3)) {
    v1::Phase& phase = *parameters->add_phases();
    *phase.mutable_begin() = Tokens(draws, draws->Between(1, 2)).tokens();
    *phase.mutable_end() = Tokens(draws, draws->Between(1, 2)).tokens();
    if (draws->OneIn(2)) phase.set_max_tokens(draws->Below(5));
    if (draws->OneIn(2)) phase.mutable_parameters()->set_temperature(0.6f);
    if (draws->OneIn(3)) phase.mutable_parameters()->set_top_k(draws->Between(2, 5));
    if (draws->OneIn(3)) phase.mutable_parameters()->set_frequency_penalty(0.4f);
    if (draws->OneIn(4)) {
      v1::LogitBias& bias = *phase.mutable_parameters()->add_logit_bias();
      bias.set_token(draws->Below(kVocabulary));
      bias.set_bias(-1);
    }
  }
}

// The tokens that rewinds have banned, by position.
using TextBans = std::map<uint32_t, std::vector<uint32_t>>;

// True if a mask allows a token that is not banned.
bool Leaves(uint32_t mask, const v1::SamplingParameters& parameters, const std::vector<uint32_t>& tokens,
            uint32_t prompt_length, const TextBans& bans) {
  const auto here = bans.find(static_cast<uint32_t>(tokens.size()));
  if (here != bans.end()) {
    for (const uint32_t token : here->second) mask &= ~(1u << token);
  }
  const uint32_t phase = testing::PlainPlaceAfter(parameters, tokens, prompt_length).phase;
  const v1::SamplingParameters within = testing::PlainWithin(parameters, phase);
  for (const kernels::LogitEdit& edit : testing::PlainEdits(within, tokens, prompt_length)) {
    if ((edit.flags & kernels::LogitEdit::kBanned) != 0) mask &= ~(1u << edit.token);
  }
  return mask != 0;
}

// True if the history may ban tokens.
bool Bans(const v1::SamplingParameters& parameters) {
  return parameters.no_repeat_ngram_size() != 0 || parameters.bad_words_size() > 0 || parameters.min_tokens() != 0;
}

// Rewrites the text of `step` as a caller might, and notes the rewrites in it.
void Rewrite(Draws* draws, TextStep* step) {
  const uint32_t length = static_cast<uint32_t>(step->tokens.size());
  const uint32_t output = length - step->prompt_length;
  const auto token = [&] { return draws->Below(kVocabulary); };
  switch (draws->Below(12)) {
    case 0:  // the caller emitted another token than the drawn one
      if (output == 0) return;
      step->truncate_to = length - 1;
      step->append = {token()};
      return;
    case 1:  // rejected: drawn again with other noise
      if (output == 0) return;
      step->truncate_to = length - draws->Between(1, std::min(output, 3u));
      step->draw_salt = draws->Between(1, 65535);
      return;
    case 2:  // back to any length, the prompt included
      step->truncate_to = draws->Between(draws->OneIn(3) ? 0 : step->prompt_length, length);
      for (uint32_t i = draws->Below(3); i > 0; --i) step->append.push_back(token());
      return;
    case 3:  // forced tokens
      for (uint32_t i = draws->Between(1, 4); i > 0; --i) step->append.push_back(token());
      return;
    default:
      return;
  }
}

// Returns a model's logits, which follow from the text.
std::vector<std::byte> LogitsAfter(uint64_t seed, uint32_t sequence, const std::vector<uint32_t>& tokens) {
  uint64_t row = Draw(seed, Choice::kRow, {sequence, tokens.size()});
  for (uint32_t token : tokens) row = Draw(row, Choice::kRow, {token});
  return testing::MakeRow(v1::DTYPE_BF16, kVocabulary, row);
}

// Prints a step's tokens, and then its end.
std::string AnswerOf(const std::vector<v1::DrawResult>& tokens) {
  std::string text;
  for (const v1::DrawResult& token : tokens) text += testing::Bits(token);
  return text + testing::EndBits(tokens.back());
}

// A text before a step.
struct StepText {
  uint64_t seed = 0;
  uint32_t sequence = 0;
  testing::ReferenceSequence* reference = nullptr;
  std::vector<uint32_t> banned_first;  // by rewinds to the step's first position
  uint32_t rewinds = 0;                // before the step

  uint32_t Salt(const TextStep& step) const { return (step.draw_salt + rewinds) % 65536; }
};

// Draws the tokens that a step with `drafts` drafts yields, one by one. Some drafts are wrong. In a tree each draft has
// a sibling.
std::vector<v1::DrawResult> DrawStep(const StepText& text, uint32_t drafts, bool is_tree, Draws* draws,
                                     TextStep* step) {
  std::vector<v1::DrawResult> drawn_tokens;
  bool stopped = false;
  const auto draw = [&] {
    const std::vector<std::byte> logits = LogitsAfter(text.seed, text.sequence, text.reference->tokens());
    std::vector<uint32_t> banned = step->banned.empty() ? std::vector<uint32_t>() : step->banned[0];
    if (drawn_tokens.empty()) banned.insert(banned.end(), text.banned_first.begin(), text.banned_first.end());
    const v1::DrawResult& last = drawn_tokens.emplace_back(
        text.reference->Step(v1::DTYPE_BF16, logits.data(), text.Salt(*step),
                             step->allowed_bits.empty() ? nullptr : step->allowed_bits.data(), banned));
    stopped = last.finish_reason() != 0 || last.has_rewind();
    return last.token();
  };
  std::vector<uint32_t> ahead = text.reference->tokens();
  step->logits = LogitsAfter(text.seed, text.sequence, ahead);
  int32_t parent = -1;
  const auto propose = [&](uint32_t token) {
    step->drafts.push_back(token);
    step->parents.push_back(parent);
    ahead.push_back(token);
    const std::vector<std::byte> logits = LogitsAfter(text.seed, text.sequence, ahead);
    step->logits.insert(step->logits.end(), logits.begin(), logits.end());
  };
  uint32_t drawn = draw();
  bool holds = true;
  for (uint32_t i = 0; i < drafts; ++i) {
    const uint32_t draft = holds && !draws->OneIn(3) ? drawn : draws->Below(kVocabulary);
    const uint32_t sibling = (draft + 1 + drawn % 4) % kVocabulary;
    if (is_tree) {
      propose(sibling);
      ahead.pop_back();
    }
    propose(draft);
    parent = static_cast<int32_t>(step->drafts.size()) - 1;
    const bool is_accepted = holds && (draft == drawn || (is_tree && sibling == drawn)) && !stopped;
    holds = is_accepted && draft == drawn;
    if (is_accepted) drawn = draw();
  }
  if (is_tree) step->verification.parents = step->parents;
  return drawn_tokens;
}

// Verifies drafts against a drafter's probabilities. The drafter gives most tokens a probability above 0, and knows the
// tokens that would be drawn without drafts.
std::vector<v1::DrawResult> TestStep(const StepText& text, uint32_t count, bool as_block, Draws* draws,
                                     TextStep* step) {
  testing::ReferenceSequence drawn = *text.reference;
  testing::ReferenceSequence::Drafts drafts;
  drafts.as_block = as_block;
  std::vector<uint32_t> ahead = drawn.tokens();
  for (uint32_t i = 0; i <= count; ++i) {
    const std::vector<std::byte> logits = LogitsAfter(text.seed, text.sequence, ahead);
    step->logits.insert(step->logits.end(), logits.begin(), logits.end());
    if (i == count) break;
    const uint32_t likely = drawn.Step(v1::DTYPE_BF16, logits.data(), i + 1).token();
    ahead.push_back(draws->OneIn(3) ? draws->Below(kVocabulary) : likely);
    drawn.SetTokens(ahead, drawn.prompt_length());
    drafts.tokens.push_back(ahead.back());
    std::vector<float>& q = drafts.probabilities.emplace_back(kVocabulary);
    for (float& weight : q) weight = static_cast<float>(draws->Below(4));
    q[likely] += 8;
    q[ahead.back()] += 1;
    const float sum = std::accumulate(q.begin(), q.end(), 0.0f);
    for (float& weight : q) weight /= sum;
  }
  step->drafts = drafts.tokens;
  const bool is_dense = draws->OneIn(2);
  for (const std::vector<float>& q : drafts.probabilities) {
    if (is_dense) {
      step->probabilities.insert(step->probabilities.end(), q.begin(), q.end());
      continue;
    }
    v1::SparseProbabilities& sparse = step->sparse_probabilities.emplace_back();
    for (uint32_t token = 0; token < kVocabulary; ++token) {
      if (q[token] == 0) continue;
      sparse.add_tokens(token);
      sparse.add_probabilities(q[token]);
    }
  }
  step->verification.mode = as_block ? v1::VERIFY_MODE_BLOCK : v1::VERIFY_MODE_REJECTION;
  if (is_dense) step->verification.probabilities = step->probabilities.data();
  step->verification.sparse_probabilities = step->sparse_probabilities;
  return text.reference->Verify(v1::DTYPE_BF16, step->logits.data(), drafts, text.Salt(*step),
                                step->allowed_bits.empty() ? nullptr : step->allowed_bits.data(),
                                step->banned.empty() ? std::vector<uint32_t>() : step->banned[0], text.banned_first);
}

// Scores some tokens. If `may_mask`, perhaps under one mask for all of them.
void ScoreStep(uint64_t seed, uint32_t sequence, bool may_mask, Draws* draws,
               const testing::ReferenceSequence& reference, TextStep* step) {
  std::vector<uint32_t> ahead = reference.tokens();
  for (uint32_t i = draws->Between(1, 4); i > 0; --i) {
    const std::vector<std::byte> logits = LogitsAfter(seed, sequence, ahead);
    step->logits.insert(step->logits.end(), logits.begin(), logits.end());
    step->scored.push_back(draws->Below(kVocabulary));
    ahead.push_back(step->scored.back());
  }
  if (may_mask && draws->OneIn(3)) step->allowed_bits = {static_cast<uint32_t>(draws->Next() & 0xffffffu) | 1u};
  step->answer = testing::Bits(reference.Score(v1::DTYPE_BF16, step->logits.data(), step->scored,
                                               step->allowed_bits.empty() ? nullptr : step->allowed_bits.data()));
}

// Turns on a sampler that keeps a state.
void KeepState(Draws* draws, v1::SamplingParameters* parameters) {
  if (draws->OneIn(3)) {
    parameters->mutable_adaptive_p()->set_target(0.1f);
    return;
  }
  parameters->mutable_mirostat()->set_version(draws->Between(1, 2));
  parameters->mutable_mirostat()->set_tau(3);
  parameters->mutable_mirostat()->set_eta(0.5f);
}

}  // namespace

client::SequenceOptions MakeOptions(uint64_t seed, uint32_t sequence) {
  Draws draws(seed, Choice::kSequence, {sequence});
  client::SequenceOptions options;
  options.request_id = absl::StrCat("request ", sequence);
  options.vocabulary_size = kVocabulary;
  if (draws.OneIn(2)) options.live_vocabulary_size = kVocabulary;
  options.choice_index = draws.Below(3);
  if (!draws.OneIn(3)) options.seed = draws.Next();
  options.parameters.set_temperature(1.5f);
  if (draws.OneIn(2)) options.parameters.mutable_raw_logprobs();
  if (draws.OneIn(2)) options.parameters.mutable_processed_logprobs()->set_top(2);
  if (draws.OneIn(3)) options.parameters.set_top_k(8);
  if (!draws.OneIn(5)) {  // other sequences keep no state
    if (draws.OneIn(2)) options.parameters.set_repetition_penalty(1.3f);
    if (draws.OneIn(2)) options.parameters.set_frequency_penalty(0.5f);
    options.parameters.set_presence_penalty(0.25f);
    if (draws.OneIn(3)) ScopePenalties(&draws, options.parameters.mutable_penalty_scope());
    if (draws.OneIn(2)) LookAtHistory(&draws, &options.parameters);
  }
  Draws samplers(seed, Choice::kSequence, {sequence, 3});
  if (samplers.OneIn(3)) KeepState(&samplers, &options.parameters);
  for (uint32_t i = draws.Below(12); i > 0; --i) options.prompt.push_back(draws.Below(kVocabulary));
  Draws filters(seed, Choice::kSequence, {sequence, 4});
  if (filters.OneIn(4)) options.parameters.mutable_min_k()->set_tau(2);
  if (filters.OneIn(4)) options.parameters.set_min_p(0.2f);
  if (filters.OneIn(3)) options.parameters.set_min_keep(filters.Between(1, 5));
  for (v1::Phase& phase : *options.parameters.mutable_phases()) {
    if (filters.OneIn(4)) phase.mutable_parameters()->set_min_keep(filters.Below(4));
  }
  return options;
}

uint32_t StepsOf(uint64_t seed, uint32_t sequence) {
  return Draws(seed, Choice::kSequence, {sequence, 1}).Between(6, 14);
}

std::optional<ForkPlan> PlanFork(uint64_t seed, uint32_t sequence) {
  Draws draws(seed, Choice::kSequence, {sequence, 2});
  if (!draws.OneIn(3)) return std::nullopt;
  return ForkPlan{draws.Between(1, 5), draws.OneIn(2) ? 100 : draws.Between(0, 100)};
}

Text::Text(uint64_t seed, uint32_t sequence, const client::SequenceOptions& options, const TextStart& start) {
  testing::ReferenceSequence reference(options.parameters, *options.seed, options.choice_index, kVocabulary,
                                       kVocabulary, options.prompt);
  reference.SetTokens(start.tokens, start.prompt_length);
  const bool has_logprobs = options.parameters.has_raw_logprobs() || options.parameters.has_processed_logprobs();
  steps_.resize(StepsOf(seed, sequence));
  TextBans bans;
  uint32_t rewinds = 0;
  const auto cut = [&](uint32_t position) { bans.erase(bans.upper_bound(position), bans.end()); };
  for (uint32_t i = 0; i < steps_.size(); ++i) {
    TextStep& step = steps_[i];
    step.tokens = reference.tokens();
    step.prompt_length = reference.prompt_length();
    Draws scores(seed, Choice::kStep, {sequence, i, 1});
    if (has_logprobs && scores.OneIn(8)) {
      ScoreStep(seed, sequence, !Bans(options.parameters), &scores, reference, &step);
      continue;
    }
    Draws draws(seed, Choice::kStep, {sequence, i});
    Rewrite(&draws, &step);
    std::vector<uint32_t> tokens = step.tokens;
    if (step.truncate_to) {
      tokens.resize(*step.truncate_to);
      cut(*step.truncate_to);
    }
    const uint32_t prompt_length = std::min(step.prompt_length, static_cast<uint32_t>(tokens.size()));
    tokens.insert(tokens.end(), step.append.begin(), step.append.end());
    reference.SetTokens(tokens, prompt_length);
    if (draws.OneIn(8)) {
      const uint32_t mask = static_cast<uint32_t>(draws.Next() & 0xffffffu) | (1u << draws.Below(24));
      if (Leaves(mask, options.parameters, tokens, prompt_length, bans)) step.allowed_bits = {mask};
    }
    // After a draft the history may ban every token that a mask allows.
    const bool may_draft = step.allowed_bits.empty() || !Bans(options.parameters);
    const uint32_t drafts = may_draft && draws.OneIn(3) ? draws.Between(1, 4) : 0;
    const bool is_tree = drafts > 0 && drafts <= 2;  // a tree has at most four drafts, for the smallest queues
    Draws forms(seed, Choice::kStep, {sequence, i, 2});
    if (step.allowed_bits.empty() && forms.OneIn(6)) {
      const std::vector<uint32_t> banned = {forms.Below(12), 12 + forms.Below(12)};
      step.banned.assign(1, banned);
    }
    const auto banned = bans.find(static_cast<uint32_t>(tokens.size()));
    const StepText text{seed, sequence, &reference, banned == bans.end() ? std::vector<uint32_t>() : banned->second,
                        rewinds};
    // An operator's mark allows no tested drafts.
    const bool may_test = drafts > 0 && !options.parameters.has_mirostat() && !options.parameters.has_adaptive_p() &&
                          !options.parameters.has_watermark();
    const std::vector<v1::DrawResult> drawn = may_test && forms.OneIn(2)
                                                  ? TestStep(text, drafts, forms.OneIn(2), &forms, &step)
                                                  : DrawStep(text, drafts, is_tree, &draws, &step);
    step.answer = AnswerOf(drawn);
    if (drawn.back().has_rewind()) step.rewound_to = drawn.back().rewind().position();
    step.verification.tokens = step.drafts;
    if (!step.allowed_bits.empty()) step.allowed_bits.resize(step.drafts.size() + 1, step.allowed_bits[0]);
    if (!step.banned.empty()) step.banned.resize(step.drafts.size() + 1, step.banned[0]);
    if (!step.rewound_to) continue;
    const uint32_t to = *step.rewound_to;
    tokens = reference.tokens();
    std::vector<uint32_t>& here = bans[to];
    // A forced token ignores its ban, and is not taken back again.
    if (std::ranges::find(here, tokens[to]) != here.end()) continue;
    here.push_back(tokens[to]);
    ++rewinds;
    cut(to);
    tokens.resize(to);
    reference.SetTokens(tokens, std::min(prompt_length, to));
  }
  tokens_ = reference.tokens();
}

}  // namespace sortition::simulation
