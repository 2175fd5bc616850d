// Validates and compiles sampling parameters.
#include "service/wire/compile_parameters.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/law/dry_terms.h"
#include "kernels/law/parameters.h"
#include "service/checks.h"
#include "service/wire/compile_history_options.h"
#include "service/wire/law_options.h"
#include "service/wire/phase_options.h"

namespace sortition::service {
namespace {

using kernels::LogitEdit;

class Compiler {
 public:
  Compiler(const v1::SamplingParameters& parameters, const Limits& limits, absl::string_view path, SequenceSpec* spec)
      : parameters_(parameters), limits_(limits), path_(path), spec_(*spec) {}

  std::optional<Refusal> Run() {
    for (auto step :
         {&Compiler::Scalars, &Compiler::History, &Compiler::Logprobs, &Compiler::Lists, &Compiler::Phases}) {
      if (std::optional<Refusal> refusal = (this->*step)()) return refusal;
    }
    return WhyNoToken(parameters_, spec_, path_, spec_.live_vocabulary);
  }

 private:
  // Compiles the options that a phase may replace.
  std::optional<Refusal> RunWithin(bool has_lists) {
    if (auto refusal = Scalars()) return refusal;
    if (auto refusal = Logprobs()) return refusal;
    return has_lists ? Lists() : std::nullopt;
  }

  std::string Field(absl::string_view name) const { return absl::StrCat(path_, ".", name); }

  std::optional<Refusal> Scalars() {
    law::SamplingParameters law;
    if (auto refusal = TakeLawOptions(parameters_, spec_.live_vocabulary, path_, &law)) return refusal;
    law::Compile(law, &spec_.parameters);
    spec_.repetition_penalty = law.repetition_penalty;
    spec_.frequency_penalty = law.frequency_penalty;
    spec_.presence_penalty = law.presence_penalty;
    spec_.temperature = law.temperature;
    spec_.top_p = law.top_p;
    spec_.top_k = law.top_k;
    spec_.parameters.mask_nan = parameters_.nan_policy() == v1::NAN_POLICY_MASK;
    return std::nullopt;
  }

  std::optional<Refusal> History() {
    if (auto refusal = CheckHistoryOptions(parameters_, limits_, path_, spec_.live_vocabulary)) return refusal;
    spec_.history = CompileHistoryOptions(parameters_);
    if (DryOptions& dry = spec_.history.dry; dry.on()) dry.terms = law::DryTerms(dry.multiplier, dry.base);
    return TokenSet(parameters_.stop_token_ids(), "stop_token_ids", &spec_.stop_tokens);
  }

  // A phase without lists has the sequence's, which are compiled once.
  std::optional<Refusal> Phases() {
    if (parameters_.phases().empty()) return std::nullopt;
    // Leaves out lists that phases neither replace nor look at: the rest is copied for each phase.
    v1::SamplingParameters with_lists = parameters_;
    with_lists.clear_phases();
    with_lists.clear_dry();
    with_lists.clear_banned_phrases();
    with_lists.clear_stop_token_ids();
    v1::SamplingParameters without_lists = with_lists;
    without_lists.clear_logit_bias();
    without_lists.clear_allowed_token_ids();
    without_lists.clear_banned_token_ids();
    without_lists.clear_bad_words();
    for (int i = 0; i < parameters_.phases_size(); ++i) {
      const v1::Phase& phase = parameters_.phases(i);
      const std::string path = absl::StrCat(Field("phases"), "[", i, "].parameters");
      const v1::SamplingParameters& own = phase.parameters();
      const bool has_lists = own.logit_bias_size() + own.allowed_token_ids_size() + own.banned_token_ids_size() > 0;
      const v1::SamplingParameters parameters = ParametersWithin(has_lists ? with_lists : without_lists, phase);
      SequenceSpec within;
      within.live_vocabulary = spec_.live_vocabulary;
      if (auto refusal = Compiler(parameters, limits_, path, &within).RunWithin(has_lists)) {
        // A field of the sequence may contradict the phase.
        const absl::string_view name = absl::StripPrefix(refusal->field, path + ".");
        if (!Replaces(phase, name.substr(0, name.find_first_of(".[")))) {
          refusal->field = Field(name);
          absl::StrAppend(&refusal->message, ", in phases[", i, "]");
        }
        return refusal;
      }
      if (!has_lists) {
        within.listed_edits = spec_.listed_edits;
        within.has_allowed_tokens = spec_.has_allowed_tokens;
        within.allowed_tokens = spec_.allowed_tokens;
      }
      if (auto refusal = WhyNoToken(phase, within, path, spec_.live_vocabulary)) return refusal;
      spec_.history.phases[static_cast<size_t>(i)].options = static_cast<PhaseOptions&&>(within);
    }
    return std::nullopt;
  }

  std::optional<Refusal> Logprobs() {
    const v1::SamplingParameters& p = parameters_;
    if (p.has_raw_logprobs()) {
      if (auto refusal = CheckTop(p.raw_logprobs(), "raw_logprobs.top")) return refusal;
      spec_.parameters.raw_logprob = true;
      spec_.parameters.raw_top = p.raw_logprobs().top();
    }
    if (p.has_processed_logprobs()) {
      if (auto refusal = CheckTop(p.processed_logprobs(), "processed_logprobs.top")) return refusal;
      spec_.parameters.processed_logprob = true;
      spec_.parameters.processed_top = p.processed_logprobs().top();
    }
    if (p.has_tempered_logprobs()) {
      if (auto refusal = CheckTop(p.tempered_logprobs(), "tempered_logprobs.top")) return refusal;
      spec_.parameters.tempered_logprob = true;
      spec_.parameters.tempered_top = p.tempered_logprobs().top();
    }
    spec_.parameters.kept_log_mass = p.kept_log_mass();
    spec_.parameters.entropy = p.entropy();
    spec_.parameters.kept_count = p.kept_set().count();
    spec_.parameters.kept_tokens = p.kept_set().tokens();
    return LogprobTokens();
  }

  // The order of the list is kept: results have it.
  std::optional<Refusal> LogprobTokens() {
    const auto& tokens = parameters_.logprob_token_ids();
    if (tokens.empty()) return std::nullopt;
    const std::string field = Field("logprob_token_ids");
    const Bound most = Bounds::max_top_logprobs();
    if (auto refusal = CheckCount(static_cast<uint64_t>(tokens.size()), most, field)) return refusal;
    std::vector<uint32_t> sorted;
    if (auto refusal = TokenSet(tokens, "logprob_token_ids", &sorted)) return refusal;
    if (!spec_.has_logprobs()) return NoLogprobs(field);
    spec_.logprob_token_ids.assign(tokens.begin(), tokens.end());
    return std::nullopt;
  }

  std::optional<Refusal> CheckTop(const v1::LogprobOptions& options, absl::string_view name) const {
    return CheckRange(options.top(), 0, Bounds::max_top_logprobs(), Field(name));
  }

  std::optional<Refusal> Lists() {
    std::vector<LogitEdit>& edits = spec_.listed_edits;
    const std::string biases = Field("logit_bias");
    const Bound listed = Bounds(limits_).max_listed_tokens();
    if (auto refusal = CheckCount(parameters_.logit_bias_size(), listed, biases)) return refusal;
    edits.reserve(static_cast<size_t>(parameters_.logit_bias_size() + parameters_.banned_token_ids_size()));
    for (int i = 0; i < parameters_.logit_bias_size(); ++i) {
      const v1::LogitBias& entry = parameters_.logit_bias(i);
      if (entry.token() >= spec_.live_vocabulary) {
        return Refusal{Reason::kOutOfRange, FieldName(biases, i, "token").Text(),
                       absl::StrCat("< ", spec_.live_vocabulary),
                       absl::StrCat("token id ", entry.token(), " is not in the live vocabulary")};
      }
      if (!(std::abs(entry.bias()) < law::kLogitLimit)) {
        return Refusal{Reason::kOutOfRange, FieldName(biases, i, "bias").Text(),
                       absl::StrCat("|bias| < ", law::kLogitLimit), absl::StrCat(entry.bias(), " is out of range")};
      }
      edits.push_back({.token = entry.token(), .bias = law::CanonicalBits(entry.bias())});
    }
    std::ranges::sort(edits, {}, &LogitEdit::token);
    if (std::ranges::adjacent_find(edits, {}, &LogitEdit::token) != edits.end()) {
      absl::flat_hash_set<uint32_t> before;
      int twice = 0;
      while (before.insert(parameters_.logit_bias(twice).token()).second) ++twice;
      return Refusal{Reason::kContradiction, FieldName(biases, twice, "token").Text(), "",
                     "the token has a bias already"};
    }
    std::erase_if(edits, [](const LogitEdit& edit) { return edit.bias == 0; });

    std::vector<uint32_t> banned;
    if (auto refusal = TokenSet(parameters_.banned_token_ids(), "banned_token_ids", &banned)) return refusal;
    for (const v1::TokenSequence& word : parameters_.bad_words()) {
      if (word.tokens_size() == 1) banned.push_back(word.tokens(0));
    }
    AddBans(banned, &edits);

    spec_.has_allowed_tokens = parameters_.allowed_token_ids_size() > 0;
    return TokenSet(parameters_.allowed_token_ids(), "allowed_token_ids", &spec_.allowed_tokens);
  }

  // Adds bans to edits that are sorted by distinct tokens, and keeps them so.
  static void AddBans(const std::vector<uint32_t>& banned, std::vector<LogitEdit>* edits) {
    for (const uint32_t token : banned) edits->push_back({.token = token, .flags = LogitEdit::kBanned});
    std::ranges::sort(*edits, {}, &LogitEdit::token);
    // A ban joins the bias of its token.
    size_t kept = 0;
    for (const LogitEdit& edit : *edits) {
      if (kept == 0 || (*edits)[kept - 1].token != edit.token) {
        (*edits)[kept++] = edit;
      } else {
        (*edits)[kept - 1].bias |= edit.bias;
        (*edits)[kept - 1].flags |= edit.flags;
      }
    }
    edits->resize(kept);
  }

  // Takes a list of distinct live tokens, and sorts it.
  template <typename Repeated>
  std::optional<Refusal> TokenSet(const Repeated& tokens, absl::string_view name, std::vector<uint32_t>* sorted) {
    const std::string field = Field(name);
    if (auto refusal = CheckCount(tokens.size(), Bounds(limits_).max_listed_tokens(), field)) return refusal;
    for (int i = 0; i < tokens.size(); ++i) {
      if (auto refusal = CheckToken(tokens[i], spec_.live_vocabulary, field, i)) return refusal;
    }
    sorted->assign(tokens.begin(), tokens.end());
    std::ranges::sort(*sorted);
    const auto twice = std::ranges::adjacent_find(*sorted);
    if (twice == sorted->end()) return std::nullopt;
    return Refusal{Reason::kContradiction, field, "", absl::StrCat("token id ", *twice, " is listed twice")};
  }

  const v1::SamplingParameters& parameters_;
  const Limits& limits_;
  const absl::string_view path_;
  SequenceSpec& spec_;
};

}  // namespace

std::optional<Refusal> CompileParameters(const v1::SamplingParameters& parameters, const Limits& limits,
                                         absl::string_view path, SequenceSpec* spec) {
  return Compiler(parameters, limits, path, spec).Run();
}

}  // namespace sortition::service
