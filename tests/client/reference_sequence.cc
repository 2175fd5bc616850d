// Counts tokens for penalties, and runs the law's reference over the row.
#include "tests/client/reference_sequence.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/law/block.h"
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

kernels::NoiseKey ReferenceSequence::Noise(uint32_t draw_salt) const {
  return PlainNoise(parameters_, tokens_,
                    {seed_, static_cast<uint32_t>(tokens_.size()), choice_index_ | draw_salt << 16});
}

kernels::RowOutput ReferenceSequence::Answer(const Ask& ask) const {
  const PlainPlace place = PlainPlaceAfter(parameters_, tokens_, prompt_length_);
  v1::SamplingParameters within = PlainWithin(parameters_, place.phase);
  within.mutable_banned_token_ids()->Add(ask.banned.begin(), ask.banned.end());
  const kernels::RowParameters row = PlainRowParameters(within);
  const std::vector<kernels::LogitEdit> edits = PlainEdits(within, tokens_, prompt_length_);

  kernels::RowRequest request;
  request.logits = ask.logits;
  request.dtype = ToKernel(ask.dtype);
  request.live_vocabulary = live_vocabulary_;
  request.parameters = &row;
  request.noise = Noise(ask.draw_salt);
  if (place.forced) {
    request.has_allowed_tokens = true;
    request.allowed_tokens = {&*place.forced, 1};
  } else {
    request.edits = edits;
    request.allowed_bits = ask.allowed_bits;
  }
  request.sampler_state = sampler_state_.value_or(kernels::InitialSamplerState(row.chain));
  request.task = ask.task;
  request.given = ask.given;
  request.survival = ask.survival;
  if (!ask.draft.empty()) {
    request.draft.form = kernels::DraftDistribution::Form::kDense;
    request.draft.dense = ask.draft.data();
  }
  kernels::RowOutput answer = law::SampleRowReference(request);
  SORTITION_CHECK(answer.error == kernels::RowFault::kNone);
  return answer;
}

v1::DrawResult ReferenceSequence::Take(const kernels::RowOutput& output) {
  const uint32_t phase = PlainPlaceAfter(parameters_, tokens_, prompt_length_).phase;
  const kernels::RowParameters row = PlainRowParameters(PlainWithin(parameters_, phase));
  v1::DrawResult draw;
  draw.set_phase(phase);
  draw.set_token(output.token);
  const auto& stops = parameters_.stop_token_ids();
  if (std::find(stops.begin(), stops.end(), output.token) != stops.end()) {
    draw.set_finish_reason(v1::FINISH_REASON_STOP_TOKEN);
  }
  if (row.raw_logprob) FillLogprobs(output.raw, 1, draw.mutable_raw());
  if (row.processed_logprob) {
    FillLogprobs(output.processed, law::ProcessedTemperature(row, output), draw.mutable_processed());
  }
  tokens_.push_back(output.token);
  sampler_state_ = output.sampler_state;
  if (draw.finish_reason() == 0 && PlainRepeats(parameters_, tokens_, prompt_length_)) {
    draw.set_finish_reason(v1::FINISH_REASON_REPETITION);
  }
  if (const auto from = PlainPhraseFrom(parameters_, tokens_, prompt_length_)) {
    draw.mutable_rewind()->set_position(*from);
    draw.mutable_rewind()->mutable_tokens()->Assign(tokens_.begin() + *from, tokens_.end());
  }
  return draw;
}

v1::DrawResult ReferenceSequence::Step(v1::DType dtype, const void* logits, uint32_t draw_salt,
                                       const uint32_t* allowed_bits, std::span<const uint32_t> banned) {
  return Take(Answer({dtype, logits, draw_salt, allowed_bits, {banned.begin(), banned.end()}}));
}

std::vector<v1::DrawResult> ReferenceSequence::Verify(v1::DType dtype, const std::byte* logits, const Drafts& drafts,
                                                      uint32_t draw_salt, const uint32_t* allowed_bits,
                                                      const std::vector<uint32_t>& banned,
                                                      const std::vector<uint32_t>& banned_first) {
  std::vector<Ask> asks;
  const size_t row_bytes = size_t{vocabulary_} * kernels::ElementBytes(ToKernel(dtype));
  for (size_t i = 0; i <= drafts.tokens.size(); ++i) {
    Ask& ask = asks.emplace_back(Ask{dtype, logits + i * row_bytes, draw_salt, allowed_bits, banned});
    if (i == 0) ask.banned.insert(ask.banned.end(), banned_first.begin(), banned_first.end());
    if (i == drafts.tokens.size()) break;
    ask.task = kernels::RowTask::kVerify;
    ask.given = drafts.tokens[i];
    ask.draft = drafts.probabilities[i];
  }
  if (drafts.as_block) return VerifyBlock(drafts, std::move(asks));
  std::vector<v1::DrawResult> results;
  for (const Ask& ask : asks) {
    const kernels::RowOutput output = Answer(ask);
    const v1::DrawResult& last = results.emplace_back(Take(output));
    if (!output.accepted || last.finish_reason() != 0 || last.has_rewind()) break;
  }
  return results;
}

std::vector<v1::DrawResult> ReferenceSequence::VerifyBlock(const Drafts& drafts, std::vector<Ask> asks) {
  ReferenceSequence ahead = *this;
  std::vector<kernels::RowOutput> ends;
  size_t end = 0;
  uint64_t survival = kernels::RowRequest::kCertainSurvival;
  for (size_t i = 0; i < asks.size() && survival != 0; ++i) {
    asks[i].survival = i < drafts.tokens.size() ? survival : kernels::RowRequest::kNoBlock;
    ends.push_back(ahead.Answer(asks[i]));
    if (i == drafts.tokens.size()) {
      const law::PhiloxWords words = law::BlockWords(law::ToDrawKey(ahead.Noise(asks[i].draw_salt)));
      if (law::MayEndAfter(law::WordOf(words, 1), survival)) end = i;
      break;
    }
    if (ends.back().accepted) end = i;
    survival = ends.back().survival;
    ahead.tokens_.push_back(drafts.tokens[i]);
  }
  std::vector<v1::DrawResult> results;
  for (size_t i = 0; i <= end; ++i) {
    asks[i].task = kernels::RowTask::kScore;
    asks[i].survival = kernels::RowRequest::kNoBlock;
    asks[i].draft = {};
    const v1::DrawResult& last = results.emplace_back(Take(i < end ? Answer(asks[i]) : ends[end]));
    if (last.finish_reason() != 0 || last.has_rewind()) break;
  }
  return results;
}

v1::ScoreResult ReferenceSequence::Score(v1::DType dtype, const std::byte* logits, std::span<const uint32_t> given,
                                         const uint32_t* allowed_bits) const {
  ReferenceSequence then = *this;
  v1::ScoreResult score;
  for (const uint32_t token : given) {
    const kernels::RowOutput answer = then.Answer({.dtype = dtype,
                                                   .logits = logits,
                                                   .allowed_bits = allowed_bits,
                                                   .task = kernels::RowTask::kScore,
                                                   .given = token});
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
  if (draw.phase() != 0) absl::StrAppend(&text, " phase ", draw.phase());
  if (draw.has_raw()) absl::StrAppend(&text, " raw ", Bits(draw.raw()));
  if (draw.has_processed()) absl::StrAppend(&text, " processed ", Bits(draw.processed()));
  return text;
}

std::string Bits(const v1::ScoreResult& score) {
  std::string text = "score";
  for (const v1::Position& position : score.positions()) {
    if (position.phase() != 0) absl::StrAppend(&text, " phase ", position.phase());
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
    draw.set_phase(position.phase());
    if (position.has_raw()) *draw.mutable_raw() = position.raw();
    if (position.has_processed()) *draw.mutable_processed() = position.processed();
    text += Bits(draw);
  }
  return text + EndBits(*verify);
}

}  // namespace sortition::testing
