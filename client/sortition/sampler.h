// libsortition: sampling in the caller's own process, on its processor or on logits that lie in a GPU's memory.
//
// The same law and the same bits as the service: which of the two ways a token came can not be told from it. No
// function here keeps or logs logits, tokens or seeds.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/output.h"
#include "kernels/law/parameters.h"
#include "kernels/row.h"

// CUDA's stream: a cudaStream_t or a CUstream, which are the same.
struct CUstream_st;

#define SORTITION_PUBLIC __attribute__((visibility("default")))

namespace sortition {

enum class StatusCode : uint8_t {
  kOk,
  kInvalidArgument,     // the caller's mistake; the message names the argument and its limit
  kFailedPrecondition,  // not in this state, or not with this driver or build
  kNotFound,            // no driver, no such device
  kResourceExhausted,   // memory
  kUnavailable,         // the device is lost to this process: nothing but a new process brings it back
  kInternal,
};

struct [[nodiscard]] Status {
  StatusCode code = StatusCode::kOk;
  std::string message;
  bool ok() const { return code == StatusCode::kOk; }
};

// What a row is to be sampled with, and what is wanted of it beside the token.
struct RowOptions {
  law::SamplingParameters parameters;
  bool mask_nan = false;  // NaN counts as masked instead of failing the row
  bool raw_logprob = false;
  bool processed_logprob = false;
  uint32_t raw_top = 0;  // first tokens of that distribution, <= kernels::kMaxTopLogprobs
  uint32_t processed_top = 0;
  // Of the processed distribution.
  bool entropy = false;
  bool kept_count = false;
  bool kept_tokens = false;
};

// kInvalidArgument names the option that is out of range. Pure and thread-safe.
SORTITION_PUBLIC Status Compile(const RowOptions& options, kernels::RowParameters* compiled);

// LogitEdit::penalty of a token that occurred `count` times, and LogitEdit::bias. Arguments in range (parameters.h).
SORTITION_PUBLIC uint32_t PenaltyBits(const law::SamplingParameters& parameters, uint32_t count);
SORTITION_PUBLIC uint32_t BiasBits(float bias);

// ln of the probability of a token of these bits (law/logprob.h); temperature 1 for the raw distribution.
SORTITION_PUBLIC float Logprob(const kernels::Distribution& distribution, uint32_t token_bits, double temperature);

// The temperature for Logprob of the processed distribution, whatever the chain.
SORTITION_PUBLIC double ProcessedTemperature(const kernels::RowParameters& parameters,
                                             const kernels::RowOutput& answer);

// Samples rows in the host's memory. Not thread-safe: one for each thread. Blocks for the time of the computation.
class SORTITION_PUBLIC CpuSampler {
 public:
  CpuSampler();
  ~CpuSampler();
  CpuSampler(const CpuSampler&) = delete;
  CpuSampler& operator=(const CpuSampler&) = delete;

  // kInvalidArgument if the request breaks a promise of kernels/row.h; a row that fails says so in `answer->error`.
  Status Sample(const kernels::RowRequest& request, kernels::RowOutput* answer);

 private:
  struct Memory;
  const std::unique_ptr<Memory> memory_;
};

// What a CudaSampler has memory for.
struct CudaLimits {
  uint32_t rows = 256;           // at most 65,535
  uint32_t vocabulary = 131072;  // live tokens of a row
  uint32_t edits = 0;            // tokens of a row that penalties, bias or bans name
  uint32_t top = 0;              // first tokens of each distribution
  uint32_t kept = 0;             // tokens that a row may keep which wants them listed
};

// Where a batch lies. All pointers are of the sampler's device, its own memory and not the host's, and multiples of 4
// bytes at least; what they refer to stays in place as long as launches use it.
struct CudaBatch {
  const void* logits = nullptr;  // multiple of 16 bytes
  uint64_t row_bytes = 0;        // from one row to the next; multiple of 16
  kernels::DType dtype = kernels::DType::kBF16;
  uint32_t rows = 0;
  uint32_t vocabulary = 0;                 // live tokens; the rest of a row is padding
  const uint32_t* allowed_bits = nullptr;  // one bit a token, least significant first, set = allowed; null: all
  uint64_t allowed_words = 0;              // from one row's mask to the next's; 0: one mask for all
  const uint32_t* positions = nullptr;     // one a row, read when the kernels run; null: SetRow's
  int32_t* tokens = nullptr;               // one a row; -1 where the row failed
  float* logprobs = nullptr;               // one a row: raw where asked for, else processed, else 0; null: not wanted
  // All that is known of each row but its kept tokens: its error, both logprobs, ranks, counts. One a row, a multiple
  // of 8 bytes; null: only Download has it.
  kernels::cuda::RawOutput* outputs = nullptr;
  // First tokens of the distributions, with logprobs, CudaLimits::top from one row to the next, a row's top_count of
  // its output valid. Likewise.
  kernels::cuda::TopToken* raw_top = nullptr;
  kernels::cuda::TopToken* processed_top = nullptr;
  // Of rows whose task is to score or to verify a token; all are read when the kernels run.
  const uint32_t* given = nullptr;  // that token, one a row; a row with one that is not below `vocabulary` draws
  const void* draft = nullptr;      // a drafter's probabilities, as many as live tokens; null: it was certain
  uint64_t draft_row_bytes = 0;     // from one row to the next; multiple of 4
  kernels::DType draft_dtype = kernels::DType::kF32;
  int32_t* accepted = nullptr;  // of rows that verify and do not fail: 1 where the token is accepted, else 0; or null
};

// Samples batches of logits that lie in a GPU's memory, on the caller's stream: tokens and logprobs stay on the GPU,
// and the host waits for nothing.
//
//   sampler->Bind(batch);  sampler->SetRow(i, parameters, noise) for every row;  sampler->Upload(stream);
//   sampler->Sample(stream);  ...  sampler->Sample(stream);
//
// `Sample` is one kernel, one more where a row needs sums over the whole vocabulary, one more where one has a chain or
// wants its entropy or kept tokens, scores or verifies. It may be captured into a graph: its replays read logits, masks
// and positions as they then are, and everything else as `Upload` left it. Penalties follow by SetEdits or
// ChangeEdits, and Upload, which moves only what changed. What mirostat and adaptive-p carry from step to step stays
// on the GPU: every Sample that does not fail the row goes on from what the one before it left.
//
// Not thread-safe. The work of one sampler belongs into one stream at a time: it shares memory. It must not be
// destroyed while any is under way.
//
// Errors. kInvalidArgument: a count above the limits; a pointer that is not of this device, or not
// aligned; the null stream (CU_STREAM_LEGACY, too), which waits for all others and cannot be captured.
// kFailedPrecondition: Sample before Bind and Upload, Upload or Download while the stream captures, a driver that is
// too old, a build without CUDA kernels. kUnavailable: after a fault of any kernel of this process.
class SORTITION_PUBLIC CudaSampler {
 public:
  // On the device of that number in the driver's order, in its primary context (the one that CUDA's runtime uses).
  // Blocks for as long as the driver takes to load the kernels.
  static Status Create(int device, const CudaLimits& limits, std::unique_ptr<CudaSampler>* sampler);
  ~CudaSampler();
  CudaSampler(const CudaSampler&) = delete;
  CudaSampler& operator=(const CudaSampler&) = delete;

  // From here to Upload nothing but the host's memory is touched.
  Status Bind(const CudaBatch& batch);
  // `parameters`: compiled. The next Sample begins with its chain's first sampler state.
  Status SetRow(uint32_t row, const kernels::RowParameters& parameters, const kernels::NoiseKey& noise);
  // kDraw at first. Others need CudaBatch::given.
  Status SetTask(uint32_t row, kernels::RowTask task);
  // The next Sample begins with this state: RowOutput::sampler_state of the step before it.
  Status SetSamplerState(uint32_t row, uint64_t state);
  // All of the row's edits, sorted by token, no token twice; they stay until the next call.
  Status SetEdits(uint32_t row, std::span<const kernels::LogitEdit> edits);
  // Of the row's edits those of these tokens, sorted by token, no token twice: each is put in the place of the one
  // that was, or added; one that changes nothing (no flags, bias or penalty) takes its token's away. `Upload` moves
  // these alone, 16 bytes each, and a kernel merges them into the row's others, which stay on the GPU.
  Status ChangeEdits(uint32_t row, std::span<const kernels::LogitEdit> changes);

  // Puts what changed into the stream, ahead of the launches that are to see it. Waits only if four uploads before it
  // are still under way.
  Status Upload(CUstream_st* stream);
  Status Sample(CUstream_st* stream);

  // Everything that the last Sample said of the first `answers.size()` rows. Waits for the stream.
  Status Download(CUstream_st* stream, std::span<kernels::RowOutput> answers);

  struct State;
  // For those who have a driver of their own; see cuda_state.h.
  explicit CudaSampler(std::unique_ptr<State> state);

 private:
  const std::unique_ptr<State> state_;
};

}  // namespace sortition
