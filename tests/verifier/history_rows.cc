// Random histories and compact rows.
#include "tests/verifier/history_rows.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "google/protobuf/util/json_util.h"
#include "kernels/check.h"
#include "kernels/law/compact.h"
#include "kernels/law/golden/golden_outputs.h"
#include "kernels/law/golden/json_parts.h"
#include "kernels/law/reference.h"
#include "sortition/v1/parameters.pb.h"
#include "tests/conformance/random_row.h"
#include "tests/support/plain_history.h"
#include "tests/support/plain_parameters.h"
#include "tests/verifier/row_text.h"

namespace sortition::testing {
namespace {

using kernels::LogitEdit;

// Makes one history. Values are multiples of 1/64, which every number format holds.
class RandomHistory {
 public:
  // `marks`: the row has a watermark that leaves out repeated contexts, and the filters that came later.
  RandomHistory(uint64_t seed, bool marks) : random_(seed), vocabulary_(4 + Below(37)) {
    const uint32_t length = Below(120);
    while (tokens_.size() < length) AddText();
    prompt_length_ = Below(uint32_t(tokens_.size()) + 1);
    AddPenalties();
    AddBans();
    AddSamplers();
    if (OneIn(4)) AddWatermark();
    AddPhases();
    if (marks) AddMark();
  }

  std::string Line(const std::string& name) {
    const PlainPlace place = PlainPlaceAfter(parameters_, tokens_, prompt_length_);
    const v1::SamplingParameters within = PlainWithin(parameters_, place.phase);
    kernels::RowParameters compiled = PlainRowParameters(within);
    std::vector<uint32_t> elements(vocabulary_);
    for (uint32_t& element : elements) element = law::FloatBits((float(Below(1025)) - 512) / 64);
    std::vector<LogitEdit> edits = PlainEdits(within, tokens_, prompt_length_);
    std::erase_if(edits, [](const LogitEdit& edit) { return edit.flags == 0 && edit.bias == 0 && edit.penalty == 0; });
    kernels::RowRequest request;
    request.logits = elements.data();
    request.live_vocabulary = vocabulary_;
    request.parameters = &compiled;
    request.edits = edits;
    std::vector<uint32_t> allowed(within.allowed_token_ids().begin(), within.allowed_token_ids().end());
    std::ranges::sort(allowed);
    if (place.forced) {
      allowed = {*place.forced};
      request.edits = {};
    }
    request.has_allowed_tokens = !allowed.empty();
    request.allowed_tokens = allowed;
    request.sampler_state = kernels::InitialSamplerState(compiled.chain);
    const uint32_t stream = Below(3) | Below(2) << 16;
    request.noise = {random_(), uint32_t(tokens_.size()), stream};
    request.noise = PlainNoise(parameters_, tokens_, request.noise);
    const std::string row = RowText(GoldenRowOf(request, name));
    google::protobuf::util::JsonPrintOptions options;
    options.preserve_proto_field_names = true;
    std::string parameters;
    SORTITION_CHECK(google::protobuf::util::MessageToJsonString(parameters_, &parameters, options).ok());
    const auto prompt = tokens_.begin() + prompt_length_;
    const std::string history =
        law::Object({law::Field("prompt", law::Numbers({tokens_.begin(), prompt})),
                     law::Field("output", law::Numbers({prompt, tokens_.end()})),
                     law::Field("stream", law::Number(stream)), law::Field("parameters", parameters)});
    return law::Object({law::Field("history", history), law::Field("row", row)});
  }

 private:
  uint32_t Below(uint32_t end) { return uint32_t(random_() % end); }
  bool OneIn(uint32_t n) { return Below(n) == 0; }
  float Between(int first, int last) { return float(first * 64 + int(Below(uint32_t(last - first) * 64 + 1))) / 64; }
  uint32_t Token() { return Below(OneIn(3) ? vocabulary_ : 4); }

  // Appends a token, or repeats a part of the text.
  void AddText() {
    if (tokens_.size() > 6 && OneIn(4)) {
      const uint32_t start = Below(uint32_t(tokens_.size()) - 4);
      const uint32_t end = std::min<uint32_t>(uint32_t(tokens_.size()), start + 1 + Below(20));
      for (uint32_t i = start; i < end; ++i) tokens_.push_back(tokens_[i]);
    } else {
      tokens_.push_back(Token());
    }
  }

  template <typename Strings>
  void AddStrings(Strings* strings, uint32_t longest) {
    for (uint32_t n = 1 + Below(3); n > 0; --n) {
      v1::TokenSequence string;
      for (uint32_t length = 1 + Below(longest); length > 0; --length) string.add_tokens(Below(4));
      const auto same = [&](const v1::TokenSequence& other) {
        return std::ranges::equal(other.tokens(), string.tokens());
      };
      if (std::ranges::none_of(*strings, same)) *strings->Add() = string;
    }
  }

  std::vector<uint32_t> Tokens(uint32_t most) {
    std::vector<uint32_t> tokens;
    for (uint32_t n = 1 + Below(most); n > 0; --n) tokens.push_back(Below(vocabulary_));
    std::ranges::sort(tokens);
    tokens.erase(std::ranges::unique(tokens).begin(), tokens.end());
    return tokens;
  }

  void AddPenalties() {
    if (OneIn(2)) parameters_.set_repetition_penalty(Between(1, 2));
    if (OneIn(2)) parameters_.set_frequency_penalty(Between(-2, 2));
    if (OneIn(2)) parameters_.set_presence_penalty(Between(-2, 2));
    if (OneIn(2)) {
      v1::PenaltyScope* scope = parameters_.mutable_penalty_scope();
      if (OneIn(2)) scope->set_window(Below(80));
      if (OneIn(2)) scope->set_repetition_counts_prompt(OneIn(2));
      if (OneIn(2)) scope->set_frequency_counts_prompt(OneIn(2));
      if (OneIn(2)) scope->set_ignored_prefix(Below(60));
    }
    if (OneIn(2)) return;
    v1::Dry* dry = parameters_.mutable_dry();
    dry->set_multiplier(OneIn(4) ? 100 : Between(1, 3));
    if (OneIn(2)) dry->set_base(OneIn(3) ? 1 : 1 + 1.0f / 64 + Between(0, 2));
    if (OneIn(2)) dry->set_allowed_length(1 + Below(4));
    if (OneIn(2)) dry->set_window(Below(100));
    if (OneIn(2)) AddStrings(dry->mutable_sequence_breakers(), 3);
  }

  void AddBans() {
    for (const uint32_t token : OneIn(3) ? Tokens(6) : std::vector<uint32_t>()) {
      v1::LogitBias* bias = parameters_.add_logit_bias();
      bias->set_token(token);
      bias->set_bias(Between(-9, 9));
    }
    if (OneIn(5)) {
      for (const uint32_t token : Tokens(20)) parameters_.add_allowed_token_ids(token);
    }
    if (OneIn(5)) {
      for (const uint32_t token : Tokens(3)) parameters_.add_banned_token_ids(token);
    }
    if (OneIn(3)) parameters_.set_no_repeat_ngram_size(1 + Below(4));
    if (OneIn(3)) AddStrings(parameters_.mutable_bad_words(), 3);
    if (OneIn(3)) {
      for (const uint32_t token : Tokens(3)) parameters_.add_stop_token_ids(token);
      parameters_.set_min_tokens(Below(120));
    }
  }

  // Adds a phase that begins with the output and one with short tags, either or both.
  void AddPhases() {
    if (OneIn(6)) {
      v1::Phase* phase = parameters_.add_phases();
      phase->set_max_tokens(Below(60));
      for (uint32_t n = 1 + Below(60); n > 0; --n) phase->add_then(Token());
      AddWithin(phase->mutable_parameters());
    }
    if (!OneIn(3)) return;
    v1::Phase* phase = parameters_.add_phases();
    for (uint32_t n = 1 + Below(2); n > 0; --n) phase->add_begin(Below(4));
    for (uint32_t n = 1 + Below(2); n > 0; --n) phase->add_end(Below(4));
    if (OneIn(2)) phase->set_max_tokens(Below(8));
    if (phase->has_max_tokens() && OneIn(2)) phase->add_then(Token());
    AddWithin(phase->mutable_parameters());
  }

  void AddWithin(v1::SamplingParameters* within) {
    if (OneIn(3)) within->set_temperature(0.5f + Between(0, 1));
    if (OneIn(4)) within->set_top_k(Below(10));
    if (OneIn(4)) within->set_frequency_penalty(Between(-2, 2));
    if (OneIn(4)) within->set_repetition_penalty(OneIn(2) ? 1 : 1 + Between(0, 1));
    if (OneIn(4)) within->add_banned_token_ids(Token());
    if (OneIn(6)) within->set_top_h(0.5f);
    if (!OneIn(5)) return;
    v1::LogitBias* bias = within->add_logit_bias();
    bias->set_token(Token());
    bias->set_bias(Between(-4, 4));
  }

  void AddSamplers() {
    parameters_.mutable_raw_logprobs()->set_top(Below(4));
    parameters_.mutable_processed_logprobs()->set_top(Below(4));
    parameters_.mutable_kept_set()->set_tokens(OneIn(2));
    if (OneIn(2)) parameters_.mutable_chain()->set_preset(static_cast<v1::Chain::Preset>(1 + Below(3)));
    if (OneIn(8)) {
      parameters_.set_temperature(0);
      return;
    }
    if (OneIn(2)) parameters_.set_temperature(0.5f + Between(0, 1));
    if (OneIn(2)) parameters_.set_top_k(1 + Below(30));
    if (OneIn(2)) parameters_.set_top_p(0.5f + float(1 + Below(32)) / 64);
    if (OneIn(4)) parameters_.set_min_p(float(Below(16)) / 64);
    if (OneIn(6)) parameters_.set_typical_p(0.5f);
    if (OneIn(6)) parameters_.mutable_xtc()->set_probability(0.5f);
    if (OneIn(6)) parameters_.mutable_dynamic_temperature()->set_range(0.25f);
    if (OneIn(6)) parameters_.mutable_quadratic_smoothing()->set_factor(0.25f);
    if (OneIn(6)) {
      parameters_.mutable_mirostat()->set_version(1 + Below(2));
    } else if (OneIn(6)) {
      parameters_.mutable_adaptive_p()->set_target(0.25f);
    }
  }

  void AddWatermark() {
    parameters_.mutable_watermark()->set_key(random_());
    if (OneIn(2)) parameters_.mutable_watermark()->set_context_width(1 + Below(64));
  }

  void AddMark() {
    v1::Watermark& mark = *parameters_.mutable_watermark();
    mark.set_key(random_());
    mark.set_context_width(1 + Below(6));
    mark.set_skip_repeated_contexts(!OneIn(8));
    if (OneIn(4)) parameters_.set_min_keep(Below(6));
    if (OneIn(4)) parameters_.mutable_min_k()->set_tau(Between(0, 9));
    for (v1::Phase& phase : *parameters_.mutable_phases()) {
      if (OneIn(2)) phase.mutable_parameters()->set_min_keep(Below(6));
      if (OneIn(4)) phase.mutable_parameters()->mutable_min_k();
    }
  }

  std::mt19937_64 random_;
  const uint32_t vocabulary_;
  std::vector<uint32_t> tokens_;
  uint32_t prompt_length_ = 0;
  v1::SamplingParameters parameters_;
};

std::string PairsOf(std::span<const kernels::TokenBits> tokens) {
  std::vector<std::string> items;
  for (const kernels::TokenBits& token : tokens) items.push_back(law::Numbers({token.token, token.bits}));
  return law::List(items);
}

std::string TextOf(const kernels::StatedRow& stated) {
  std::vector<std::string> fields = {law::Field("first", PairsOf(stated.first)),
                                     law::Field("is_whole", law::Truth(stated.is_whole)),
                                     law::Field("others", PairsOf(stated.others))};
  if (stated.unit_sum) fields.push_back(law::Field("unit_sum", law::Wide(*stated.unit_sum)));
  if (stated.sum) fields.push_back(law::Field("sum", law::Wide(*stated.sum)));
  return law::Object(fields);
}

}  // namespace

int PrintHistories(uint32_t rows, uint32_t seed, bool marks) {
  const std::string name = marks ? "marked " : "history ";
  for (uint32_t i = 0; i < rows; ++i) {
    const uint64_t row_seed = uint64_t{seed} << 32 | i;
    std::printf("%s\n", RandomHistory(row_seed, marks).Line(name + std::to_string(row_seed)).c_str());
  }
  return 0;
}

int PrintCompactRows(uint32_t rows, uint32_t seed) {
  for (uint32_t i = 0; i < rows; ++i) {
    const uint64_t row_seed = uint64_t{seed} << 32 | i;
    kernels::RandomRow random(row_seed, 8 + i % 50,
                              i % 2 == 0 ? kernels::OptionsKind::kChained : kernels::OptionsKind::kPlain);
    if (i % 3 == 0) random.AskForMore();
    const kernels::RowRequest& request = random.request();
    std::vector<uint32_t> named;
    for (const LogitEdit& edit : request.edits) named.push_back(edit.token);
    const auto stated = law::StateRowReference(request, 1 + i % 24, i % 5 == 0 ? std::span<uint32_t>() : named);
    if (!stated) continue;
    const auto answer = law::SampleCompactRowReference(request, stated->row());
    const auto* output = std::get_if<kernels::RowOutput>(&answer);
    if (output == nullptr) continue;
    SORTITION_CHECK(*output == law::SampleRowReference(request));
    const std::string row = RowText(GoldenRowOf(request, "compact " + random.description()));
    std::printf("%s\n", law::Object({law::Field("compact", TextOf(*stated)), law::Field("row", row)}).c_str());
  }
  return 0;
}

}  // namespace sortition::testing
