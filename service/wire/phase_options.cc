// Checks of phases, and the overlay of their parameters by field numbers.
#include "service/wire/phase_options.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/field_mask.pb.h"
#include "google/protobuf/util/field_mask_util.h"
#include "kernels/check.h"
#include "kernels/law/compact.h"
#include "service/checks.h"
#include "service/wire/parameter_table.h"

namespace sortition::service {
namespace {

using google::protobuf::FieldDescriptor;
using PhaseTokens = google::protobuf::RepeatedField<uint32_t>;

// Returns the fields that the phase sets.
std::vector<const FieldDescriptor*> FieldsOf(const v1::Phase& phase) {
  std::vector<const FieldDescriptor*> fields;
  phase.parameters().GetReflection()->ListFields(phase.parameters(), &fields);
  return fields;
}

Refusal Contradicts(std::string field, std::string why) {
  return {Reason::kContradiction, std::move(field), "", std::move(why)};
}

bool Contains(const PhaseTokens& tokens, const PhaseTokens& part) { return !std::ranges::search(tokens, part).empty(); }

std::optional<Refusal> CheckPhaseTokens(const PhaseTokens& tokens, const Bound& most, uint32_t live_vocabulary,
                                        const std::string& field) {
  if (auto refusal = CheckCount(static_cast<uint64_t>(tokens.size()), most, field)) return refusal;
  for (int i = 0; i < tokens.size(); ++i) {
    if (auto refusal = CheckToken(tokens[i], live_vocabulary, field, i)) return refusal;
  }
  return std::nullopt;
}

// Checks how the phase ends.
std::optional<Refusal> CheckEnd(const v1::Phase& phase, const Limits& limits, const std::string& field) {
  if (!phase.has_max_tokens()) {
    if (!phase.then().empty()) return Contradicts(field + ".then", "there is no max_tokens after which it is emitted");
    if (phase.end().empty()) return Contradicts(field + ".end", "the phase has neither an end nor max_tokens");
    return std::nullopt;
  }
  if (phase.then().empty() && phase.end().empty()) {
    return Contradicts(field + ".then", "the phase has max_tokens, and neither then nor an end to emit after them");
  }
  const auto then = static_cast<uint32_t>(phase.then().empty() ? phase.end().size() : phase.then().size());
  if (uint64_t{phase.max_tokens()} + then <= limits.max_history) return std::nullopt;
  return Refusal{Reason::kOutOfRange, field + ".max_tokens", Bounds(limits).max_history().Text(),
                 absl::StrCat(phase.max_tokens(), " tokens and the ", then, " to emit are more than a history has")};
}

// Checks that the phase sets only what a phase may replace.
std::optional<Refusal> CheckFields(const v1::Phase& phase, const std::string& field) {
  for (const FieldDescriptor* const set : FieldsOf(phase)) {
    const ParameterDescription* const option = FindParameter(set->name());
    SORTITION_CHECK(option != nullptr);
    if (!option->in_phases) {
      return Contradicts(absl::StrCat(field, ".", set->name()), "is the same in the whole text; no phase replaces it");
    }
  }
  return std::nullopt;
}

// Checks `begin` of phase `index` against those before it.
std::optional<Refusal> CheckBegin(const v1::SamplingParameters& p, int index, const std::string& field) {
  const PhaseTokens& begin = p.phases(index).begin();
  for (int other = 0; other < index; ++other) {
    const PhaseTokens& earlier = p.phases(other).begin();
    const std::string named = absl::StrCat("phases[", other, "].begin");
    if (begin.empty() && earlier.empty()) return Contradicts(field, absl::StrCat("is empty, as ", named, " is"));
    if (begin.empty() || earlier.empty()) continue;
    if (Contains(earlier, begin)) return Contradicts(field, absl::StrCat("is contained in ", named));
    if (Contains(begin, earlier)) return Contradicts(field, absl::StrCat("contains ", named));
  }
  return std::nullopt;
}

// Returns the number of tokens that the lists leave. O(tokens of the lists).
uint64_t CountAllowed(const PhaseOptions& options, uint32_t live_vocabulary) {
  const auto banned = [](const kernels::LogitEdit& edit) { return (edit.flags & kernels::LogitEdit::kBanned) != 0; };
  auto edit = options.listed_edits.begin();
  const auto is_banned = [&](uint32_t token) {  // for tokens in order
    while (edit != options.listed_edits.end() && edit->token < token) ++edit;
    return edit != options.listed_edits.end() && edit->token == token && banned(*edit);
  };
  if (options.has_allowed_tokens) {
    return options.allowed_tokens.size() -
           static_cast<uint64_t>(std::ranges::count_if(options.allowed_tokens, is_banned));
  }
  return live_vocabulary - static_cast<uint64_t>(std::ranges::count_if(options.listed_edits, banned));
}

// Returns the list that decides which tokens are left, within a phase that sets `own`.
absl::string_view ListOf(const v1::SamplingParameters& parameters,
                         const v1::SamplingParameters& own = v1::SamplingParameters::default_instance()) {
  if (!parameters.allowed_token_ids().empty() || !own.allowed_token_ids().empty()) return "allowed_token_ids";
  return parameters.banned_token_ids().empty() && own.banned_token_ids().empty() ? "bad_words" : "banned_token_ids";
}

// Returns the parameters without the fields that ParametersWithin leaves out, and copies none of these.
v1::SamplingParameters WithoutLists(const v1::SamplingParameters& p) {
  static constexpr absl::string_view kLists[] = {
      "logit_bias", "allowed_token_ids", "banned_token_ids", "bad_words", "banned_phrases", "dry", "stop_token_ids",
      "phases"};
  std::vector<const FieldDescriptor*> fields;
  p.GetReflection()->ListFields(p, &fields);
  google::protobuf::FieldMask rest;
  for (const FieldDescriptor* const field : fields) {
    if (std::ranges::find(kLists, field->name()) == std::end(kLists)) rest.add_paths(std::string(field->name()));
  }
  v1::SamplingParameters without;
  google::protobuf::util::FieldMaskUtil::MergeMessageTo(p, rest, {}, &without);
  return without;
}

// An option that leaves a single token, and the values that leave more.
struct NoChoice {
  absl::string_view field;
  std::string limit;
};

// A top_h up to this value keeps one token. Of the first 100 tokens, the entropy of the first two is at least a 99th of
// that of all: no later one has more than the second, unless the second's is at least a 14th of all.
constexpr float kTopHOfOne = 0.01f;

// `list`: the one that decides which tokens are left.
std::optional<NoChoice> FindNoChoice(const v1::SamplingParameters& p, absl::string_view list,
                                     const PhaseOptions& options, uint32_t live) {
  if (live == 1) return std::nullopt;
  if (options.temperature == 0) return NoChoice{"temperature", "> 0"};
  if (CountAllowed(options, live) == 1) return NoChoice{list, "at least 2 tokens"};
  if (p.min_keep() > 1) return std::nullopt;
  if (p.top_k() == 1) return NoChoice{"top_k", ">= 2"};
  if (p.min_p() == 1) return NoChoice{"min_p", "< 1"};
  if (p.epsilon_cutoff() > 0.5f) return NoChoice{"epsilon_cutoff", "<= 0.5"};
  if (p.top_h() > 0 && p.top_h() <= kTopHOfOne) return NoChoice{"top_h", absl::StrCat("> ", kTopHOfOne)};
  if (p.has_top_p() && double{p.top_p()} * live <= 1) return NoChoice{"top_p", absl::StrCat("> ", 1.0 / live)};
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> CheckPhases(const v1::SamplingParameters& p, const Limits& limits, absl::string_view path,
                                   uint32_t live_vocabulary) {
  const std::string phases = absl::StrCat(path, ".phases");
  if (auto refusal = CheckCount(static_cast<uint64_t>(p.phases_size()), Bounds::max_phases(), phases)) return refusal;
  const Bound listed = Bounds(limits).max_listed_tokens();
  uint64_t tokens = 0;
  for (int i = 0; i < p.phases_size(); ++i) {
    const v1::Phase& phase = p.phases(i);
    const std::string field = absl::StrCat(phases, "[", i, "]");
    const std::optional<Refusal> checks[] = {
        CheckPhaseTokens(phase.begin(), Bounds::max_tag_tokens(), live_vocabulary, field + ".begin"),
        CheckPhaseTokens(phase.end(), Bounds::max_tag_tokens(), live_vocabulary, field + ".end"),
        CheckPhaseTokens(phase.then(), listed, live_vocabulary, field + ".then"),
        CheckEnd(phase, limits, field),
        CheckBegin(p, i, field + ".begin"),
        CheckFields(phase, field + ".parameters"),
    };
    for (const std::optional<Refusal>& refusal : checks) {
      if (refusal) return refusal;
    }
    tokens += static_cast<uint64_t>(phase.begin_size() + phase.end_size() + phase.then_size());
  }
  return CheckCount(tokens, listed, phases);
}

std::vector<Phase> CompilePhases(const v1::SamplingParameters& p) {
  std::vector<Phase> phases;
  for (const v1::Phase& asked : p.phases()) {
    Phase& phase = phases.emplace_back();
    phase.begin.assign(asked.begin().begin(), asked.begin().end());
    phase.end.assign(asked.end().begin(), asked.end().end());
    if (asked.has_max_tokens()) {
      phase.max_tokens = asked.max_tokens();
      const PhaseTokens& then = asked.then().empty() ? asked.end() : asked.then();
      phase.then.assign(then.begin(), then.end());
    }
    const v1::SamplingParameters& within = asked.parameters();
    const float repetition = p.has_repetition_penalty() ? p.repetition_penalty() : 1;
    const float frequency = within.has_frequency_penalty() ? within.frequency_penalty() : p.frequency_penalty();
    const float presence = within.has_presence_penalty() ? within.presence_penalty() : p.presence_penalty();
    phase.options.repetition_penalty = within.has_repetition_penalty() ? within.repetition_penalty() : repetition;
    phase.options.frequency_penalty = WithoutNegativeZero(frequency);
    phase.options.presence_penalty = WithoutNegativeZero(presence);
  }
  return phases;
}

v1::SamplingParameters ParametersWithin(const v1::SamplingParameters& p, const v1::Phase& phase) {
  v1::SamplingParameters within = WithoutLists(p);
  for (const FieldDescriptor* const field : FieldsOf(phase)) within.GetReflection()->ClearField(&within, field);
  within.MergeFrom(WithoutLists(phase.parameters()));
  return within;
}

bool Replaces(const v1::Phase& phase, absl::string_view name) {
  return std::ranges::any_of(FieldsOf(phase), [&](const auto* field) { return field->name() == name; });
}

std::optional<Refusal> WhyNoToken(const v1::Phase& phase, const PhaseOptions& options, absl::string_view path,
                                  uint32_t live_vocabulary) {
  const v1::SamplingParameters& within = phase.parameters();
  if (within.allowed_token_ids().empty() && within.banned_token_ids().empty()) return std::nullopt;
  if (CountAllowed(options, live_vocabulary) > 0) return std::nullopt;
  const absl::string_view name = within.allowed_token_ids().empty() ? ".banned_token_ids" : ".allowed_token_ids";
  return Contradicts(absl::StrCat(path, name), "the phase masks every token");
}

std::optional<Refusal> WhyNoToken(const v1::SamplingParameters& parameters, const PhaseOptions& options,
                                  absl::string_view path, uint32_t live_vocabulary) {
  if (!parameters.phases().empty() || CountAllowed(options, live_vocabulary) > 0) return std::nullopt;
  return Contradicts(absl::StrCat(path, ".", ListOf(parameters)), "the sequence masks every token");
}

std::optional<Refusal> WhyNoMark(const v1::SamplingParameters& parameters, const SequenceSpec& spec,
                                 absl::string_view path) {
  constexpr absl::string_view kWhy = "leaves one token, on which the operator's policy can put no mark";
  if (const auto found = FindNoChoice(parameters, ListOf(parameters), spec, spec.live_vocabulary)) {
    return Refusal{Reason::kContradiction, absl::StrCat(path, ".", found->field), found->limit, std::string(kWhy)};
  }
  for (int i = 0; i < parameters.phases_size(); ++i) {
    const v1::Phase& phase = parameters.phases(i);
    const PhaseOptions& options = spec.history.phases[static_cast<size_t>(i)].options;
    const auto found = FindNoChoice(ParametersWithin(parameters, phase), ListOf(parameters, phase.parameters()),
                                    options, spec.live_vocabulary);
    if (!found) continue;
    const std::string place = Replaces(phase, found->field) ? absl::StrCat(".phases[", i, "].parameters.") : ".";
    return Refusal{Reason::kContradiction, absl::StrCat(path, place, found->field), found->limit,
                   absl::StrCat(kWhy, ", in phases[", i, "]")};
  }
  return std::nullopt;
}

std::optional<law::Temperature> SumTemperature(const PhaseOptions& options) {
  if (auto stated = law::StatedTemperature(options.parameters)) return stated;
  const auto is_dynamic = [](const kernels::Stage& stage) {
    return stage.kind == kernels::StageKind::kDynamicTemperature;
  };
  if (std::ranges::any_of(options.parameters.chain, is_dynamic)) return std::nullopt;
  return law::UnitTemperature();  // a chain has no stage for it
}

bool StatesOneSum(const SequenceSpec& spec) {
  const auto words = [](const PhaseOptions& options) {
    const auto temperature = SumTemperature(options);
    return temperature ? std::tuple(true, temperature->multiplier, temperature->exponent, temperature->window)
                       : std::tuple(false, 0u, 0, 0u);
  };
  return SumTemperature(spec) &&
         !spec.AnyOptions([&](const PhaseOptions& options) { return words(options) != words(spec); });
}

}  // namespace sortition::service
