// libsortition: sampling in the caller's process, of logits in a GPU's memory.
//
// It executes the same law as the service: tokens and log probabilities are equal bit for bit. No function here keeps
// or logs logits, tokens or seeds.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/compact_row.h"
#include "kernels/cuda/output.h"
#include "kernels/law/parameters.h"
#include "kernels/row.h"

// A CUDA stream: a cudaStream_t or a CUstream, which are the same type.
struct CUstream_st;

#define SORTITION_PUBLIC __attribute__((visibility("default")))

namespace sortition {

enum class StatusCode : uint8_t {
  kOk,
  kInvalidArgument,     // a mistake of the caller; the message names the argument and its limit
  kFailedPrecondition,  // not possible in this state, or with this driver or build
  kNotFound,            // no driver, no such device
  kResourceExhausted,   // memory
  kUnavailable,         // the device is lost to this process; only a new process can use it
  kInternal,
};

struct [[nodiscard]] Status {
  StatusCode code = StatusCode::kOk;
  std::string message;
  bool ok() const { return code == StatusCode::kOk; }
};

// The sampling parameters of a row, and the outputs requested besides the token.
struct RowOptions {
  law::SamplingParameters parameters;
  bool mask_nan = false;  // a NaN logit masks its token instead of failing the row
  bool raw_logprob = false;
  bool processed_logprob = false;
  uint32_t raw_top = 0;  // first tokens of that distribution, <= kernels::kMaxTopLogprobs
  uint32_t processed_top = 0;
  // Outputs of the processed distribution.
  bool entropy = false;
  bool kept_count = false;
  bool kept_tokens = false;
};

// Compiles options to the law's integers. kInvalidArgument names the option that is out of range. Pure and thread-safe.
SORTITION_PUBLIC Status Compile(const RowOptions& options, kernels::RowParameters* compiled);

// Return LogitEdit::penalty of a token that occurred `count` times, and LogitEdit::bias. Arguments must be in range
// (parameters.h).
SORTITION_PUBLIC uint32_t PenaltyBits(const law::SamplingParameters& parameters, uint32_t count);
SORTITION_PUBLIC uint32_t BiasBits(float bias);

// Returns the natural logarithm of the probability of a token with these bits (law/logprob.h). `temperature` is 1 for
// the raw distribution.
SORTITION_PUBLIC float Logprob(const kernels::Distribution& distribution, uint32_t token_bits, double temperature);

// Returns the temperature for Logprob of the processed distribution, with or without a sampler chain.
SORTITION_PUBLIC double ProcessedTemperature(const kernels::RowParameters& parameters,
                                             const kernels::RowOutput& output);

// The number of times that a token was drawn.
struct TokenCount {
  uint32_t token = 0;
  uint32_t count = 0;
};

// A copy of a step's outputs that is under way to the host.
struct CudaTicket {
  uint64_t number = 0;
};

// Upper bounds for which a CudaSampler allocates memory.
struct CudaLimits {
  uint32_t rows = 256;           // at most 65,535
  uint32_t vocabulary = 131072;  // live tokens of a row
  uint32_t edits = 0;            // a row's tokens with a penalty, bias or ban; also those a sequence draws
  uint32_t top = 0;              // first tokens of each distribution
  uint32_t kept = 0;             // kept tokens of a row that requests their list
};

// The addresses of a batch. All pointers are addresses in the memory of the sampler's device, not of the host, and
// multiples of 4 bytes at least. The memory must stay valid as long as launches use it.
struct CudaBatch {
  bool operator==(const CudaBatch&) const = default;

  const void* logits = nullptr;  // multiple of 16 bytes
  uint64_t row_bytes = 0;        // from one row to the next; multiple of 16
  kernels::DType dtype = kernels::DType::kBF16;
  uint32_t rows = 0;
  uint32_t vocabulary = 0;                 // live tokens; the rest of a row is padding
  const uint32_t* allowed_bits = nullptr;  // one bit a token, least significant first, set = allowed; null: all
  uint64_t allowed_words = 0;              // from one row's mask to the next's; 0: one mask for all
  const uint32_t* positions = nullptr;     // one a row, read when the kernels run; null: SetRow's
  int32_t* tokens = nullptr;               // one a row; -1 where the row failed
  float* logprobs = nullptr;               // one a row: raw if wanted, else processed, else 0; null: none
  // The whole output of each row except its kept tokens: error, both logprobs, ranks, counts. One a row, aligned to 8
  // bytes; null: only Download returns it.
  kernels::cuda::RawOutput* outputs = nullptr;
  // First tokens of the distributions, with logprobs, CudaLimits::top entries from one row to the next. The output's
  // top_count says how many are valid. Aligned to 8 bytes; null: only Download returns them.
  kernels::cuda::TopToken* raw_top = nullptr;
  kernels::cuda::TopToken* processed_top = nullptr;
  // For rows whose task is to score or to verify a token. All are read when the kernels run.
  const uint32_t* given = nullptr;  // one a row; a token >= `vocabulary` makes the row draw
  const void* draft = nullptr;      // a drafter's probability of each live token; null: it was certain
  uint64_t draft_row_bytes = 0;     // from one row to the next; multiple of 4
  kernels::DType draft_dtype = kernels::DType::kF32;
  int32_t* accepted =
      nullptr;  // for rows that verify and do not fail: 1 if the token is accepted, else 0; null: not wanted
};

// Samples batches of logits in a GPU's memory, on the caller's stream. Tokens and logprobs stay on the GPU, and the
// host does not wait.
//
//   sampler->Bind(batch);  sampler->SetRow(i, parameters, noise) for every row;  sampler->Upload(stream);
//   sampler->Sample(stream);  ...  sampler->Sample(stream);
//
// `Sample` is one kernel, plus one if a row needs sums over the whole vocabulary, plus one if a row has a sampler
// chain, requests its entropy or kept tokens, scores or verifies. It may be captured into a graph: replays read the
// current logits, masks and positions, and everything else as `Upload` left it. Penalties, biases and
// bans come by SetEdits and Upload, which copies those of changed rows. The states of mirostat and adaptive-p stay on
// the GPU: every Sample that does not fail the row continues from the state after the previous one.
//
// Sequences. After SetSequence the device carries a row from draw to draw. Each Sample counts the drawn token in the
// row's penalties and adds 1 to its position, on the device. So the next Sample may be queued before the host has seen
// the token, any number of times, and a captured Sample does the same at each replay.
//
// - Order: the n-th Sample of a row after its Upload is draw n of the sequence. Work in the same stream sees the tokens
// in that
//   order. Fetch and Await bring each step's outputs to the host, as late as the caller likes.
// - Lifetime: the device's counts, positions and sampler states last until SetRow of the row and the Upload after it.
// An
//   Upload for other rows leaves them as they are, also while steps are in progress.
// - Errors: a draw that fails (kernels::RowFault) ends its row's sequence and no other. All later draws of the row are
//   void: each answers with the error of the draw that ended it and with token -1, counts nothing, and leaves the
//   position as it is. SetRow and Upload begin anew.
// - kTooManyEdits: the token of the draw before was drawn and is valid, but CudaLimits::edits has no room to count it.
//   The draws after it are void.
// - The host is needed for options that depend on the order of tokens: DRY, penalties over a window, banned sequences
// of
//   tokens, phases, drafts. A row with them has no sequence: the caller waits for the token and calls SetEdits.
//
// Not thread-safe. A sampler's work must be in one stream at a time, because it shares memory. A sampler must not be
// destroyed while its work is in progress.
//
// Errors. kInvalidArgument: a count above the limits; a pointer that is not of this device, or not aligned; the null
// stream (CU_STREAM_LEGACY, too), which waits for all others and cannot be captured. kFailedPrecondition: Sample before
// Bind and Upload, Upload or Download while the stream captures, a driver that is too old, a build without CUDA
// kernels. kUnavailable: after a fault of any kernel of this process.
class SORTITION_PUBLIC CudaSampler {
 public:
  // Makes a sampler on device number `device` in the driver's order, in its primary context, which CUDA's runtime uses,
  // too. Blocks while the driver loads the kernels.
  static Status Create(int device, const CudaLimits& limits, std::unique_ptr<CudaSampler>* sampler);
  ~CudaSampler();
  CudaSampler(const CudaSampler&) = delete;
  CudaSampler& operator=(const CudaSampler&) = delete;

  // Sets the batch's addresses. The calls from here to Upload change only the host's memory. A batch that differs from
  // the one before in its tokens and logprobs alone needs no Upload.
  // `rows`: the sampler's row for each row of the batch, distinct; empty: 0, 1, .... The sampler's other rows are not
  // sampled, and stay as they are. kNoRow: that row of the batch has no sequence, and its outputs are unspecified.
  static constexpr uint32_t kNoRow = UINT32_MAX;
  Status Bind(const CudaBatch& batch, std::span<const uint32_t> rows = {});
  // Sets a row. `parameters` are compiled. The next Sample starts with the first state of its sampler chain. Ends the
  // row's sequence, and with it the row's edits.
  Status SetRow(uint32_t row, const kernels::RowParameters& parameters, const kernels::NoiseKey& noise);
  // Sets a row's task, initially kDraw. Others need CudaBatch::given.
  Status SetTask(uint32_t row, kernels::RowTask task);
  // Sets the state with which the next Sample starts: RowOutput::sampler_state of the step before it.
  Status SetSamplerState(uint32_t row, uint64_t state);
  // Sets all edits of the row, sorted by token, at most one a token. They stay until the next call.
  Status SetEdits(uint32_t row, std::span<const kernels::LogitEdit> edits);
  // Starts a sequence with the row's position, edits and sampler state, set before. `counts`: the tokens drawn so far
  // that penalties count, sorted by token. Only the three penalties of `parameters` are used. If all are off, no edits
  // are needed. The row's edits must have no penalty. SetEdits, SetTask and SetSamplerState of the row are
  // kFailedPrecondition until SetRow.
  Status SetSequence(uint32_t row, const law::SamplingParameters& parameters, std::span<const TokenCount> counts = {});

  // Queues the copies of all changes on the stream, before the launches that are to use them. Blocks only while four
  // earlier uploads are in progress.
  Status Upload(CUstream_st* stream);
  Status Sample(CUstream_st* stream);

  // Queues copies of the outputs of the last Sample to the host, and does not wait. At most kMostTickets are under way:
  // kResourceExhausted. kFailedPrecondition if a row requests its kept tokens, or if the stream captures.
  static constexpr uint32_t kMostTickets = 4;
  Status Fetch(CUstream_st* stream, CudaTicket* ticket);
  // Returns the outputs of a ticket, once, for all rows of its batch. Blocks until its copies are done, not for later
  // work. Tickets may be awaited in any order.
  Status Await(CudaTicket ticket, std::vector<kernels::RowOutput>* outputs);

  // Copies the outputs of the last Sample for the first `outputs.size()` rows. Blocks until the stream is done.
  Status Download(CUstream_st* stream, std::span<kernels::RowOutput> outputs);

  struct State;
  // For callers with their own driver; see cuda_state.h.
  explicit CudaSampler(std::unique_ptr<State> state);

 private:
  const std::unique_ptr<State> state_;
};

// Upper bounds for which a CudaProducer allocates memory.
struct CudaProducerLimits {
  uint32_t rows = 256;           // at most 65,535
  uint32_t vocabulary = 131072;  // live tokens of a row
  uint32_t first = 256;          // first tokens of a row, 1 to kernels::kMaxTopLogprobs - 1
};

// Rows in a GPU's memory, addressed as in CudaBatch.
struct CudaLogits {
  const void* logits = nullptr;
  uint64_t row_bytes = 0;
  kernels::DType dtype = kernels::DType::kBF16;
  uint32_t rows = 0;
  uint32_t vocabulary = 0;
};

// States compact rows (kernels/law/COMPACT.md) of logits in a GPU's memory, on the caller's stream: only the first
// tokens of each row leave the GPU, 12 bytes each. The bits are the same as on the CPU.
//
//   producer->State(stream, logits, parameters, sums);  ...  wait for the stream;  producer->Take(i, &row, &fails);
//
// The kernels are those of CudaSampler: one that reads the rows, and one more for sums. Not thread-safe. One statement
// is in progress at a time, in one stream. Must not be destroyed while it is. Errors as for CudaSampler.
class SORTITION_PUBLIC CudaProducer {
 public:
  // Makes a producer on device number `device` in the driver's order, as CudaSampler::Create does.
  static Status Create(int device, const CudaProducerLimits& limits, std::unique_ptr<CudaProducer>* producer);
  ~CudaProducer();
  CudaProducer(const CudaProducer&) = delete;
  CudaProducer& operator=(const CudaProducer&) = delete;

  // Queues the statement of rows. `parameters`: one a row; used are mask_nan and, for the sum, the temperature. `sums`:
  // states both sums; a row whose chain sets no temperature has one. Waits for the GPU only while four earlier
  // statements are in progress. Not in a stream that captures a graph.
  Status State(CUstream_st* stream, const CudaLogits& logits, std::span<const kernels::RowParameters> parameters,
               bool sums);

  // Sets `*stated` to a row of the last statement, which the stream has completed. `*fails`: the row fails with these
  // logits and has no compact form; then `*stated` is empty.
  Status Take(uint32_t row, kernels::StatedRow* stated, bool* fails) const;

  struct Memory;
  // For callers with their own driver; see cuda_producer.h.
  explicit CudaProducer(std::unique_ptr<Memory> memory);

 private:
  const std::unique_ptr<Memory> memory_;
};

}  // namespace sortition
