// Validates and compiles sampling parameters.
#include "service/wire/compile_parameters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/law/dry_terms.h"
#include "kernels/law/parameters.h"
#include "service/checks.h"
#include "service/text/cost.h"
#include "service/wire/compile_history_options.h"
#include "service/wire/law_options.h"
#include "service/wire/phase_options.h"

namespace sortition::service {
namespace {

using kernels::LogitEdit;

// Sorts by token. A list at its limit takes a tenth of the time that comparing its tokens takes.
template <typename T, typename TokenOf>
void SortByToken(TokenOf token_of, std::vector<T>* items) {
  constexpr size_t kFew = 1024;
  if (items->size() < kFew) return static_cast<void>(std::ranges::sort(*items, {}, token_of));
  constexpr uint32_t kDigitBits = 11;
  std::vector<T> from(items->size());
  for (uint32_t shift = 0; shift < 32; shift += kDigitBits) {
    const auto digit_of = [&](const T& item) { return (token_of(item) >> shift) % (1u << kDigitBits); };
    from.swap(*items);
    std::array<size_t, (1u << kDigitBits) + 1> places = {};
    for (const T& item : from) ++places[digit_of(item) + 1];
    std::partial_sum(places.begin(), places.end(), places.begin());
    for (const T& item : from) (*items)[places[digit_of(item)]++] = item;
  }
}

class Compiler {
 public:
  // `lists` has the lists, `parameters` all else; both are the sequence's, or a phase's.
  Compiler(const v1::SamplingParameters& parameters, const v1::SamplingParameters& lists, const Limits& limits,
           absl::string_view path, SequenceSpec* spec)
      : parameters_(parameters), lists_(lists), limits_(limits), path_(path), spec_(*spec) {}

  std::optional<Refusal> Run() {
    for (auto step :
         {&Compiler::Scalars, &Compiler::History, &Compiler::Logprobs, &Compiler::Lists, &Compiler::Phases}) {
      if (std::optional<Refusal> refusal = (this->*step)()) return refusal;
    }
    return WhyNoToken(parameters_, spec_, path_, spec_.live_vocabulary);
  }

 private:
  // Compiles the options that a phase may replace. Lists that it does not are those of `sequence`.
  std::optional<Refusal> RunWithin(const Compiler& sequence) {
    if (auto refusal = Scalars()) return refusal;
    if (auto refusal = Logprobs()) return refusal;
    return ListsWithin(sequence);
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

  std::optional<Refusal> Phases() {
    if (parameters_.phases().empty()) return std::nullopt;
    for (int i = 0; i < parameters_.phases_size(); ++i) {
      const v1::Phase& phase = parameters_.phases(i);
      const std::string path = absl::StrCat(Field("phases"), "[", i, "].parameters");
      const v1::SamplingParameters parameters = ParametersWithin(parameters_, phase);
      SequenceSpec within;
      within.live_vocabulary = spec_.live_vocabulary;
      if (auto refusal = Compiler(parameters, phase.parameters(), limits_, path, &within).RunWithin(*this)) {
        // A field of the sequence may contradict the phase.
        const absl::string_view name = absl::StripPrefix(refusal->field, path + ".");
        if (!Replaces(phase, name.substr(0, name.find_first_of(".[")))) {
          refusal->field = Field(name);
          absl::StrAppend(&refusal->message, ", in phases[", i, "]");
        }
        return refusal;
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
    if (auto refusal = Biases()) return refusal;
    if (auto refusal = TokenSet(lists_.banned_token_ids(), "banned_token_ids", &banned_)) return refusal;
    for (const v1::TokenSequence& word : lists_.bad_words()) {
      if (word.tokens_size() == 1) banned_words_.push_back(word.tokens(0));
    }
    SortByToken(std::identity(), &banned_words_);
    JoinEdits(biases_, banned_, banned_words_);
    return AllowedTokens();
  }

  // The lists of the sequence are compiled once, and joined with those of each phase.
  std::optional<Refusal> ListsWithin(const Compiler& sequence) {
    if (auto refusal = Biases()) return refusal;
    if (auto refusal = TokenSet(lists_.banned_token_ids(), "banned_token_ids", &banned_)) return refusal;
    const bool has_biases = !lists_.logit_bias().empty();
    const bool has_bans = !lists_.banned_token_ids().empty();
    if (has_biases || has_bans) {
      JoinEdits(has_biases ? biases_ : sequence.biases_, has_bans ? banned_ : sequence.banned_, sequence.banned_words_);
    } else {
      spec_.listed_edits = sequence.spec_.listed_edits;
    }
    if (!lists_.allowed_token_ids().empty()) return AllowedTokens();
    spec_.has_allowed_tokens = sequence.spec_.has_allowed_tokens;
    spec_.allowed_tokens = sequence.spec_.allowed_tokens;
    return std::nullopt;
  }

  std::optional<Refusal> Biases() {
    std::vector<LogitEdit>& edits = biases_;
    const std::string biases = Field("logit_bias");
    const Bound listed = Bounds(limits_).max_listed_tokens();
    if (auto refusal = CheckCount(lists_.logit_bias_size(), listed, biases)) return refusal;
    edits.reserve(static_cast<size_t>(lists_.logit_bias_size()));
    for (int i = 0; i < lists_.logit_bias_size(); ++i) {
      const v1::LogitBias& entry = lists_.logit_bias(i);
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
    SortByToken([](const LogitEdit& edit) { return edit.token; }, &edits);
    if (std::ranges::adjacent_find(edits, {}, &LogitEdit::token) != edits.end()) {
      absl::flat_hash_set<uint32_t> before;
      int twice = 0;
      while (before.insert(lists_.logit_bias(twice).token()).second) ++twice;
      return Refusal{Reason::kContradiction, FieldName(biases, twice, "token").Text(), "",
                     "the token has a bias already"};
    }
    std::erase_if(edits, [](const LogitEdit& edit) { return edit.bias == 0; });
    return std::nullopt;
  }

  std::optional<Refusal> AllowedTokens() {
    spec_.has_allowed_tokens = lists_.allowed_token_ids_size() > 0;
    return TokenSet(lists_.allowed_token_ids(), "allowed_token_ids", &spec_.allowed_tokens);
  }

  // Makes the edits of lists that are sorted, each by distinct tokens. A ban joins the bias of its token.
  void JoinEdits(const std::vector<LogitEdit>& biases, const std::vector<uint32_t>& banned,
                 const std::vector<uint32_t>& words) {
    std::vector<uint32_t> bans;
    bans.reserve(banned.size() + words.size());
    std::ranges::set_union(banned, words, std::back_inserter(bans));
    std::vector<LogitEdit>& edits = spec_.listed_edits;
    edits.reserve(biases.size() + bans.size());
    auto bias = biases.begin();
    for (const uint32_t token : bans) {
      for (; bias != biases.end() && bias->token < token; ++bias) edits.push_back(*bias);
      edits.push_back(bias != biases.end() && bias->token == token ? *bias++ : LogitEdit{.token = token});
      edits.back().flags |= LogitEdit::kBanned;
    }
    edits.insert(edits.end(), bias, biases.end());
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
    SortByToken(std::identity(), sorted);
    const auto twice = std::ranges::adjacent_find(*sorted);
    if (twice == sorted->end()) return std::nullopt;
    return Refusal{Reason::kContradiction, field, "", absl::StrCat("token id ", *twice, " is listed twice")};
  }

  const v1::SamplingParameters& parameters_;
  const v1::SamplingParameters& lists_;
  const Limits& limits_;
  const absl::string_view path_;
  SequenceSpec& spec_;
  // Sorted, each by distinct tokens; phases have those that they do not replace.
  std::vector<LogitEdit> biases_;
  std::vector<uint32_t> banned_;
  std::vector<uint32_t> banned_words_;  // bad words of one token
};

}  // namespace

uint64_t CompileCost(const v1::SamplingParameters& p) {
  const auto count = [](const auto&... lists) { return (static_cast<uint64_t>(lists.size()) + ...); };
  const uint64_t listed = count(p.logit_bias(), p.banned_token_ids(), p.bad_words(), p.allowed_token_ids());
  const auto is_string = [](const v1::TokenSequence& word) { return word.tokens_size() > 1; };
  const auto words = static_cast<uint64_t>(std::ranges::count_if(p.bad_words(), is_string));
  return price::kParameterByte * p.ByteSizeLong() + price::kListedWord * (count(p.bad_words()) - words) +
         price::kSortedString * (count(p.banned_phrases(), p.dry().sequence_breakers()) + words) +
         price::kCopiedEdit * listed * count(p.phases());
}

std::optional<Refusal> CheckCompileCost(uint64_t cost, absl::string_view path) {
  if (cost <= kMaxPieceWork) return std::nullopt;
  return Refusal{Reason::kTooMany, absl::StrCat(path, ".parameters"), Bounds::max_piece_work().Text(),
                 absl::StrCat("lists, with a copy for each phase, ask for ", cost, " ns of work")};
}

std::optional<Refusal> CompileParameters(const v1::SamplingParameters& parameters, const Limits& limits,
                                         absl::string_view path, SequenceSpec* spec) {
  return Compiler(parameters, parameters, limits, path, spec).Run();
}

}  // namespace sortition::service
