// A golden row with the reference's answer as JSON. LAW.md defines its fields.
#include <string>
#include <vector>

#include "kernels/law/chain.h"
#include "kernels/law/golden/golden_outputs.h"
#include "kernels/law/golden/golden_rows.h"
#include "kernels/law/golden/json_parts.h"
#include "kernels/law/logprob.h"
#include "kernels/law/race_place.h"
#include "kernels/law/reference.h"

namespace sortition::law {
namespace {

using kernels::DType;
using kernels::RowFault;
using kernels::RowTask;
using Form = kernels::DraftDistribution::Form;

std::string NameOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
  }
  __builtin_unreachable();
}

std::string NameOf(RowFault error) {
  switch (error) {
    case RowFault::kNone:
      return "none";
    case RowFault::kNaN:
      return "nan";
    case RowFault::kLogitTooLarge:
      return "logit_too_large";
    case RowFault::kNoLiveToken:
      return "no_live_token";
    case RowFault::kDraftNoProbability:
      return "draft_no_probability";
    case RowFault::kDraftSum:
      return "draft_sum";
    case RowFault::kDraftImpossible:
      return "draft_impossible";
    case RowFault::kTooManyEdits:
      break;
  }
  __builtin_unreachable();
}

std::string LogitsJson(const GoldenRow& row) {
  static constexpr const char* kNames[] = {"", "model", "flat", "ties", "holes"};
  if (row.shape == GoldenShape::kExplicit) return Object({Field("elements", Numbers(row.elements))});
  return Object({Field("shape", Quoted(kNames[int(row.shape)])), Field("seed", Number(row.seed))});
}

std::string OptionsJson(const SamplingParameters& options) {
  return Object({Field("temperature_bits", Number(FloatBits(options.temperature))),
                 Field("top_k", Number(options.top_k)), Field("top_p_bits", Number(FloatBits(options.top_p))),
                 Field("min_p_bits", Number(FloatBits(options.min_p))),
                 Field("repetition_penalty_bits", Number(FloatBits(options.repetition_penalty)))});
}

std::string ChainJson(const kernels::RowParameters& compiled) {
  std::vector<std::string> stages;
  for (const kernels::Stage& stage : compiled.chain) {
    const auto [a, b, c, d] = stage.operands;
    stages.push_back(Numbers({uint32_t(stage.kind), a, b, c, d}));
  }
  return List(stages);
}

// Requested outputs, except the numbers of first tokens.
std::string AsksJson(const kernels::RowParameters& compiled, bool wants_race_place) {
  std::vector<std::string> asks;
  if (compiled.raw_logprob) asks.push_back(Quoted("raw"));
  if (compiled.processed_logprob) asks.push_back(Quoted("processed"));
  if (compiled.entropy) asks.push_back(Quoted("entropy"));
  if (compiled.kept_count) asks.push_back(Quoted("kept_count"));
  if (compiled.kept_tokens) asks.push_back(Quoted("kept_tokens"));
  if (compiled.tempered_logprob) asks.push_back(Quoted("tempered"));
  if (compiled.kept_log_mass) asks.push_back(Quoted("kept_log_mass"));
  if (wants_race_place) asks.push_back(Quoted("race_place"));
  return List(asks);
}

std::string CompiledJson(const GoldenRow& row) {
  const kernels::RowParameters& compiled = row.compiled;
  std::vector<std::string> fields = {Field("greedy", Truth(compiled.greedy)),
                                     Field("multiplier", Number(compiled.multiplier)),
                                     Field("exponent", std::to_string(compiled.exponent)),
                                     Field("window", Number(compiled.window)),
                                     Field("min_p_distance", Number(compiled.min_p_distance)),
                                     Field("top_k", Number(compiled.top_k)),
                                     Field("top_p", Number(compiled.top_p)),
                                     Field("repetition", Number(compiled.repetition)),
                                     Field("inverse_repetition", Number(compiled.inverse_repetition)),
                                     Field("mask_nan", Truth(compiled.mask_nan)),
                                     Field("asks", AsksJson(compiled, row.wants_race_place)),
                                     Field("raw_top", Number(compiled.raw_top)),
                                     Field("processed_top", Number(compiled.processed_top))};
  if (compiled.tempered_logprob) fields.push_back(Field("tempered_top", Number(compiled.tempered_top)));
  if (!compiled.chain.empty()) fields.push_back(Field("chain", ChainJson(compiled)));
  return Object(fields);
}

std::string NoiseJson(const kernels::NoiseKey& noise) {
  return Object({Field("seed", Wide(noise.seed)), Field("position", Number(noise.position)),
                 Field("stream", Number(noise.stream))});
}

std::string EditsJson(const GoldenRow& row) {
  std::vector<std::string> items;
  for (const kernels::LogitEdit& edit : row.edits) {
    items.push_back(Numbers({edit.token, edit.flags, edit.bias, edit.penalty}));
  }
  return List(items);
}

std::string PairsJson(const std::vector<kernels::TokenBits>& tokens) {
  std::vector<std::string> items;
  for (const kernels::TokenBits& token : tokens) items.push_back(Numbers({token.token, token.bits}));
  return List(items);
}

std::string DraftJson(const KnownDraft& draft) {
  if (draft.form == Form::kCertain) return Object({Field("form", Quoted("certain"))});
  std::vector<std::string> fields = {Field("form", Quoted(draft.form == Form::kDense ? "dense" : "sparse"))};
  if (draft.form == Form::kDense) fields.push_back(Field("dtype", Quoted(NameOf(draft.dtype))));
  fields.push_back(Field("tokens", Numbers(draft.tokens)));
  fields.push_back(Field("elements", Numbers(draft.elements)));
  if (draft.form == Form::kDense) fields.push_back(Field("rest", Number(draft.rest)));
  return Object(fields);
}

std::string DistributionJson(const kernels::Distribution& distribution, double temperature) {
  const auto logprob = [&](uint32_t bits) { return FloatBits(Logprob(distribution, bits, temperature)); };
  std::vector<std::string> top;
  for (const kernels::TokenBits& token : distribution.top) {
    top.push_back(Numbers({token.token, token.bits, logprob(token.bits)}));
  }
  std::vector<std::string> fields = {Field("max_bits", Number(distribution.max_bits)),
                                     Field("weight_sum", Wide(distribution.weight_sum)),
                                     Field("chosen_bits", Number(distribution.chosen.bits)),
                                     Field("chosen_logprob_bits", Number(logprob(distribution.chosen.bits))),
                                     Field("rank", Number(distribution.rank)),
                                     Field("top", List(top))};
  std::vector<std::string> places;
  for (const kernels::TokenPlace& place : distribution.requested) {
    places.push_back(Numbers({place.bits, place.rank, logprob(place.bits)}));
  }
  if (!places.empty()) fields.push_back(Field("requested", List(places)));
  return Object(fields);
}

std::string AnswerJson(const GoldenRow& row) {
  const std::vector<std::byte> tensor = MakeTensor(row);
  const kernels::RowOutput answer = SampleRowReference(MakeRequest(row, tensor));
  if (answer.error != RowFault::kNone) {
    return Object({Field("error", Quoted(NameOf(answer.error))), Field("error_token", Number(answer.error_token))});
  }
  const kernels::RowParameters& asked = row.compiled;
  std::vector<std::string> fields = {Field("token", Number(answer.token))};
  if (row.task == RowTask::kVerify) fields.push_back(Field("accepted", Truth(answer.accepted)));
  if (asked.processed_logprob || asked.kept_count || asked.kept_tokens) {
    fields.push_back(Field("kept", Number(answer.kept)));
  }
  if (asked.raw_logprob) fields.push_back(Field("raw", DistributionJson(answer.raw, 1)));
  if (asked.processed_logprob) {
    fields.push_back(Field("processed", DistributionJson(answer.processed, ProcessedTemperature(asked, answer))));
  }
  if (asked.entropy) {
    const auto [weights, surplus] = answer.entropy;
    fields.push_back(
        Field("entropy", List({Wide(weights), Wide(surplus), Number(FloatBits(Entropy(answer.entropy)))})));
  }
  if (asked.kept_tokens) fields.push_back(Field("kept_tokens", PairsJson(answer.kept_tokens)));
  if (asked.tempered_logprob) {
    fields.push_back(Field("tempered", DistributionJson(answer.tempered, TemperedTemperature(asked, answer))));
  }
  if (asked.kept_log_mass) {
    const auto [kept, all] = answer.mass;
    fields.push_back(
        Field("kept_log_mass", List({Wide(kept), Wide(all), Number(FloatBits(KeptLogMass(answer.mass)))})));
  }
  if (row.wants_race_place) {
    const auto [rank, lag] = answer.race;
    fields.push_back(
        Field("race_place", List({Number(rank), WideSigned(lag), Number(FloatBits(MarginOf(answer.race)))})));
  }
  if (answer.sampler_state != 0) fields.push_back(Field("sampler_state", Wide(answer.sampler_state)));
  if (answer.temperature != 0) fields.push_back(Field("temperature", Number(answer.temperature)));
  return Object(fields);
}

}  // namespace

std::string GoldenRowJson(const GoldenRow& row) {
  std::vector<std::string> fields = {Field("name", Quoted(row.name)),
                                     Field("dtype", Quoted(NameOf(row.dtype))),
                                     Field("vocabulary", Number(row.vocabulary)),
                                     Field("logits", LogitsJson(row)),
                                     Field("options", OptionsJson(row.options)),
                                     Field("compiled", CompiledJson(row)),
                                     Field("noise", NoiseJson(row.noise))};
  if (!row.edits.empty()) fields.push_back(Field("patches", EditsJson(row)));
  if (row.has_allowed_tokens) fields.push_back(Field("allowed_tokens", Numbers(row.allowed_tokens)));
  // A long mask is given as a recipe, as the row's logits are (LAW.md).
  if (!row.allowed_bits.empty() && row.allowed_bits.size() <= 64) {
    fields.push_back(Field("allowed_bits", Numbers(row.allowed_bits)));
  } else if (!row.allowed_bits.empty()) {
    fields.push_back(Field("allowed_bits_shape", Quoted("mask")));
  }
  if (row.sampler_state != 0) fields.push_back(Field("sampler_state", Wide(row.sampler_state)));
  if (row.task == RowTask::kScore) fields.push_back(Field("score", Number(row.given)));
  if (row.task == RowTask::kVerify) {
    fields.push_back(Field("verify", Number(row.given)));
    fields.push_back(Field("draft", DraftJson(row.draft)));
  }
  if (!row.requested.empty()) fields.push_back(Field("requested", Numbers(row.requested)));
  fields.push_back(Field("answer", AnswerJson(row)));
  return Cat({"    {\n      ", Joined(fields, ",\n      "), "\n    }"});
}

}  // namespace sortition::law
