// Counts tokens for penalties, and runs the law's reference over the row.
#include "tests/client/reference_sequence.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/law/chain.h"
#include "kernels/law/logprob.h"
#include "kernels/law/reference.h"
#include "kernels/row.h"
#include "tests/support/plain_history.h"
#include "tests/support/plain_parameters.h"

namespace sortition::testing {
namespace {

kernels::DType ToKernel(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_F32:
      return kernels::DType::kF32;
    case v1::DTYPE_F16:
      return kernels::DType::kF16;
    default:
      SORTITION_CHECK(dtype == v1::DTYPE_BF16);
      return kernels::DType::kBF16;
  }
}

void FillLogprobs(const kernels::Distribution& distribution, double temperature, v1::Logprobs* logprobs) {
  logprobs->set_logprob(law::Logprob(distribution, distribution.chosen.bits, temperature));
  logprobs->set_rank(distribution.rank);
  for (const kernels::TokenBits& top : distribution.top) {
    logprobs->add_top_tokens(top.token);
    logprobs->add_top_logprobs(law::Logprob(distribution, top.bits, temperature));
  }
}

std::string Bits(const v1::Logprobs& logprobs) {
  std::string text = absl::StrCat(absl::Hex(std::bit_cast<uint32_t>(logprobs.logprob())), " rank ", logprobs.rank());
  for (int i = 0; i < logprobs.top_tokens_size(); ++i) {
    absl::StrAppend(&text, " ", logprobs.top_tokens(i), ":",
                    absl::Hex(std::bit_cast<uint32_t>(logprobs.top_logprobs(i))));
  }
  return text;
}

}  // namespace

ReferenceSequence::ReferenceSequence(v1::SamplingParameters parameters, uint64_t seed, uint32_t choice_index,
                                     uint32_t vocabulary, uint32_t live_vocabulary, std::vector<uint32_t> prompt)
    : parameters_(std::move(parameters)),
      seed_(seed),
      choice_index_(choice_index),
      vocabulary_(vocabulary),
      live_vocabulary_(live_vocabulary),
      tokens_(std::move(prompt)),
      prompt_length_(static_cast<uint32_t>(tokens_.size())) {}

kernels::RowOutput ReferenceSequence::Answer(v1::DType dtype, const void* logits, uint32_t draw_salt,
                                             const uint32_t* allowed_bits, std::optional<uint32_t> given,
                                             std::span<const uint32_t> banned) const {
  const PlainPlace place = PlainPlaceAfter(parameters_, tokens_, prompt_length_);
  v1::SamplingParameters within = PlainWithin(parameters_, place.phase);
  within.mutable_banned_token_ids()->Add(banned.begin(), banned.end());
  const kernels::RowParameters row = PlainRowParameters(within);
  const std::vector<kernels::LogitEdit> edits = PlainEdits(within, tokens_, prompt_length_);

  kernels::RowRequest request;
  request.logits = logits;
  request.dtype = ToKernel(dtype);
  request.live_vocabulary = live_vocabulary_;
  request.parameters = &row;
  request.noise = {seed_, static_cast<uint32_t>(tokens_.size()), choice_index_ | draw_salt << 16};
  if (place.forced && !given) {
    request.has_allowed_tokens = true;
    request.allowed_tokens = {&*place.forced, 1};
  } else {
    request.edits = edits;
    request.allowed_bits = allowed_bits;
  }
  request.sampler_state = sampler_state_.value_or(kernels::InitialSamplerState(row.chain));
  if (given) {
    request.task = kernels::RowTask::kScore;
    request.given = *given;
  }
  kernels::RowOutput answer = law::SampleRowReference(request);
  SORTITION_CHECK(answer.error == kernels::RowError::kNone);
  return answer;
}

v1::DrawResult ReferenceSequence::Step(v1::DType dtype, const void* logits, uint32_t draw_salt,
                                       const uint32_t* allowed_bits, std::span<const uint32_t> banned) {
  const uint32_t phase = PlainPlaceAfter(parameters_, tokens_, prompt_length_).phase;
  const kernels::RowParameters row = PlainRowParameters(PlainWithin(parameters_, phase));
  const kernels::RowOutput answer = Answer(dtype, logits, draw_salt, allowed_bits, std::nullopt, banned);
  v1::DrawResult draw;
  draw.set_phase(phase);
  draw.set_token(answer.token);
  const auto& stops = parameters_.stop_token_ids();
  if (std::find(stops.begin(), stops.end(), answer.token) != stops.end()) {
    draw.set_finish_reason(v1::FINISH_REASON_STOP_TOKEN);
  }
  if (row.raw_logprob) FillLogprobs(answer.raw, 1, draw.mutable_raw());
  if (row.processed_logprob) {
    FillLogprobs(answer.processed, law::ProcessedTemperature(row, answer), draw.mutable_processed());
  }
  tokens_.push_back(answer.token);
  sampler_state_ = answer.sampler_state;
  if (draw.finish_reason() == 0 && PlainRepeats(parameters_, tokens_, prompt_length_)) {
    draw.set_finish_reason(v1::FINISH_REASON_REPETITION);
  }
  if (const auto from = PlainPhraseFrom(parameters_, tokens_, prompt_length_)) {
    draw.mutable_rewind()->set_position(*from);
    draw.mutable_rewind()->mutable_tokens()->Assign(tokens_.begin() + *from, tokens_.end());
  }
  return draw;
}

v1::ScoreResult ReferenceSequence::Score(v1::DType dtype, const std::byte* logits, std::span<const uint32_t> given,
                                         const uint32_t* allowed_bits) const {
  ReferenceSequence then = *this;
  v1::ScoreResult score;
  for (const uint32_t token : given) {
    const kernels::RowOutput answer = then.Answer(dtype, logits, 0, allowed_bits, token);
    const uint32_t phase = PlainPlaceAfter(parameters_, then.tokens_, prompt_length_).phase;
    const kernels::RowParameters row = PlainRowParameters(PlainWithin(parameters_, phase));
    v1::Position& position = *score.add_positions();
    position.set_phase(phase);
    if (row.raw_logprob) FillLogprobs(answer.raw, 1, position.mutable_raw());
    if (row.processed_logprob) {
      FillLogprobs(answer.processed, law::ProcessedTemperature(row, answer), position.mutable_processed());
    }
    then.tokens_.push_back(token);
    then.sampler_state_ = answer.sampler_state;
    logits += size_t{vocabulary_} * kernels::ElementBytes(ToKernel(dtype));
  }
  return score;
}

void ReferenceSequence::SetTokens(std::vector<uint32_t> tokens, uint32_t prompt_length) {
  tokens_ = std::move(tokens);
  prompt_length_ = prompt_length;
}

std::string Bits(const v1::DrawResult& draw) {
  std::string text = absl::StrCat("token ", draw.token());
  if (draw.has_raw()) absl::StrAppend(&text, " raw ", Bits(draw.raw()));
  if (draw.has_processed()) absl::StrAppend(&text, " processed ", Bits(draw.processed()));
  return text;
}

std::string Bits(const v1::ScoreResult& score) {
  std::string text = "score";
  for (const v1::Position& position : score.positions()) {
    if (position.has_raw()) absl::StrAppend(&text, " raw ", Bits(position.raw()));
    if (position.has_processed()) absl::StrAppend(&text, " processed ", Bits(position.processed()));
  }
  return text;
}

template <typename Result>
std::string EndBits(const Result& result) {
  std::string text;
  if (result.finish_reason() != 0) absl::StrAppend(&text, " end ", result.finish_reason());
  if (result.has_rewind()) {
    absl::StrAppend(&text, " rewind to ", result.rewind().position(), ":");
    for (const uint32_t token : result.rewind().tokens()) absl::StrAppend(&text, " ", token);
  }
  return text;
}
template std::string EndBits(const v1::DrawResult&);
template std::string EndBits(const v1::VerifyResult&);

std::optional<std::string> Bits(const client::RowResult& result) {
  if (const auto* score = std::get_if<v1::ScoreResult>(&result)) return Bits(*score);
  if (const auto* draw = std::get_if<v1::DrawResult>(&result)) return Bits(*draw) + EndBits(*draw);
  const auto* verify = std::get_if<v1::VerifyResult>(&result);
  if (verify == nullptr) return std::nullopt;
  std::string text;
  for (const v1::Position& position : verify->positions()) {
    v1::DrawResult draw;
    draw.set_token(position.token());
    if (position.has_raw()) *draw.mutable_raw() = position.raw();
    if (position.has_processed()) *draw.mutable_processed() = position.processed();
    text += Bits(draw);
  }
  return text + EndBits(*verify);
}

}  // namespace sortition::testing
