// Local sequences in the rows of a batch on a CUDA stream: steps are queued and not awaited.
//
// The device advances each sequence by itself (client/sortition/sampler.h). So a worker queues a forward pass, the step
// and the next forward pass, which reads the tokens in the device's memory. The sequences follow when their results
// are awaited, any number of steps later, with the tokens and bits of LocalSequence::Step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/own_sequence.h"
#include "client/sortition/cuda_state.h"
#include "sortition/batch.h"
#include "sortition/local_sequence.h"

namespace sortition::client {

// A step's memory on the device, as in CudaBatch. One row of logits for each row of the stream, one after the other.
struct StreamStep {
  const void* logits = nullptr;
  uint64_t row_bytes = 0;
  v1::DType dtype = v1::DTYPE_BF16;
  int32_t* tokens = nullptr;  // -1 where a row failed; unspecified where it has no sequence
  float* logprobs = nullptr;  // null: not wanted
};

// Not thread-safe.
class CudaStream {
 public:
  static constexpr uint32_t kMostTickets = CudaSampler::kMostTickets;
  using Ticket = uint64_t;

  // Makes a stream of `limits.rows` rows, all of which are sampled by each step. Device and errors are those of
  // LocalCuda::Create, and INVALID_ARGUMENT for limits out of range. `limits.edits` has room for a sequence's bias, its
  // bans, and the tokens of its text.
  static absl::StatusOr<std::unique_ptr<CudaStream>> Create(int device, const CudaLimits& limits);
  static absl::StatusOr<std::unique_ptr<CudaStream>> CreateOn(std::shared_ptr<devices::cuda::Context> context,
                                                              const CudaLimits& limits);
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  // Puts a sequence into a row, in the place of what was there. From now until Clear of the row its steps are those of
  // the stream, and the caller may not step or change it. The stream keeps it until then.
  // Results of earlier steps of the row are void: Await returns none for them.
  //
  // UNIMPLEMENTED names the option for which the host must have seen the token before: DRY, no_repeat_ngram_size,
  // min_tokens, bad words of several tokens, phases, watermarks, banned phrases, a penalty scope. It also names those
  // that need the host's memory: allowed tokens, log probabilities by name, tempered ones, kept tokens, kept mass.
  // INVALID_ARGUMENT: beyond the limits, or another vocabulary than that of other rows.
  absl::Status Put(uint32_t row, std::shared_ptr<LocalSequence> sequence);
  // Empties a row: its results that were not awaited are void.
  absl::Status Clear(uint32_t row);

  // Queues a step on `stream`, which belongs to the device's primary context and is not the null stream, and copies of
  // its results. Does not wait for the device, except while four uploads after changes of rows are under way.
  // INVALID_ARGUMENT as CudaSampler::Bind; FAILED_PRECONDITION: the stream captures a graph; RESOURCE_EXHAUSTED: as
  // many tickets as kMostTickets were not awaited. After these nothing is queued. After other errors the sequences must
  // be put again.
  absl::StatusOr<Ticket> Step(const StreamStep& step, CUstream_st* stream);

  // Returns the results of a step, one a row, and advances its sequences. Blocks until that step is done, not for later
  // ones. Steps are awaited in the order in which they were queued. A row without a sequence, or whose results are
  // void, has none. A row that fails ends there: its sequence stands where it stood, later steps of the row return the
  // same error, until Put. UNAVAILABLE: the device is lost to this process.
  absl::StatusOr<std::vector<std::optional<RowResult>>> Await(Ticket ticket);

 private:
  struct Row {
    std::shared_ptr<LocalSequence> sequence;
    uint64_t put = 0;  // counts changes of all rows
  };
  struct Queued {
    CudaTicket ticket;
    std::vector<uint64_t> puts;  // of the rows
  };
  explicit CudaStream(std::unique_ptr<CudaSampler::State> sampler, const CudaLimits& limits);
  absl::Status SetEmpty(uint32_t row);

  const CudaLimits limits_;
  const std::unique_ptr<CudaSampler::State> sampler_;
  std::vector<Row> rows_;
  std::vector<Queued> queued_;
  uint64_t puts_ = 0;
  StreamStep bound_;
  uint32_t vocabulary_ = 0;  // of the sequences
  bool is_changed_ = true;
};

}  // namespace sortition::client
