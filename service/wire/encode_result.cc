// Splits large results into parts.
#include "service/wire/encode_result.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/check.h"
#include "kernels/law/chain.h"
#include "kernels/law/logprob.h"
#include "kernels/law/race_place.h"
#include "kernels/law/row_law.h"
#include "service/wire/encode.h"

namespace sortition::service {
namespace {

using kernels::RowOutput;
using kernels::RowParameters;

// Adds an empty part that continues the last one of `results`.
v1::RowResult* AddPart(google::protobuf::RepeatedPtrField<v1::RowResult>* results) {
  SORTITION_CHECK(results != nullptr && !results->empty());
  v1::RowResult* const part = results->Add();
  v1::RowResult& last = *results->Mutable(results->size() - 2);
  part->set_row(last.row());
  part->set_step_id(last.step_id());
  switch (last.kind_case()) {
    case v1::RowResult::kDraw:
      last.mutable_draw()->set_continues(true);
      part->mutable_draw();
      break;
    case v1::RowResult::kScore:
      last.mutable_score()->set_continues(true);
      part->mutable_score();
      break;
    default:
      last.mutable_verify()->set_continues(true);
      part->mutable_verify();
      break;
  }
  return part;
}

// The parts of one row's result. The last one is being written.
class Parts {
 public:
  Parts(RowPlace place, google::protobuf::RepeatedPtrField<v1::RowResult>* results)
      : results_(results), last_(results->Add()), room_(kPartNumbers) {
    last_->set_row(place.row);
    last_->set_step_id(place.step_id);
  }
  // One part without bound, which is empty.
  explicit Parts(v1::RowResult* whole) : last_(whole), room_(std::numeric_limits<uint32_t>::max()) {}

  v1::RowResult& last() { return *last_; }
  // The entry of the last part that is being written; null before BeginPosition.
  v1::Position* position() { return position_; }

  // Begins the entry of the result's token `index`, in a part with room for `numbers` of its log probabilities.
  void BeginPosition(uint32_t index, uint32_t numbers) {
    position_ = nullptr;
    if (room_ < numbers) Continue();
    room_ -= numbers;
    AddPosition(index);
  }

  // Takes room for at least one and at most `wanted` numbers, in the last part or in a new one that continues it.
  // Returns for how many.
  uint32_t TakeRoom(uint32_t wanted) {
    if (room_ == 0) Continue();
    const uint32_t taken = std::min(wanted, room_);
    room_ -= taken;
    return taken;
  }

 private:
  // Begins another part of the same kind, and in it the entry that is being written.
  void Continue() {
    last_ = AddPart(results_);
    room_ = kPartNumbers;
    if (position_ != nullptr) AddPosition(position_->index());
  }

  void AddPosition(uint32_t index) {
    position_ = last().has_score() ? last().mutable_score()->add_positions() : last().mutable_verify()->add_positions();
    position_->set_index(index);
  }

  google::protobuf::RepeatedPtrField<v1::RowResult>* const results_ = nullptr;
  v1::RowResult* last_ = nullptr;
  v1::Position* position_ = nullptr;
  uint32_t room_ = 0;
};

void EncodeKept(const RowOutput& output, Parts* parts) {
  const auto all = static_cast<uint32_t>(output.kept_tokens.size());
  for (uint32_t begin = 0; begin < all;) {
    const uint32_t count = parts->TakeRoom(all - begin);
    google::protobuf::RepeatedField<uint32_t>* const to = parts->position() != nullptr
                                                              ? parts->position()->mutable_kept_tokens()
                                                              : parts->last().mutable_draw()->mutable_kept_tokens();
    to->Reserve(to->size() + static_cast<int>(count));
    for (uint32_t i = 0; i < count; ++i) to->Add(output.kept_tokens[begin + i].token);
    begin += count;
  }
}

// Returns the probability of every live token: 0 for those that are not kept.
std::vector<float> ProbabilitiesOf(const RowOutput& output, const RowParameters& parameters, uint32_t live_vocabulary) {
  std::vector<float> probabilities(live_vocabulary);
  const law::Scale scale = law::ProcessedScale(parameters, output);
  for (const kernels::TokenBits& token : output.kept_tokens) {
    probabilities[token.token] = law::Probability(token.bits, output.processed.weight_sum, scale);
  }
  return probabilities;
}

void EncodeProbabilities(const std::vector<float>& probabilities, Parts* parts) {
  static_assert(std::endian::native == std::endian::little, "floats are sent as they lie in memory");
  const auto all = static_cast<uint32_t>(probabilities.size());
  for (uint32_t begin = 0; begin < all;) {
    const uint32_t count = parts->TakeRoom(all - begin);
    parts->position()->mutable_probabilities()->append(reinterpret_cast<const char*>(probabilities.data() + begin),
                                                       size_t{count} * sizeof(float));
    begin += count;
  }
}

uint32_t NumbersOf(const kernels::Distribution& distribution) {
  return static_cast<uint32_t>(1 + distribution.top.size() + distribution.requested.size());
}

// Encodes the row's token `index` with the fields that `spec` and `plan` request. Its log probabilities are in one
// part.
void EncodePosition(uint32_t index, const RowResult& result, const RowPlan& plan, const SequenceSpec& spec,
                    Parts* parts) {
  static_assert(3 * (1 + 2 * kernels::kMaxTopLogprobs) <= kPartNumbers);
  const RowOutput& output = result.outputs[index];
  const RowParameters& parameters = spec.Within(result.PhaseOf(index)).parameters;
  parts->BeginPosition(index, NumbersOf(output.raw) + NumbersOf(output.processed) + NumbersOf(output.tempered));
  v1::Position* const position = parts->position();
  position->set_token(plan.kind == RowPlan::Kind::kScore ? plan.scored[index] : output.token);
  position->set_phase(result.PhaseOf(index));
  EncodeAsked(output, parameters, position);
  if (plan.wants_race) {
    position->mutable_race()->set_rank(output.race.rank);
    position->mutable_race()->set_margin(law::MarginOf(output.race));
  }
  if (parameters.kept_tokens) EncodeKept(output, parts);
  if (plan.return_probabilities) {
    EncodeProbabilities(ProbabilitiesOf(output, parameters, spec.live_vocabulary), parts);
  }
}

void EncodeVerify(const RowResult& result, const RowPlan& plan, v1::VerifyResult* verify) {
  verify->set_accepted(static_cast<uint32_t>(result.path.size()));
  verify->set_matched(static_cast<uint32_t>(std::ranges::count(result.matched, true)));
  for (const bool matched : result.matched) verify->add_position_matched(matched);
  if (plan.is_tree) verify->mutable_path()->Assign(result.path.begin(), result.path.end());
}

// Sets everything but the kept tokens.
void EncodeDrawn(const RowResult& result, const SequenceSpec& spec, v1::DrawResult* draw) {
  EncodeDraw(result.outputs[0], spec, result.PhaseOf(0), result.history_hash, draw);
  EncodeEnd(result.end, result.outputs[0].token, spec, draw);
}

void Encode(const RowResult& result, const RowPlan& plan, const SequenceSpec& spec, Parts* parts) {
  SORTITION_CHECK(!result.outputs.empty());
  if (plan.kind == RowPlan::Kind::kDraw) {
    EncodeDrawn(result, spec, parts->last().mutable_draw());
    if (spec.parameters.kept_tokens) EncodeKept(result.outputs[0], parts);
    return;
  }
  if (plan.kind == RowPlan::Kind::kScore) {
    parts->last().mutable_score();
  } else {
    v1::VerifyResult* verify = parts->last().mutable_verify();
    EncodeVerify(result, plan, verify);
    if (result.history_hash) verify->set_history_hash(*result.history_hash);
    EncodeEnd(result.end, result.outputs.back().token, spec, verify);
  }
  for (uint32_t i = 0; i < result.outputs.size(); ++i) EncodePosition(i, result, plan, spec, parts);
}

}  // namespace

bool Continues(const v1::RowResult& row) {
  return row.draw().continues() || row.score().continues() || row.verify().continues();
}

uint64_t MostDrawBytes(const SequenceSpec& spec) {
  constexpr uint64_t kOthers = 128;  // the fields of one number each
  const RowParameters& parameters = spec.parameters;
  const uint64_t token = (static_cast<uint64_t>(std::bit_width(spec.live_vocabulary)) + 6) / 7;
  uint64_t listed = 0;
  if (parameters.raw_logprob) listed += parameters.raw_top + spec.logprob_token_ids.size();
  if (parameters.processed_logprob) listed += parameters.processed_top + spec.logprob_token_ids.size();
  if (parameters.tempered_logprob) listed += parameters.tempered_top + spec.logprob_token_ids.size();
  const uint64_t kept = parameters.kept_tokens ? law::MostKept(parameters, spec.live_vocabulary) : 0;
  return kOthers + listed * (sizeof(float) + token) + kept * token;
}

void EncodeWholeDraw(const RowResult& result, const SequenceSpec& spec, v1::DrawResult* draw) {
  EncodeDrawn(result, spec, draw);
  if (!spec.parameters.kept_tokens) return;
  const std::vector<kernels::TokenBits>& kept = result.outputs[0].kept_tokens;
  draw->mutable_kept_tokens()->Reserve(static_cast<int>(kept.size()));
  for (const kernels::TokenBits& token : kept) draw->add_kept_tokens(token.token);
}

void EncodeWhole(const RowResult& result, const RowPlan& plan, const SequenceSpec& spec, v1::RowResult* whole) {
  Parts parts(whole);
  Encode(result, plan, spec, &parts);
}

void EncodeResult(const RowResult& result, const RowPlan& plan, const SequenceSpec& spec, RowPlace place,
                  google::protobuf::RepeatedPtrField<v1::RowResult>* results) {
  Parts parts(place, results);
  Encode(result, plan, spec, &parts);
}

void EncodeReceipts(std::string_view records, google::protobuf::RepeatedPtrField<v1::RowResult>* results) {
  v1::RowResult* part = results->Mutable(results->size() - 1);
  for (;;) {
    part->set_receipts(std::string(records.substr(0, kPartReceiptBytes)));
    if (records.size() <= kPartReceiptBytes) return;
    records.remove_prefix(kPartReceiptBytes);
    part = AddPart(results);
  }
}

}  // namespace sortition::service
