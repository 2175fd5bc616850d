// Making of random rows.
#include "tests/conformance/random_row.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/law/chain.h"
#include "kernels/law/draft_probability.h"
#include "kernels/law/options.h"
#include "kernels/law/parameters.h"
#include "kernels/law/reference.h"
#include "kernels/law/row_law.h"

namespace sortition::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rounds towards zero; finite magnitudes up to 65504, or an infinity. Small results become 0.
uint16_t ToF16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 16 & 0x8000;
  if (std::isinf(x)) return uint16_t(sign | 0x7c00);
  const int exponent = int(bits >> 23 & 255) - 112;
  if (exponent <= 0) return uint16_t(sign);
  return uint16_t(sign | uint32_t(exponent) << 10 | (bits >> 13 & 0x3ff));
}

enum Shape { kGaussian, kPeaked, kFlat, kTies, kConstant, kTwoValued, kTiny, kWide, kHoles, kShapes };

}  // namespace

RandomRow::RandomRow(uint64_t seed, uint32_t vocabulary, OptionsKind options)
    : random_(seed), vocabulary_(vocabulary), dtype_(static_cast<DType>(Below(3))) {
  description_ = absl::StrCat("RandomRow(", seed, ", ", vocabulary, ")");
  tensor_.resize(size_t{vocabulary} * ElementBytes(dtype_));
  MakeLogits();
  MakeOptions(options);
  request_.logits = tensor_.data();
  request_.dtype = dtype_;
  // Sometimes the last ids are padding, which must not affect the output.
  request_.live_vocabulary = OneIn(4) ? 1 + Below(vocabulary) : vocabulary;
  request_.parameters = &parameters_;
  request_.noise = {random_(), uint32_t(random_()), uint32_t(random_())};
  if (OneIn(3)) MakeEdits();
  if (OneIn(4)) MakeMasks();
}

void RandomRow::Store(uint32_t id, float logit) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit);
  if (dtype_ == DType::kF32) std::memcpy(&tensor_[size_t{id} * 4], &bits, 4);
  if (dtype_ == DType::kF32) return;
  const uint16_t element = dtype_ == DType::kBF16 ? uint16_t(bits >> 16) : ToF16(logit);
  std::memcpy(&tensor_[size_t{id} * 2], &element, 2);
}

float RandomRow::Logit(int shape) {
  // A sum of four uniforms is normal enough, and the same with every library.
  const uint64_t word = random_();
  int sum = -131070;
  for (int part = 0; part < 4; ++part) sum += int(word >> (16 * part) & 0xffff);
  const float normal = float(sum) / 37837.0f;
  switch (shape) {
    case kPeaked:
      return OneIn(200) ? 12 + 3 * normal : 2.5f * normal;
    case kFlat:
      return 0.05f * normal;
    case kTies:
      return std::round(4 * normal) / 2;
    case kConstant:
      return -7.25f;
    case kTwoValued:
      return OneIn(2) ? 1.0f : -1.0f;
    case kTiny: {
      static constexpr float kNear[] = {0.0f,      -0.0f,           1e-40f, -1e-40f, 0x1p-60f,
                                        -0x1p-60f, 0x1.fffffep-61f, 1e-12f, -1e-12f};
      return kNear[Below(9)];
    }
    case kWide:
      return std::ldexp(normal, int(Below(16)));
    case kHoles: {
      static constexpr float kMasked[] = {-kInfinity, -65504.0f, -1e9f, std::numeric_limits<float>::lowest()};
      return OneIn(2) ? kMasked[Below(4)] : 2.5f * normal;
    }
    default:
      return 2.5f * normal;
  }
}

void RandomRow::MakeLogits() {
  const int shape = int(Below(kShapes));
  absl::StrAppend(&description_, " shape ", shape, " dtype ", int(dtype_));
  for (uint32_t id = 0; id < vocabulary_; ++id) Store(id, Logit(shape));
  if (OneIn(30)) {
    for (uint32_t n = 1 + Below(3); n > 0; --n) Store(Below(vocabulary_), std::numeric_limits<float>::quiet_NaN());
  }
  if (OneIn(30)) {
    const float largest = OneIn(2) ? kInfinity : 65504.0f;
    Store(Below(vocabulary_), largest);
  }
  if (OneIn(100)) {
    for (uint32_t id = 0; id < vocabulary_; ++id) Store(id, -kInfinity);
  }
}

uint32_t RandomRow::Number(std::string_view option) {
  const uint32_t number = OneOf({1u, 2u, 5u, 50u, 1000u, vocabulary_, vocabulary_ / 2 + 1, 1 + Below(vocabulary_)});
  return std::min(number, uint32_t(law::NumberNamed(option).most.value));
}

// Any samplers, in any order that ends in the one with a state.
void RandomRow::MakeChain(uint32_t rarity, law::SamplingParameters* options) {
  law::SamplingParameters& p = *options;
  if (OneIn(rarity)) p.top_n_sigma = OneOf({0.01f, 0.5f, 1.0f, 1.5f, 3.0f, 100.0f});
  if (OneIn(rarity)) p.top_h = OneOf({1e-6f, 0.1f, 0.4f, 0.9f, 1.0f});
  if (OneIn(rarity)) {
    p.xtc_probability = OneOf({1e-3f, 0.5f, 1.0f, 1.0f});
    p.xtc_threshold = OneOf({1e-25f, 1e-4f, 0.01f, 0.1f, 0.3f, 0.5f});
  }
  if (OneIn(rarity)) {
    p.dynamic_temperature_range = OneOf({0.01f, 0.5f, 1.0f, 20.0f, 100.0f});
    p.dynamic_temperature_exponent = OneOf({0.01f, 0.5f, 1.0f, 2.5f, 10.0f});
    if (p.temperature == 0) p.temperature = 1;
  }
  if (OneIn(rarity)) {
    p.smoothing_factor = OneOf({1e-30f, 1e-6f, 0.01f, 0.2f, 1.5f, 100.0f});
    p.smoothing_curve = OneOf({1.0f, 1.3f, 2.0f, 3.0f});
  }
  if (OneIn(rarity)) {
    p.mirostat = 1 + Below(2);
    p.mirostat_tau = OneOf({0.01f, 2.0f, 5.0f, 9.0f, 20.0f});
    p.mirostat_eta = OneOf({0.001f, 0.1f, 1.0f});
    p.mirostat_m = OneIn(2) ? 100 : 2 + Below(999);
    request_.sampler_state = uint64_t(int64_t(OneOf({-1e3f, -1.0f, 0.0f, 3.0f, 10.0f, 15.0f, 1e4f, 1e12f}) * 0x1p26f));
  } else if (OneIn(rarity)) {
    p.adaptive_p = true;
    p.adaptive_target = OneOf({0.0f, 0.1f, 0.3f, 0.6f, 1.0f});
    p.adaptive_decay = OneOf({0.0f, 0.5f, 0.9f, 0.99f});
    request_.sampler_state = OneIn(3) ? 0 : uint32_t(random_());
  }
  if (OneIn(rarity)) {
    p.min_k = true;
    p.min_k_tau = OneOf({0.0f, 0.5f, 3.0f, 30.0f, 100.0f});
  }
  p.order.assign(law::PresetOrder(law::Preset::kVllm).begin(), law::PresetOrder(law::Preset::kVllm).end());
  std::shuffle(p.order.begin(), p.order.end() - 2, random_);
  if (p.temperature == 0) request_.sampler_state = 0;
}

void RandomRow::MakeOptions(OptionsKind which) {
  law::SamplingParameters options;
  static constexpr float kTemperatures[] = {0, 0.01f, 0.1f, 0.6f, 1, 1, 1.5f, 5, 100};
  options.temperature = OneIn(3) ? 0.2f + float(Below(2000)) / 1000 : kTemperatures[Below(9)];
  const bool is_chained = which == OptionsKind::kChained;
  const uint32_t rarity = 2 + Below(8);  // of samplers that need a chain: few, or many
  const auto is_usual = [](StageKind stage) { return stage <= StageKind::kTopP; };
#define SET_Threshold(name) options.name = OneOf({1e-30f, 1e-18f, 1e-15f, 1e-6f, 3e-4f, 0.02f, 0.1f, 0.3f, 0.5f, 1.0f})
#define SET_Mass(name) options.name = OneOf({1e-30f, 1e-9f, 0.01f, 0.2f, 0.5f, 0.9f, 0.95f, 0.999f, 0.9999999f})
#define SET_Number(name) options.name = Number(#name)
#define SET_Flag(name) options.name = true
#define SET_Own(name)
#define SAMPLER(sampler, name, first, last, greedy, operand, vllm, llama_cpp, hf) \
  if (is_usual(StageKind::first) ? OneIn(2) : is_chained && OneIn(rarity)) {      \
    SET_##operand(name);                                                          \
  }
#include "kernels/law/options.inc"
#undef SET_Threshold
#undef SET_Mass
#undef SET_Number
#undef SET_Flag
#undef SET_Own
  static constexpr float kRepetitions[] = {0.01f, 0.8f, 1.1f, 1.3f, 100};
  if (OneIn(2)) options.repetition_penalty = kRepetitions[Below(5)];
  if (is_chained) MakeChain(rarity, &options);
  law::Compile(options, &parameters_);
  parameters_.mask_nan = OneIn(2);
  parameters_.raw_logprob = OneIn(2);
  parameters_.processed_logprob = OneIn(2);
  static constexpr uint32_t kTops[] = {0, 1, 5, 20, kMaxTopLogprobs};
  if (parameters_.raw_logprob) parameters_.raw_top = kTops[Below(5)];
  if (parameters_.processed_logprob) parameters_.processed_top = kTops[Below(5)];
  parameters_.kept_count = OneIn(4);
}

std::vector<uint32_t> RandomRow::Tokens(uint32_t count) {
  // Sorting them takes longer than the rest of a row.
  std::vector<uint64_t> words((request_.live_vocabulary + 63) / 64);
  for (; count > 0; --count) {
    const uint32_t token = Below(request_.live_vocabulary);
    words[token / 64] |= uint64_t{1} << (token % 64);
  }
  std::vector<uint32_t> tokens;
  for (size_t i = 0; i < words.size(); ++i) {
    for (uint64_t word = words[i]; word != 0; word &= word - 1) {
      tokens.push_back(uint32_t(64 * i) + uint32_t(std::countr_zero(word)));
    }
  }
  return tokens;
}

void RandomRow::MakeEdits() {
  for (const uint32_t token : Tokens(1 + Below(OneIn(4) ? 2000 : 20))) {
    LogitEdit edit = {.token = token};
    if (OneIn(8)) edit.flags |= LogitEdit::kBanned;
    if (OneIn(2)) edit.flags |= LogitEdit::kRepeated;
    // One number a statement: compilers differ in the order of a call's arguments, and rows must not.
    if (OneIn(2)) {
      const int exponent = -int(Below(14));
      edit.bias = law::CanonicalBits(std::ldexp(float(Below(2001)) - 1000, exponent));
    }
    if (OneIn(2)) {
      const uint32_t count = 1 + Below(50);
      const float presence = float(Below(41)) / 10 - 2;
      edit.penalty = law::PenaltyBits(float(Below(41)) / 10 - 2, presence, count);
    }
    // Out of the domain, seldom.
    if (OneIn(3000)) edit.bias = law::CanonicalBits(OneIn(2) ? 65503.0f : -65503.0f);
    if (OneIn(3000)) {
      const uint32_t count = 1000 + Below(1u << 31);
      edit.penalty = law::PenaltyBits(OneIn(2) ? 100.0f : -100.0f, 0, count);
    }
    edits_.push_back(edit);
  }
  request_.edits = edits_;
}

void RandomRow::MakeMasks() {
  if (OneIn(2)) {
    allowed_tokens_ = Tokens(OneIn(20) ? 0 : 1 + Below(OneIn(2) ? 5 : 3000));
    request_.has_allowed_tokens = true;
    request_.allowed_tokens = allowed_tokens_;
  }
  if (request_.has_allowed_tokens && OneIn(2)) return;
  allowed_bits_.resize((request_.live_vocabulary + 31) / 32);
  const uint32_t density = Below(4);
  for (uint32_t& word : allowed_bits_) {
    word = uint32_t(random_());
    if (density == 0) word &= uint32_t(random_() & random_() & random_());
    if (density == 1) word = OneIn(2) ? 0xffffffff : word;
    if (density == 2) word = OneIn(50) ? word : 0;
  }
  request_.allowed_bits = allowed_bits_.data();
}

void RandomRow::FilterBySigmaFirst() {
  law::SamplingParameters options;
  options.temperature = OneOf({0.2f, 0.8f, 1.0f, 3.0f});
  options.top_n_sigma = OneOf({0.01f, 0.5f, 1.0f, 1.5f, 3.0f, 100.0f});
  if (OneIn(3)) options.top_k = 1 + Below(60);
  if (OneIn(3)) options.top_p = 0.9f;
  options.repetition_penalty = 1.1f;
  law::Compile(options, &parameters_);
}

void RandomRow::AskForMore() {
  parameters_.entropy = OneIn(2);
  parameters_.kept_tokens = OneIn(3);
  static constexpr uint32_t kCounts[] = {0, 1, 5, 30, kMaxTopLogprobs};
  for (uint32_t n = kCounts[Below(5)]; n > 0; --n) requested_.push_back(Below(request_.live_vocabulary));
  request_.requested = requested_;
  request_.task = static_cast<RowTask>(Below(3));
  request_.given = Below(request_.live_vocabulary);
  if (OneIn(2)) {
    // A draft that the target may well accept: the leading token, or the one that the row would draw.
    request_.given = DrawnAt(request_.noise.position).value_or(request_.given);
  }
  if (OneIn(2)) request_.likely = OneIn(2) ? Below(request_.live_vocabulary) : request_.given;
  if (request_.task == RowTask::kVerify) MakeDraft();
  absl::StrAppend(&description_, " task ", int(request_.task), " given ", request_.given);
}

std::optional<uint32_t> RandomRow::DrawnAt(uint32_t position) const {
  // A row's other wishes do not change its token.
  RowParameters parameters = parameters_;
  parameters.raw_logprob = parameters.processed_logprob = parameters.tempered_logprob = false;
  parameters.raw_top = parameters.processed_top = parameters.tempered_top = 0;
  parameters.entropy = parameters.kept_tokens = parameters.kept_log_mass = false;
  RowRequest plain = request_;
  plain.parameters = &parameters;
  plain.task = RowTask::kDraw;
  plain.requested = {};
  plain.noise.position = position;
  const RowOutput answer = law::SampleRowReference(plain);
  return answer.error == RowFault::kNone ? std::optional(answer.token) : std::nullopt;
}

void RandomRow::AskForRecord() {
  static constexpr uint32_t kTops[] = {0, 1, 5, 20, kMaxTopLogprobs};
  parameters_.tempered_logprob = !OneIn(3);
  if (parameters_.tempered_logprob) parameters_.tempered_top = kTops[Below(5)];
  parameters_.kept_log_mass = !OneIn(3);
  const bool adapts = !parameters_.chain.empty() && parameters_.chain.back().kind == StageKind::kAdaptiveP;
  request_.wants_race_place = request_.task == RowTask::kScore && !adapts && OneIn(2);
}

void RandomRow::AskForBlock() {
  if (request_.task != RowTask::kVerify || parameters_.greedy || OneIn(2)) return;
  static constexpr uint32_t kUnits[] = {0, 1, 1000, 0x10000000, 0xc0000000, 0xffffffff};
  request_.survival = OneIn(3) ? RowRequest::kCertainSurvival : OneIn(2) ? kUnits[Below(6)] : uint32_t(random_());
  absl::StrAppend(&description_, " survival ", request_.survival);
}

void RandomRow::AskForRounds() {
  const bool has_probabilities = request_.draft.form != DraftDistribution::Form::kCertain;
  if (request_.task != RowTask::kVerify || !has_probabilities || request_.survival != RowRequest::kNoBlock) return;
  if (OneIn(2)) return;
  const bool with_replacement = OneIn(2);
  request_.draft.with_replacement = with_replacement;
  // Any that the drafter may draw, and of a dense row seldom another. The target's own draw of other noise is likely.
  for (uint32_t n = 1 + Below(OneIn(4) ? 12 : 3); n > 0; --n) {
    uint32_t rival = Below(request_.live_vocabulary);
    if (OneIn(2)) rival = DrawnAt(request_.noise.position + n).value_or(rival);
    const bool is_listed = !sparse_draft_tokens_.empty();
    const bool is_known = (law::DraftBits(request_, rival) & 0x7fffffffu) != 0;
    if (is_listed && !is_known) rival = sparse_draft_tokens_[Below(uint32_t(sparse_draft_tokens_.size()))];
    if (!is_listed && !is_known && !OneIn(30)) continue;
    const bool is_new = rival != request_.given && std::ranges::find(rivals_, rival) == rivals_.end();
    if (is_new || with_replacement) rivals_.push_back(rival);
  }
  request_.rivals = rivals_;
  absl::StrAppend(&description_, " rivals ", rivals_.size(), with_replacement ? " with replacement" : "");
}

void RandomRow::KeepAtLeast() {
  const uint32_t least = OneIn(2) ? 2 + Below(40) : 2 + Below(uint32_t(law::NumberNamed("min_keep").most.value) - 1);
  for (Stage& stage : parameters_.chain) {
    Stage with = stage;
    with.operands[3] = least;
    const bool counts_itself = stage.kind == StageKind::kTopK;
    if (!counts_itself && law::LeastCount(law::ToStageWords(with)) == least) stage = with;
  }
  absl::StrAppend(&description_, " least ", least);
}

void RandomRow::MakeDraft() {
  DraftDistribution& draft = request_.draft;
  draft.form = static_cast<DraftDistribution::Form>(Below(3));
  // A few tokens of much probability, the draft among them; sometimes all of the vocabulary has some.
  std::vector<double> weights(vocabulary_);
  double sum = 0;
  const uint32_t listed = 1 + Below(OneIn(2) ? 5 : 200);
  for (uint32_t n = 0; n < listed; ++n) weights[Below(request_.live_vocabulary)] += double(1 + Below(1000));
  weights[request_.given] += OneIn(3) ? 0.001 : double(Below(5000) + 1);
  if (OneIn(2)) {
    for (uint32_t id = 0; id < request_.live_vocabulary; ++id) weights[id] += double(Below(1000)) / vocabulary_;
  }
  for (uint32_t id = 0; id < request_.live_vocabulary; ++id) sum += weights[id];
  for (double& weight : weights) weight /= sum;
  if (draft.form == DraftDistribution::Form::kSparse) {
    for (uint32_t id = 0; id < request_.live_vocabulary; ++id) {
      if (weights[id] == 0) continue;
      sparse_draft_tokens_.push_back(id);
      sparse_draft_bits_.push_back(std::bit_cast<uint32_t>(float(weights[id])));
    }
    draft.sparse_tokens = sparse_draft_tokens_;
    draft.sparse_bits = sparse_draft_bits_;
  }
  if (draft.form != DraftDistribution::Form::kDense) return;
  if (OneIn(20)) weights[Below(request_.live_vocabulary)] = OneIn(2) ? -0.25 : std::nan("");
  if (OneIn(20)) weights[Below(request_.live_vocabulary)] += OneIn(2) ? 0.011 : 1.5;
  if (OneIn(20)) weights[request_.given] = OneIn(2) ? 0.0 : -0.0;
  draft.dtype = static_cast<DType>(Below(3));
  dense_draft_.resize(size_t{vocabulary_} * ElementBytes(draft.dtype) + 1);
  // At any alignment.
  std::byte* const at = dense_draft_.data() + (OneIn(2) ? 1 : 0);
  draft.dense = at;
  for (uint32_t id = 0; id < vocabulary_; ++id) {
    const uint32_t bits = std::bit_cast<uint32_t>(float(weights[id]));
    uint32_t element = bits;
    if (draft.dtype == DType::kBF16) element = bits >> 16;
    if (draft.dtype == DType::kF16) element = std::isnan(weights[id]) ? 0x7e00 : ToF16(float(weights[id]));
    std::memcpy(at + size_t{id} * ElementBytes(draft.dtype), &element, ElementBytes(draft.dtype));
  }
}

}  // namespace sortition::kernels
