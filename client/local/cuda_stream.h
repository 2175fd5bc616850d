// Local sequences in the rows of a batch on a CUDA stream: steps are queued and not awaited.
//
// The device advances each sequence by itself (client/sortition/sampler.h). So a worker queues a forward pass, the step
// and the next forward pass, which reads the tokens in the device's memory. The sequences follow when their results
// are awaited, any number of steps later, with the tokens and bits of LocalSequence::Step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/local/local_text.h"
#include "client/sortition/cuda_state.h"
#include "sortition/batch.h"
#include "sortition/local_sequence.h"

namespace sortition::client {

// A step's logits in the device's memory, one row after the other, aligned as in CudaBatch.
struct StreamStep {
  const void* logits = nullptr;
  uint64_t row_bytes = 0;
  v1::DType dtype = v1::DTYPE_BF16;
  // The stream's row for each row of logits, distinct, each with a sequence. kNoRow: that row of logits is not drawn
  // from. The stream's other rows stand still.
  std::span<const uint32_t> rows;
};

// A step that was queued. The addresses lie in the device's memory and have one element for each row of logits. Later
// work in the step's stream sees the results there. The step that is queued kMostTickets later overwrites them.
struct QueuedStep {
  uint64_t ticket = 0;
  const int32_t* tokens = nullptr;  // -1 where a row failed; unspecified at kNoRow
  const float* logprobs = nullptr;  // raw if wanted, else processed, else 0
};

// Thread-safe, except that a sequence in a row must not be used during Put and Await: these use it, too. One thread may
// queue steps while another waits: no call but Wait and Await waits for the device.
class CudaStream {
 public:
  static constexpr uint32_t kMostTickets = CudaSampler::kMostTickets;
  static constexpr uint32_t kNoRow = CudaSampler::kNoRow;
  using Ticket = uint64_t;

  // Makes a stream of `limits.rows` rows. Device and errors as for LocalCuda::Create, and INVALID_ARGUMENT for limits
  // out of range. `limits.edits` has room for a sequence's bias, its bans, and the tokens of its text.
  static absl::StatusOr<std::unique_ptr<CudaStream>> Create(int device, const CudaLimits& limits);
  static absl::StatusOr<std::unique_ptr<CudaStream>> CreateOn(std::shared_ptr<devices::cuda::Context> context,
                                                              const CudaLimits& limits);
  // Blocks until the device has done all its work. May run while an engine captures a graph.
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  // Puts a sequence into a row in place of the former one. Until Clear of the row the stream keeps and steps it, and
  // the caller may not step or change it. Results of earlier steps of the row are void: Await returns none for them.
  //
  // UNIMPLEMENTED names an option for which the host needs the former token first: DRY, no_repeat_ngram_size,
  // min_tokens, bad words of several tokens, phases, watermarks, banned phrases, a penalty scope. It also names those
  // that need the host's memory: allowed tokens, log probabilities by name, tempered ones, kept tokens, kept mass.
  // INVALID_ARGUMENT: beyond the limits, or another vocabulary than other rows'.
  absl::Status Put(uint32_t row, std::shared_ptr<LocalSequence> sequence);
  // Empties a row: its results that were not awaited are void.
  absl::Status Clear(uint32_t row);

  // Queues a step on `stream` (null: the default stream) of the device's primary context, and copies of its results.
  // All steps have one stream. Does not wait for the device, except while four uploads after changes of rows are under
  // way. INVALID_ARGUMENT as CudaSampler::Bind, and for a row without a sequence; FAILED_PRECONDITION: the stream
  // captures a graph; RESOURCE_EXHAUSTED: kMostTickets tickets were not awaited. After these nothing is queued. After
  // other errors the sequences must be put again.
  absl::StatusOr<QueuedStep> Step(const StreamStep& step, CUstream_st* stream);

  // Returns whether a step is done. Does not block.
  absl::StatusOr<bool> IsDone(Ticket ticket) const;
  // Blocks until a step is done, not for later ones, and changes nothing. A ticket that was awaited is done.
  absl::Status Wait(Ticket ticket) const;
  // Returns the results of a step, one for each row of its logits, and advances its sequences. Blocks as Wait. Steps
  // are awaited in the order in which they were queued. A row without a sequence, or with void results, has none. After
  // a row fails, its sequence stays as it was, and later steps of the row return the same error until Put. UNAVAILABLE:
  // the device is lost to this process.
  absl::StatusOr<std::vector<std::optional<RowResult>>> Await(Ticket ticket);

 private:
  struct Row {
    std::shared_ptr<LocalSequence> sequence;
    uint64_t put = 0;  // counts changes of all rows
  };
  // A row of a step's logits.
  struct Drawn {
    uint32_t row = kNoRow;
    uint64_t put = 0;
  };
  struct Queued {
    CudaTicket ticket;
    std::vector<Drawn> rows;
  };
  CudaStream(std::shared_ptr<devices::cuda::Context> context, std::unique_ptr<CudaSampler::State> sampler,
             const CudaLimits& limits);
  absl::Status Open();
  absl::Status CheckRows(const StreamStep& step) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the buffers of the step after those queued so far.
  QueuedStep NextBuffers() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns null if the ticket was awaited.
  devices::cuda::EventHandle DoneOf(Ticket ticket) const;

  const std::shared_ptr<devices::cuda::Context> context_;
  const CudaLimits limits_;
  devices::cuda::DevicePointer results_ = 0;  // tokens and logprobs, kMostTickets times
  mutable absl::Mutex mutex_;
  const std::unique_ptr<CudaSampler::State> sampler_ ABSL_PT_GUARDED_BY(mutex_);
  std::vector<Row> rows_ ABSL_GUARDED_BY(mutex_);
  std::vector<Queued> queued_ ABSL_GUARDED_BY(mutex_);
  uint64_t puts_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t steps_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t vocabulary_ ABSL_GUARDED_BY(mutex_) = 0;  // of the sequences
};

}  // namespace sortition::client
