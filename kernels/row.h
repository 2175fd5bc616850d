// The contract between devices and kernels: one row of logits in, one output of integers out.
//
// Everything here is plain data. A `RowRequest` is a snapshot: it refers to memory owned by the caller, which must stay
// unchanged until the kernel returns. Parameters have been validated and compiled to integers
// (kernels/law/parameters.h), so a kernel evaluates no floating-point formula and cannot meet an out-of-range option;
// it asserts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/stage.h"

namespace sortition::kernels {

// Element type of a logits tensor, little-endian.
enum class DType : uint8_t { kF32, kF16, kBF16 };

constexpr uint32_t ElementBytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// Limits of the law (see LAW.md): 64-bit weight sums need fewer than 2^20 tokens.
inline constexpr uint32_t kMaxVocabulary = (1u << 20) - 1;
inline constexpr uint32_t kMaxTopLogprobs = 1000;

// The edit of one token's logit: bias, penalty or ban. Lists of edits are sorted by `token`, no token twice, so their
// cost is O(distinct tokens), never O(vocabulary).
struct LogitEdit {
  enum Flags : uint32_t {
    kBanned = 1,    // masked
    kRepeated = 2,  // the repetition penalty applies
  };
  uint32_t token = 0;
  uint32_t flags = 0;
  uint32_t bias = 0;     // f32 bits, canonical; added first; 0 = none
  uint32_t penalty = 0;  // f32 bits, canonical; added last: -(frequency * count + presence + DRY); 0 = none
  bool operator==(const LogitEdit&) const = default;
};

// A sequence's sampling options, compiled. An option that is off has a value that costs nothing.
struct RowParameters {
  // Temperature (law: "Distance"): t = (D * multiplier) >> (161 - e0 - exponent).
  bool greedy = false;               // temperature 0: argmax; filters and noise are not looked at
  uint32_t multiplier = 0x5c551d95;  // Cm, 31 bits, in [2^30, 2^31)
  int32_t exponent = 0;              // ce
  uint32_t window = 132;             // eW, biased exponent
  double temperature = 1;            // for the host's logprob only

  static constexpr uint32_t kMinPOff = 0xffffffffu;
  uint32_t min_p_distance = kMinPOff;  // keep t <= this; Q6.26
  uint32_t top_k = 0;                  // 0 = off
  uint32_t top_p = 0;                  // round(p * 2^32); 0 = off
  uint32_t repetition = 0;             // f32 bits of r; 0 = off
  uint32_t inverse_repetition = 0;     // f32 bits of f32(1/r)

  // At most kMaxStages stages; each kind once. Empty: the temperature, min_p_distance, top_k and top_p above, in this
  // order. Otherwise these stages alone decide, and the fields above except `greedy` have their defaults.
  std::vector<Stage> chain = {};

  bool mask_nan = false;  // NaN counts as masked instead of failing the row

  // Wanted logprobs. Off costs nothing.
  bool raw_logprob = false;
  bool processed_logprob = false;
  uint32_t raw_top = 0;        // number of alternatives, <= kMaxTopLogprobs; needs raw_logprob
  uint32_t processed_top = 0;  // needs processed_logprob
  bool entropy = false;        // of the processed distribution
  bool kept_count = false;
  bool kept_tokens = false;
  bool tempered_logprob = false;
  uint32_t tempered_top = 0;   // needs tempered_logprob
  bool kept_log_mass = false;  // of the kept tokens in the tempered distribution

  bool operator==(const RowParameters&) const = default;
};

// The noise of one draw is a pure function of these and the token id.
struct NoiseKey {
  uint64_t seed = 0;
  uint32_t position = 0;  // absolute: prompt + output tokens before this one
  uint32_t stream = 0;    // choice index | draw salt << 16
};

// A row's task.
enum class RowTask : uint8_t {
  kDraw,    // a token, by the race
  kScore,   // nothing is drawn: the answer's token is `given`
  kVerify,  // `given`, which a drafter proposed, if it passes the law's test; else a token drawn in its place
};

// The distribution from which a drafter drew its proposed token (law: "Rejection").
struct DraftDistribution {
  enum class Form : uint8_t { kCertain, kDense, kSparse };
  Form form = Form::kCertain;
  DType dtype = DType::kF32;
  const void* dense = nullptr;              // `live_vocabulary` probabilities of `dtype`; any alignment, any values
  std::span<const uint32_t> sparse_tokens;  // sorted, distinct, < live_vocabulary; `given` is one of them
  std::span<const uint32_t> sparse_bits;    // f32 probabilities in [0, 1], one a token; a draft's is not 0
  // Several drafts of one position: each was drawn from the whole distribution, so that a token may come twice. If not,
  // each was drawn from the tokens that were not drawn before it.
  bool with_replacement = false;
};

struct RowRequest {
  const void* logits = nullptr;  // `live_vocabulary` elements are read; any alignment
  DType dtype = DType::kF32;
  uint32_t live_vocabulary = 0;  // ids at or above are padding: never read, never live
  const RowParameters* parameters = nullptr;
  NoiseKey noise;
  std::span<const LogitEdit> edits;  // every token < live_vocabulary
  // Masks; a token must pass each that is present.
  bool has_allowed_tokens = false;
  std::span<const uint32_t> allowed_tokens;  // sorted, distinct, < live_vocabulary
  const uint32_t* allowed_bits = nullptr;  // ceil(live_vocabulary / 32) words, least significant bit first, 1 = allowed

  RowTask task = RowTask::kDraw;
  uint32_t given = 0;       // kScore and kVerify: < live_vocabulary
  DraftDistribution draft;  // kVerify
  // kVerify, in rounds (law: "Rounds"): further drafts of the position, which are tested in this order after `given`;
  // < live_vocabulary, distinct unless they were drawn with replacement. Empty where DraftDistribution is kCertain.
  std::span<const uint32_t> rivals;
  // kVerify, in block verification (law: "Blocks"): the probability that the drafts before the row's are accepted, in
  // units of 2^-32. At first 1, then RowOutput::survival of the position before. kNoBlock elsewhere.
  static constexpr uint64_t kCertainSurvival = uint64_t{1} << 32;
  static constexpr uint64_t kNoBlock = ~uint64_t{0};
  uint64_t survival = kNoBlock;
  // Tokens whose logprobs are wanted in every wanted distribution; < live_vocabulary, at most kMaxTopLogprobs.
  std::span<const uint32_t> requested;
  bool wants_race_place = false;  // kScore: of `given`; not where the chain ends in adaptive-p
  // A token that the caller expects to be drawn: a kernel may begin with it. It changes no bit of the answer.
  static constexpr uint32_t kNoToken = 0xffffffffu;
  uint32_t likely = kNoToken;
  // The state of a chain that ends in mirostat or adaptive-p: InitialSamplerState before the first step, then
  // RowOutput::sampler_state of the step before. 0 for other chains.
  uint64_t sampler_state = 0;
};

enum class RowFault : uint8_t {
  kNone,
  kNaN,                 // a live id's logit is NaN
  kLogitTooLarge,       // a logit, or a logit after bias or penalties, is >= 65504
  kNoLiveToken,         // every token is masked
  kDraftNoProbability,  // a live id's probability in a dense draft distribution is not in [0, 1]
  kDraftSum,            // those probabilities do not sum to 1
  kDraftImpossible,     // the probability of the draft itself is 0
  kTooManyEdits,        // a sequence on a device has no room to count its last token; no kernel of a row alone says so
};

// One token of a distribution: its logit (after changes in the processed distribution) as canonical f32 bits.
struct TokenBits {
  uint32_t token = 0;
  uint32_t bits = 0;
  bool operator==(const TokenBits&) const = default;
};

// A token's place in a distribution. A token that is not in it has the bits of -Inf, and rank 0.
struct TokenPlace {
  uint32_t bits = 0;
  uint32_t rank = 0;  // 1 + tokens of the distribution before it in order
  bool operator==(const TokenPlace&) const = default;
};

// The integers from which the host computes logprobs (law/logprob.h).
struct Distribution {
  uint32_t max_bits = 0;    // canonical bits of the largest logit M
  uint64_t weight_sum = 0;  // S, scale 2^44, over the distribution's tokens
  TokenBits chosen;         // the answer's token, with its bits and rank as in TokenPlace
  uint32_t rank = 0;
  std::vector<TokenBits> top;         // first N in order; fewer if the distribution has fewer
  std::vector<TokenPlace> requested;  // of RowRequest::requested, in that order
  bool operator==(const Distribution&) const = default;

  // Makes it empty. Keeps the memory of its lists.
  void Clear() {
    max_bits = rank = 0;
    weight_sum = 0;
    chosen = {};
    top.clear();
    requested.clear();
  }
};

// The integers from which the host computes an entropy.
struct EntropySums {
  uint64_t weights = 0;  // S
  uint64_t surplus = 0;  // of weight times distance, scale 2^44
  bool operator==(const EntropySums&) const = default;
};

// The integers from which the host computes the logarithm of the kept tokens' mass.
struct KeptMass {
  uint64_t kept = 0;  // of weights in the tempered distribution, scale 2^44, over the kept tokens
  uint64_t all = 0;   // the same over all of its tokens: S
  bool operator==(const KeptMass&) const = default;
};

// A token's place in the race.
struct RacePlace {
  uint32_t rank = 0;  // 1 + tokens before it in the race; 0: not in the race
  // Q32 octaves: its race key less the smallest one. At least 0. 2^63 - 1 if it is not in the race.
  int64_t lag = INT64_MAX;
  bool operator==(const RacePlace&) const = default;
};

struct RowOutput {
  RowFault error = RowFault::kNone;
  uint32_t error_token = 0;  // lowest id that shows the error (0 for kNoLiveToken)
  uint32_t token = 0;
  bool accepted = false;   // kVerify: `token` is a draft that passed; in a block: the block may end here, with `token`
  uint64_t survival = 0;   // in a block: RowRequest::survival of the next position
  uint32_t kept = 0;       // tokens that passed every filter; filled when processed_logprob, kept_count or kept_tokens
  Distribution raw;        // of the unchanged logits at temperature 1; filled when raw_logprob
  Distribution processed;  // of the kept set after every change and filter; filled when processed_logprob
  Distribution tempered;   // of every live token after every change, before the filters; filled when tempered_logprob
  KeptMass mass;           // filled when kept_log_mass
  RacePlace race;          // of RowRequest::given; filled when wants_race_place
  EntropySums entropy;     // of the processed distribution; filled when entropy
  std::vector<TokenBits> kept_tokens;  // ids ascending; filled when kept_tokens
  uint64_t sampler_state = 0;          // for the next step, where the chain keeps one; otherwise 0
  uint32_t temperature = 0;            // Q8.24, that dynamic temperature chose; 0 without it
  bool operator==(const RowOutput&) const = default;

  // Makes it equal to RowOutput(). Keeps the memory of its lists.
  void Clear() {
    error = RowFault::kNone;
    error_token = token = kept = temperature = 0;
    accepted = false;
    survival = sampler_state = 0;
    for (Distribution* const distribution : {&raw, &processed, &tempered}) distribution->Clear();
    mass = {};
    race = {};
    entropy = {};
    kept_tokens.clear();
  }
};

}  // namespace sortition::kernels
