// Checks and compiles the rows of a call of Sample.
#include "service/wire/sample_request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/law/version.h"
#include "service/arena_message.h"
#include "service/checks.h"
#include "service/text/judge_row.h"
#include "service/wire/compile_parameters.h"
#include "service/wire/open_request.h"
#include "service/wire/step_request.h"
#include "service/wire/strictness.h"
#include "service/wire/wire_scan.h"

namespace sortition::service {

std::variant<std::shared_ptr<const v1::SampleRequest>, Refusal> DecodeSample(absl::string_view bytes,
                                                                             const Limits& limits) {
  if (!HasAtMostBytesBeside(v1::SampleRequest::kLogitsFieldNumber, bytes, kMaxFieldBytes)) {
    return Refusal{Reason::kTooMany, "message", Bounds::max_field_bytes().Text(), "has more bytes beside the logits"};
  }
  const Bound most_rows = Bounds(limits).max_step_positions();
  WireScan scan = ScanSample(bytes, static_cast<uint32_t>(most_rows.value));
  if (auto refusal = WhyNotRead(scan, "rows", most_rows, "SampleRequest")) return *std::move(refusal);
  if (!scan.set_twice.empty()) return std::move(scan.set_twice.front().refusal);
  auto message = NewWithArena<v1::SampleRequest>();
  if (!message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return NoSampleRequest();
  return message;
}

Refusal NoSampleRequest() { return {Reason::kMalformedMessage, "", "", "not a sortition.v1.SampleRequest"}; }

std::string SampleRowField(int index) { return absl::StrCat("rows[", index, "]"); }

std::string ToSampleField(absl::string_view step_field) {
  absl::ConsumePrefix(&step_field, "step.");
  return std::string(step_field);
}

std::optional<Refusal> CheckSample(const v1::SampleRequest& request, const Limits& limits) {
  // Everything but the rows is known.
  v1::SampleRequest rest;
  rest.set_dtype(request.dtype());
  rest.GetReflection()->MutableUnknownFields(&rest)->MergeFrom(request.GetReflection()->GetUnknownFields(request));
  if (auto refusal = FindUnknown(rest, "")) return refusal;
  if (request.rows_size() == 0) return MissingField("rows");
  return CheckCount(static_cast<uint64_t>(request.rows_size()), Bounds(limits).max_step_positions(), "rows");
}

std::optional<Refusal> CheckSampleRow(const v1::SampleRow& row, int index) {
  const std::string path = SampleRowField(index);
  if (auto refusal = FindUnknown(row, path)) return refusal;
  const absl::string_view option = FindStatefulOption(row.parameters());
  if (option.empty()) return std::nullopt;
  return Refusal{Reason::kContradiction, absl::StrCat(path, ".parameters.", option), "",
                 "looks at the history or keeps a state; a call of Sample has none, a stream has"};
}

absl::string_view FindStatefulOption(const v1::SamplingParameters& p) {
  // A bad word of one token is a ban.
  const bool only_bans =
      std::ranges::all_of(p.bad_words(), [](const v1::TokenSequence& word) { return word.tokens_size() <= 1; });
  const auto has_entries = [&](std::string_view name, const auto& list) {
    if constexpr (requires { list.empty(); }) return !list.empty() && !(name == "bad_words" && only_bans);
    return false;
  };
  std::string_view by_value;  // the message whose first part follows
#define HAS_STATE(phase) std::string_view(#phase).ends_with("State")
#define IF_SET(name, value) \
  if (p.has_##name() && p.name() != (value)) return #name;
#define MESSAGE(name, on)                                    \
  by_value = std::string_view(on) == "ByValue" ? #name : ""; \
  if (std::string_view(on) == "ByPresence" && p.has_##name()) return #name;
#define PART(name, part) \
  if (std::exchange(by_value, "") == #name && p.name().part() != 0) return #name;
#define LAW_NUMBER(name, type, value, form, low, high, effect, phase, text) \
  if (HAS_STATE(phase)) IF_SET(name, value)
#define LAW_MESSAGE(name, on, phase, more, text) MESSAGE(name, HAS_STATE(phase) ? #on : "")
#define LAW_PART(name, part, member, type, value, form, low, high) PART(name, part)
#define HISTORY_NUMBER(name, value, form, low, high, text) IF_SET(name, value)
#define HISTORY_MESSAGE(name, on, more, text) MESSAGE(name, #on)
#define HISTORY_PART(name, part, type, value, form, low, high, effect) PART(name, part)
#define LIST_OPTION(name, phase, range, value, text) \
  if (HAS_STATE(phase) && has_entries(#name, p.name())) return #name;
#include "kernels/law/options.inc"
#undef HAS_STATE
#undef IF_SET
#undef MESSAGE
#undef PART
  return {};
}

std::variant<std::shared_ptr<const SequenceSpec>, Refusal> CompileSampleRow(const v1::SampleRequest& request, int index,
                                                                            const v1::SamplingParameters& parameters,
                                                                            const Limits& limits, Entropy* entropy) {
  const v1::SampleRow& row = request.rows(index);
  const std::string own = SampleRowField(index) + ".";
  auto spec = std::make_shared<SequenceSpec>();
  spec->law_version = request.has_law_version() ? request.law_version() : law::kLawVersion;
  spec->vocabulary = request.vocabulary_size();
  spec->live_vocabulary =
      request.has_live_vocabulary_size() ? request.live_vocabulary_size() : request.vocabulary_size();
  spec->choice_index = row.choice_index();
  if (auto refusal = CheckNumbers(*spec, limits, "", own)) return *std::move(refusal);
  if (auto refusal = CompileParameters(parameters, limits, own + "parameters", spec.get())) return *std::move(refusal);
  spec->seed = row.has_seed() ? row.seed() : entropy->Draw();
  return spec;
}

std::variant<kernels::DType, Refusal> CheckSampleLogits(const v1::SampleRequest& request) {
  const std::optional<kernels::DType> dtype = ToDType(request.dtype());
  if (!dtype) return MissingField("dtype");
  const uint64_t row = uint64_t{request.vocabulary_size()} * kernels::ElementBytes(*dtype);
  const uint64_t want = row * static_cast<uint64_t>(request.rows_size());
  if (auto refusal = CheckSize("logits", want, request.logits().size(), "rows, vocabulary_size and dtype")) {
    return *std::move(refusal);
  }
  return *dtype;
}

std::variant<RowPlan, Refusal> PlanSampleRow(const v1::SampleRow& row, int index, const Limits& limits) {
  const std::string path = SampleRowField(index);
  if (auto refusal = CheckRange(row.draw_salt(), 0, Bounds::max_draw_salt(), path + ".draw_salt")) {
    return *std::move(refusal);
  }
  RowPlan plan;
  plan.row = static_cast<uint32_t>(index);
  plan.intent.step_id = 1;  // for receipts
  plan.intent.position = row.position();
  plan.draw_salt = row.draw_salt();
  if (auto refusal = CheckTextEnd(plan, limits, path + ".position")) return *std::move(refusal);
  return plan;
}

}  // namespace sortition::service
