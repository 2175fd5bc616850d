// Rows to opens and step rows; names of fields back.
#include "service/request/sample_request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/law/version.h"
#include "service/request/checks.h"
#include "service/request/strictness.h"

namespace sortition::service {
namespace {

constexpr char kWorkerSession[] = "sample";

std::optional<Refusal> CheckSampleRow(const v1::SampleRow& row, int index) {
  const std::string path = absl::StrCat("rows[", index, "]");
  if (auto refusal = FindUnknown(row, path)) return refusal;
  const absl::string_view option = FindStatefulOption(row.parameters());
  if (option.empty()) return std::nullopt;
  return Refusal{Reason::kContradiction, absl::StrCat(path, ".parameters.", option), "",
                 "looks at the history or keeps a state; a call of Sample has none, a stream has"};
}

v1::StreamRequest OpenOf(const v1::SampleRequest& request, int index) {
  const v1::SampleRow& row = request.rows(index);
  v1::StreamRequest message;
  v1::OpenSequence& open = *message.mutable_open();
  open.set_request_id(absl::StrCat(index));
  open.set_epoch(1);
  open.set_law_version(request.has_law_version() ? request.law_version() : law::kLawVersion);
  *open.mutable_parameters() = row.parameters();
  if (row.has_seed()) open.set_seed(row.seed());
  if (row.has_choice_index()) open.set_choice_index(row.choice_index());
  open.set_vocabulary_size(request.vocabulary_size());
  if (request.has_live_vocabulary_size()) open.set_live_vocabulary_size(request.live_vocabulary_size());
  return message;
}

v1::StepRow StepRowOf(const v1::SampleRow& row, int index) {
  v1::StepRow step_row;
  step_row.set_request_id(absl::StrCat(index));
  step_row.set_step_id(1);
  step_row.set_position(row.position());
  if (row.has_draw_salt()) step_row.set_draw_salt(row.draw_salt());
  step_row.set_tensor_row(static_cast<uint32_t>(index));
  return step_row;
}

// Everything but the rows is known.
std::optional<Refusal> CheckBesideRows(const v1::SampleRequest& request) {
  v1::SampleRequest rest;
  rest.set_dtype(request.dtype());
  rest.GetReflection()->MutableUnknownFields(&rest)->MergeFrom(request.GetReflection()->GetUnknownFields(request));
  return FindUnknown(rest, "");
}

}  // namespace

absl::string_view FindStatefulOption(const v1::SamplingParameters& p) {
  const auto is_long = [](const v1::TokenSequence& word) { return word.tokens_size() > 1; };
  const struct {
    absl::string_view name;
    bool is_on;
  } options[] = {
      {"repetition_penalty", p.has_repetition_penalty() && p.repetition_penalty() != 1},
      {"frequency_penalty", p.frequency_penalty() != 0},
      {"presence_penalty", p.presence_penalty() != 0},
      {"mirostat", p.mirostat().version() != 0},
      {"adaptive_p", p.has_adaptive_p()},
      {"dry", p.dry().multiplier() != 0},
      {"no_repeat_ngram_size", p.no_repeat_ngram_size() != 0},
      {"min_tokens", p.min_tokens() != 0},
      {"bad_words", std::ranges::any_of(p.bad_words(), is_long)},
      {"phases", !p.phases().empty()},
      {"watermark", p.has_watermark()},
      {"repetition_stop", p.repetition_stop().repeats() != 0},
      {"banned_phrases", !p.banned_phrases().empty()},
  };
  for (const auto& option : options) {
    if (option.is_on) return option.name;
  }
  return {};
}

std::variant<SampleMessages, Refusal> TranslateSample(const v1::SampleRequest& request, absl::Duration timeout) {
  if (auto refusal = CheckBesideRows(request)) return *std::move(refusal);
  if (request.rows_size() == 0) return MissingField("rows");
  SampleMessages messages;
  messages.hello.mutable_hello()->set_worker_session(kWorkerSession);
  v1::Step& step = *messages.step.mutable_step();
  step.set_batch_id(1);
  if (timeout != absl::InfiniteDuration()) {
    const absl::Duration left = std::max(timeout, absl::Nanoseconds(1));
    step.mutable_timeout()->set_seconds(absl::ToInt64Seconds(left));
    step.mutable_timeout()->set_nanos(
        static_cast<int32_t>(absl::ToInt64Nanoseconds(left - absl::Seconds(absl::ToInt64Seconds(left)))));
  }
  v1::LogitsTensor& logits = *step.mutable_logits();
  logits.mutable_source()->mutable_inline_()->set_payload(0);
  logits.set_dtype(request.dtype());
  logits.set_vocabulary_size(request.vocabulary_size());
  logits.set_tensor_rows(static_cast<uint32_t>(request.rows_size()));
  for (int i = 0; i < request.rows_size(); ++i) {
    messages.refused.push_back(CheckSampleRow(request.rows(i), i));
    messages.opens.push_back(OpenOf(request, i));
    *step.add_rows() = StepRowOf(request.rows(i), i);
  }
  return messages;
}

std::string SampleField(absl::string_view field, int row) {
  absl::string_view rest = field;
  if (rest == "payloads[0]") return "logits";
  if (absl::ConsumePrefix(&rest, "step.logits.")) return std::string(rest);
  if (absl::StartsWith(rest, "step.rows[")) {
    const size_t end = rest.find(']');
    return absl::StrCat("rows[", row, "]", rest.substr(end + 1));
  }
  if (absl::ConsumePrefix(&rest, "step.")) return std::string(rest);
  if (absl::ConsumePrefix(&rest, "open.")) {
    for (const absl::string_view whole : {"law_version", "vocabulary_size", "live_vocabulary_size"}) {
      if (rest == whole) return std::string(rest);
    }
    return absl::StrCat("rows[", row, "].", rest);
  }
  return std::string(field);
}

}  // namespace sortition::service
