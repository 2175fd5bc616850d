// Layout of a batch in device memory, shared by host and kernels. Plain data; every pointer is the device's.
#pragma once

#include <cstdint>

#include "kernels/cuda/output.h"
#include "kernels/row.h"

#ifdef __CUDACC__
#define SORTITION_HOST_DEVICE __host__ __device__
#else
#define SORTITION_HOST_DEVICE
#endif

namespace sortition::kernels::cuda {

// Alignment in bytes of a row's logits.
inline constexpr uint32_t kLogitsAlignment = 16;

// Threads of a block; a row is read by several blocks, and the last of them to arrive samples it.
inline constexpr uint32_t kThreads = 256;

// Part of a row that a block reads, in groups of 64 tokens: a multiple of kTileGroups, which a warp reads at once.
inline constexpr uint32_t kTileGroups = 32;
inline constexpr uint32_t kMaxSectionGroups = 1024;

// The most kept tokens that a list on chip holds. Where more may be kept, the read leaves noise for the race.
inline constexpr uint32_t kMostListed = 1024;

// RowInput::flags
inline constexpr uint32_t kFlagMaskNan = 1;
inline constexpr uint32_t kFlagGreedy = 2;
inline constexpr uint32_t kFlagRaw = 4;        // wants the raw distribution
inline constexpr uint32_t kFlagProcessed = 8;  // wants the processed distribution
inline constexpr uint32_t kFlagOpenRace = 16;  // more tokens than fit a list may race: the read leaves groups' noise
inline constexpr uint32_t kFlagChained = 32;   // the third kernel samples the row, as `chained` says

// A row's input from the host. Fields without a comment are defined in kernels::RowParameters and NoiseKey.
struct RowInput {
  const void* logits = nullptr;           // kLogitsAlignment
  const uint32_t* allowed = nullptr;      // one bit a token, set = allowed; null: all
  const LogitEdit* edits = nullptr;       // sorted by token
  const uint32_t* position_at = nullptr;  // where the position stands when the kernels run; null: `position`
  uint32_t* scratch = nullptr;            // ScratchWords, 8-byte aligned
  struct TopToken* raw_top = nullptr;
  struct TopToken* processed_top = nullptr;
  double temperature = 1;
  DType dtype = DType::kF32;
  uint32_t vocabulary = 0;  // live tokens
  uint32_t edit_count = 0;
  uint32_t flags = 0;
  uint32_t multiplier = 0;
  int32_t exponent = 0;
  uint32_t window = 0;
  uint32_t min_p_distance = 0;
  uint32_t top_k = 0;  // below `vocabulary`
  uint32_t top_p = 0;
  uint32_t repetition = 0;
  uint32_t inverse_repetition = 0;
  uint32_t seed_low = 0;
  uint32_t seed_high = 0;
  uint32_t position = 0;
  uint32_t stream = 0;
  uint32_t raw_top_count = 0;  // room of `raw_top`
  uint32_t processed_top_count = 0;
  const struct ChainedInput* chained = nullptr;  // kFlagChained
};

// kernels::DraftDistribution in the device's memory.
struct DraftInput {
  DraftDistribution::Form form = DraftDistribution::Form::kCertain;
  DType dtype = DType::kF32;
  uint32_t sparse_count = 0;
  const void* dense = nullptr;  // aligned as its elements are
  const uint32_t* sparse_tokens = nullptr;
  const uint32_t* sparse_bits = nullptr;
};

// Additional input of a row that the first two kernels cannot serve; all its options are stages.
struct ChainedInput {
  Stage stages[kMaxStages];
  uint32_t stage_count = 0;
  RowTask task = RowTask::kDraw;
  uint32_t given = 0;
  const uint32_t* given_at = nullptr;  // where it stands when the kernel runs, or null; no token of the row: draws
  int32_t* accepted_at = nullptr;      // 1 where a verified draft is accepted, else 0; null: not wanted
  uint32_t requested_count = 0;
  const uint32_t* requested = nullptr;
  TokenPlace* raw_places = nullptr;        // of the requested tokens; null: not wanted
  TokenPlace* processed_places = nullptr;  // likewise
  TokenBits* kept = nullptr;               // in no order, with room for all; null: not wanted
  struct ChainedOutput* output = nullptr;
  uint64_t sampler_state = 0;
  uint64_t* sampler_state_at = nullptr;  // where the state is read and left for the next step; null: nowhere
  DraftInput draft;
  bool sums_entropy = false;
};

struct ChainedOutput {
  uint64_t sampler_state = 0;
  EntropySums entropy;
  uint32_t temperature = 0;
  uint32_t accepted = 0;
};

// Shift in LogitEdit::flags of a row with a sequence: this bit and those above it count the draws of the token.
inline constexpr uint32_t kDrawnShift = 2;
inline constexpr uint32_t kMostDrawn = (1u << 29) - 1;

// A sequence in device memory: the data that the device carries from one draw of a row to the next.
struct DeviceSequence {
  LogitEdit* edits = nullptr;  // sorted by token; null: the row has no sequence
  double minus_frequency = 0;  // a token drawn n times has the penalty minus_frequency * n - presence
  double presence = 0;
  uint32_t edit_count = 0;
  uint32_t most_edits = 0;           // room
  uint32_t position = 0;             // the next draw's
  uint32_t counts = 0;               // 1: drawn tokens are counted in `edits`
  RowFault error = RowFault::kNone;  // the error of the draw that ended the sequence; every later draw is void
  uint32_t error_token = 0;
};

// In SequenceView::order: the row of the batch has no sequence.
inline constexpr uint32_t kNoSequence = UINT32_MAX;

// The argument of the kernel that advances sequences.
struct SequenceView {
  DeviceSequence* sequences = nullptr;
  const uint32_t* order = nullptr;  // the index of each row's sequence; null: the row's own number
  RowInput* inputs = nullptr;
  RawOutput* outputs = nullptr;
  int32_t* tokens = nullptr;
  float* logprobs = nullptr;  // null: not wanted
  uint32_t follows_draw = 0;  // 0: only writes the sequences' state to the inputs
};

// State that blocks leave for one another, zeros before the first batch. Each launch leaves it ready for the next.
struct RowState {
  uint32_t read_arrivals = 0;
  uint32_t weigh_arrivals = 0;
  uint32_t sent_error = 0;     // complement of 2 * token + (0: NaN, 1: too large), for the first sent logit that fails
  uint32_t changed_error = 0;  // complement of the first token whose edit makes it too large
  uint32_t pending = 0;        // kPending bits: the work of later kernels
  uint32_t max_key = 0;        // after changes
  uint32_t raw_max_key = 0;
  uint32_t token = 0;
  uint32_t token_key = 0;
  uint32_t floor = 0;       // the smallest key that min-p keeps
  uint32_t top_p_step = 0;  // kStep; for tests
  // Sums of the second kernel.
  uint32_t raw_before = 0;  // tokens before the chosen one
  uint32_t processed_count = 0;
  uint64_t processed_before = 0;  // likewise; with kPendingSample their weights
  uint64_t raw_sum = 0;
  uint64_t processed_sum = 0;
};

// RowState::top_p_step: what tells whether top-p alone keeps the race's winner, the cheapest first.
inline constexpr uint32_t kStepGroups = 1;   // the weights of the groups that reach the winner
inline constexpr uint32_t kStepMaxima = 2;   // and the other groups' largest weights
inline constexpr uint32_t kStepLeading = 3;  // the weights of the leading groups, and the others' largest ones
inline constexpr uint32_t kStepRow = 4;      // the row's weights, by the second kernel
inline constexpr uint32_t kStepDropped = 8;  // added: the winner was not kept, and the race of a list came next

// RowState::pending
inline constexpr uint32_t kPendingSample = 1;  // the draw: top-p needs the row's sum. `token` is drawn if it is kept.
inline constexpr uint32_t kPendingProcessed = 2;
inline constexpr uint32_t kPendingRaw = 4;
inline constexpr uint32_t kPendingChain = 8;  // all but the row's raw sum is left to the third

// The kernels' one argument.
struct BatchView {
  const RowInput* inputs = nullptr;
  RowState* states = nullptr;
  RawOutput* outputs = nullptr;
  int32_t* tokens = nullptr;  // one a row, -1 where the row failed; null: not wanted
  float* logprobs = nullptr;  // one a row: raw if wanted, else processed, else 0; null: none
  uint32_t section_groups = 0;
};

SORTITION_HOST_DEVICE inline uint32_t GroupsOf(uint32_t vocabulary) { return (vocabulary + 63) / 64; }

// A row's areas in its scratch, in words.
struct ScratchLayout {
  uint32_t noise;       // two a group: bounds of its noise; then of its race keys, where these do not fit on chip
  uint32_t maxima;      // a group's largest key, of tokens that show their sent logit
  uint32_t raw_maxima;  // the same over all tokens, if the two differ
  uint32_t visible;     // one bit a token: shows its sent logit; for rows with edits
  uint32_t lists;       // two lists of groups, u16
  uint32_t edit_keys;
  uint32_t words;
};

SORTITION_HOST_DEVICE inline ScratchLayout LayScratch(uint32_t groups, uint32_t edits) {
  ScratchLayout layout;
  layout.noise = 0;
  layout.maxima = 2 * groups;
  layout.raw_maxima = 3 * groups;
  layout.visible = 4 * groups;
  layout.lists = 6 * groups;
  layout.edit_keys = 7 * groups;
  layout.words = (7 * groups + edits + 3) / 4 * 4;
  return layout;
}

}  // namespace sortition::kernels::cuda
