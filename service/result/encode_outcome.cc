// Integers to logprobs, kept sets to pieces.
#include "service/result/encode_outcome.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/check.h"
#include "kernels/law/chain.h"
#include "kernels/law/logprob.h"
#include "kernels/law/row_law.h"
#include "service/result/encode.h"

namespace sortition::service {
namespace {

using kernels::RowOutput;
using kernels::RowParameters;

// The messages of one row's answer.
class Pieces {
 public:
  Pieces(RowPlace place, google::protobuf::RepeatedPtrField<v1::RowResult>* results)
      : place_(place), results_(*results) {
    Add();
  }
  v1::RowResult& last() { return *results_.Mutable(results_.size() - 1); }
  uint32_t room() const { return room_; }
  void Take(uint32_t tokens) { room_ -= tokens; }

  // The last message is full: another one of the same kind follows.
  void Continue() {
    switch (last().outcome_case()) {
      case v1::RowResult::kDraw:
        last().mutable_draw()->set_continues(true);
        Add()->mutable_draw();
        break;
      case v1::RowResult::kScore:
        last().mutable_score()->set_continues(true);
        Add()->mutable_score();
        break;
      default:
        last().mutable_verify()->set_continues(true);
        Add()->mutable_verify();
        break;
    }
  }

 private:
  v1::RowResult* Add() {
    v1::RowResult* result = results_.Add();
    result->set_row(place_.row);
    result->set_step_id(place_.step_id);
    room_ = kPieceTokens;
    return result;
  }

  const RowPlace place_;
  google::protobuf::RepeatedPtrField<v1::RowResult>& results_;
  uint32_t room_ = 0;
};

void AddKept(uint32_t index, const kernels::TokenBits* tokens, uint32_t count, v1::RowResult* result) {
  google::protobuf::RepeatedField<uint32_t>* to = nullptr;
  if (result->has_draw()) {
    to = result->mutable_draw()->mutable_kept_tokens();
  } else {
    v1::KeptTokens* kept =
        result->has_score() ? result->mutable_score()->add_kept_tokens() : result->mutable_verify()->add_kept_tokens();
    kept->set_index(index);
    to = kept->mutable_tokens();
  }
  to->Reserve(static_cast<int>(count));
  for (uint32_t i = 0; i < count; ++i) to->Add(tokens[i].token);
}

void EncodeKept(uint32_t index, const RowOutput& answer, Pieces* pieces) {
  const auto all = static_cast<uint32_t>(answer.kept_tokens.size());
  for (uint32_t begin = 0; begin < all;) {
    if (pieces->room() == 0) pieces->Continue();
    const uint32_t count = std::min(all - begin, pieces->room());
    AddKept(index, answer.kept_tokens.data() + begin, count, &pieces->last());
    pieces->Take(count);
    begin += count;
  }
}

// Every live token's probability, from the list of those that are kept.
std::vector<float> ProbabilitiesOf(const RowOutput& answer, const RowParameters& parameters, uint32_t live_vocabulary) {
  std::vector<float> probabilities(live_vocabulary);
  const law::Scale scale = law::ProcessedScale(parameters, answer);
  for (const kernels::TokenBits& token : answer.kept_tokens) {
    probabilities[token.token] = law::Probability(token.bits, answer.processed.weight_sum, scale);
  }
  return probabilities;
}

void EncodeProbabilities(uint32_t index, const std::vector<float>& probabilities, Pieces* pieces) {
  static_assert(std::endian::native == std::endian::little, "floats are sent as they lie in memory");
  const auto all = static_cast<uint32_t>(probabilities.size());
  for (uint32_t begin = 0; begin < all;) {
    if (pieces->room() == 0) pieces->Continue();
    const uint32_t count = std::min(all - begin, pieces->room());
    v1::ProbabilityPiece* piece = pieces->last().mutable_verify()->add_probabilities();
    piece->set_index(index);
    piece->set_first_token(begin);
    piece->mutable_probabilities()->assign(reinterpret_cast<const char*>(probabilities.data() + begin),
                                           size_t{count} * sizeof(float));
    pieces->Take(count);
    begin += count;
  }
}

// One position's entries of ScoreResult or VerifyResult.
template <typename Result>
void EncodeRow(const RowOutput& answer, const RowParameters& parameters, Result* result) {
  if (parameters.raw_logprob) EncodeLogprobs(answer.raw, 1, result->add_raw());
  if (parameters.processed_logprob) {
    EncodeLogprobs(answer.processed, law::ProcessedTemperature(parameters, answer), result->add_processed());
  }
  if (parameters.entropy) result->add_entropy(law::Entropy(answer.entropy));
  if (parameters.kept_count) result->add_kept_count(answer.kept);
}

uint32_t TokensOf(const kernels::Distribution& distribution) {
  return static_cast<uint32_t>(1 + distribution.top.size() + distribution.requested.size());
}

// A position's entries stay together.
void EncodeRows(const std::vector<RowOutput>& rows, const RowParameters& parameters, Pieces* pieces) {
  static_assert(2 * (1 + 2 * kernels::kMaxTopLogprobs) <= kPieceTokens);
  for (const RowOutput& answer : rows) {
    const uint32_t tokens = TokensOf(answer.raw) + TokensOf(answer.processed);
    if (pieces->room() < tokens) pieces->Continue();
    pieces->Take(tokens);
    if (pieces->last().has_score()) {
      EncodeRow(answer, parameters, pieces->last().mutable_score());
    } else {
      EncodeRow(answer, parameters, pieces->last().mutable_verify());
    }
  }
}

void EncodeVerify(const RowResult& result, const RowPlan& plan, v1::VerifyResult* verify) {
  verify->set_accepted(static_cast<uint32_t>(result.path.size()));
  for (const RowOutput& output : result.outputs) verify->add_tokens(output.token);
  verify->set_matched(static_cast<uint32_t>(std::ranges::count(result.matched, true)));
  for (const bool matched : result.matched) verify->add_position_matched(matched);
  if (plan.is_tree) verify->mutable_path()->Assign(result.path.begin(), result.path.end());
}

void EncodeFinish(const RowResult& result, const SequenceSpec& spec, v1::RowResult* message) {
  const auto stops = [&](const RowOutput& output) { return spec.stops(output.token); };
  if (message->has_score() || !std::ranges::any_of(result.outputs, stops)) return;
  if (message->has_draw()) {
    message->mutable_draw()->set_finish_reason(v1::FINISH_REASON_STOP_TOKEN);
  } else {
    message->mutable_verify()->set_finish_reason(v1::FINISH_REASON_STOP_TOKEN);
  }
}

}  // namespace

void EncodeOutcome(const RowResult& result, const RowPlan& plan, const SequenceSpec& spec, RowPlace place,
                   google::protobuf::RepeatedPtrField<v1::RowResult>* results) {
  SORTITION_CHECK(!result.outputs.empty());
  const RowParameters& parameters = spec.parameters;
  Pieces pieces(place, results);
  if (plan.kind == RowPlan::Kind::kDraw) {
    EncodeDraw(result.outputs[0], parameters, result.history_hash, pieces.last().mutable_draw());
  } else if (plan.kind == RowPlan::Kind::kScore) {
    pieces.last().mutable_score();
  } else {
    v1::VerifyResult* verify = pieces.last().mutable_verify();
    EncodeVerify(result, plan, verify);
    if (result.history_hash) verify->set_history_hash(*result.history_hash);
  }
  EncodeFinish(result, spec, &pieces.last());
  if (plan.kind != RowPlan::Kind::kDraw) EncodeRows(result.outputs, parameters, &pieces);
  for (uint32_t i = 0; i < result.outputs.size(); ++i) {
    if (parameters.kept_tokens) EncodeKept(i, result.outputs[i], &pieces);
    if (!plan.return_probabilities) continue;
    EncodeProbabilities(i, ProbabilitiesOf(result.outputs[i], parameters, spec.live_vocabulary), &pieces);
  }
}

}  // namespace sortition::service
