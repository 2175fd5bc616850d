// Steps all texts side by side, and writes their answers down.
#include <bit>
#include <variant>

#include "absl/strings/str_cat.h"
#include "client/archive/drawer.h"
#include "client/archive/texts_file.h"

namespace sortition::archive {
namespace {

uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }

// Takes the answer of one token: a draw's, or one of a verification's. Returns false if something is missing.
template <typename Answer>
bool Take(const Answer& from, bool has_answers, TextAnswers* to) {
  Token token;
  token.token = from.token();
  token.logprob = Bits(from.processed().logprob());
  if (has_answers) {
    if (from.raw().top_tokens_size() != kRawTop || !from.has_entropy() || !from.has_kept_count()) return false;
    token.answers = {Bits(from.raw().logprob()), from.raw().rank()};
    for (int i = 0; i < kRawTop; ++i) {
      token.answers.push_back(from.raw().top_tokens(i));
      token.answers.push_back(Bits(from.raw().top_logprobs(i)));
    }
    token.answers.push_back(Bits(from.entropy()));
    token.answers.push_back(from.kept_count());
  }
  to->tokens.push_back(std::move(token));
  return from.has_processed() && from.token() < Model::kVocabulary;
}

absl::Status TakeResult(const client::RowResult& result, bool has_answers, TextAnswers* to) {
  if (const auto* error = std::get_if<client::RowError>(&result)) return client::ToStatus(*error);
  bool is_whole = true;
  if (const auto* draw = std::get_if<v1::DrawResult>(&result)) {
    is_whole = Take(*draw, has_answers, to);
  } else if (const auto* verified = std::get_if<v1::VerifyResult>(&result)) {
    for (const v1::Position& position : verified->positions()) is_whole = is_whole && Take(position, has_answers, to);
  } else {
    is_whole = false;
  }
  return is_whole ? absl::OkStatus() : absl::InternalError("an answer lacks what was asked for");
}

// Steps the unfinished texts with rows of one type. `tokens` and `answers` are of the drawn texts. Returns false if
// there is none.
absl::StatusOr<bool> StepAll(const Settings& settings, v1::DType dtype, Drawer* drawer,
                             std::vector<std::vector<uint32_t>>* tokens, std::vector<TextAnswers>* answers) {
  std::vector<uint32_t> texts;
  std::vector<std::unique_ptr<NextStep>> steps;
  std::vector<client::Row> rows;
  for (uint32_t i = 0; i < settings.drawn().size(); ++i) {
    const uint32_t text = settings.drawn()[i];
    if (settings.Of(text).dtype != dtype || (*answers)[i].tokens.size() >= settings.tokens()) continue;
    texts.push_back(i);
    steps.push_back(std::make_unique<NextStep>(settings, text, (*tokens)[i]));
    rows.push_back(steps.back()->row());
  }
  if (texts.empty()) return false;
  auto results = drawer->Step(dtype, texts, rows);
  if (!results.ok()) return results.status();
  for (size_t i = 0; i < texts.size(); ++i) {
    TextAnswers& to = (*answers)[texts[i]];
    const size_t before = to.tokens.size();
    const uint32_t text = settings.drawn()[texts[i]];
    if (absl::Status status = TakeResult((*results)[i], settings.Of(text).has_answers(), &to); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("text ", text, ", token ", before, ": ", status.message()));
    }
    for (size_t at = before; at < to.tokens.size(); ++at) (*tokens)[texts[i]].push_back(to.tokens[at].token);
  }
  return true;
}

}  // namespace

absl::StatusOr<Drawn> DrawTexts(const Settings& settings, Drawer* drawer,
                                absl::FunctionRef<void(uint32_t step)> after_step) {
  std::vector<std::vector<uint32_t>> tokens;  // prompts and outputs
  for (const uint32_t text : settings.drawn()) {
    if (absl::Status status = drawer->Open(settings, text); !status.ok()) return status;
    tokens.push_back(settings.model().Prompt(text, settings.Of(text).prompt));
  }
  std::vector<TextAnswers> answers(tokens.size());
  for (uint32_t step = 0;; ++step) {
    bool has_more = false;
    for (const v1::DType dtype : {v1::DTYPE_F32, v1::DTYPE_BF16}) {
      const auto stepped = StepAll(settings, dtype, drawer, &tokens, &answers);
      if (!stepped.ok()) return stepped.status();
      has_more = has_more || *stepped;
    }
    if (!has_more) break;
    after_step(step);
  }
  for (size_t i = 0; i < answers.size(); ++i) HashRows(settings, settings.drawn()[i], tokens[i], &answers[i]);
  auto receipts = drawer->End();
  if (!receipts.ok()) return receipts.status();
  return Drawn{EncodeTexts(settings, answers), *std::move(receipts)};
}

}  // namespace sortition::archive
