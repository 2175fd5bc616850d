// Tokens and log probabilities of steps in the memory of a CUDA device, for work that is queued before they are known:
// the next forward pass takes the tokens from there, and no thread of the worker waits for a step.
//
// With CudaReady, a step is a row of calls that all return at once: launch the forward pass; CudaReady::Raise;
// CudaResults::StepAsync; launch the next one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/batch.h"
#include "client/cpp/client.h"
#include "devices/cuda/context.h"
#include "devices/cuda/hardware.h"

namespace sortition::client {

// Holds the answers of one step: those of the next one take their place when they come, which is after the work that
// writes its logits where it is stepped by CudaReady. One that fails before is written right behind the step before,
// and work behind that one may find -1.
//
// Steps are written in their order: what is answered before an earlier step waits for that one's answer, so that no
// stream goes on before the answers that it waits for. StepAsync is called by one thread at a time, whichever; answers
// may come meanwhile, on any.
//
// The answers come by way of the host, so that they are there whoever gave them: the same device, another server, the
// client's fallback. What is written is the bits of the results.
class CudaResults {
 public:
  // For steps of up to `rows` rows, at least 1. `device` as CudaRows::Create has it, and the same errors.
  static absl::StatusOr<std::unique_ptr<CudaResults>> Create(int device, uint32_t rows);
  static absl::StatusOr<std::unique_ptr<CudaResults>> CreateOn(const devices::cuda::Api& api,
                                                               const devices::cuda::Hardware& hardware, uint32_t rows);
  // Blocks until the device has done all work of its primary context, some of which may use the memory. No step is
  // unanswered.
  ~CudaResults();
  CudaResults(const CudaResults&) = delete;
  CudaResults& operator=(const CudaResults&) = delete;

  // Addresses of the device, by the row of the batch. The token that was drawn, -1 where the row failed or was no draw;
  uint32_t rows() const { return rows_; }
  const int32_t* tokens() const;
  // its log probability: raw where asked for, else processed, else 0.
  const float* logprobs() const;

  // Client::StepAsync of a batch of at most rows() rows; what `stream`, of the device's primary context (null: the
  // default stream), gets to do from now on begins once the answers are in the memory, right before `done` is called.
  // That is on the thread that brings the last answer which they have waited for, maybe another client's; `done` may
  // step again, and destroy this where the device's work waits for no other step. It is called on a device that is
  // lost, too.
  // As with StepAsync, `done` is not called where the status is not OK. No answers are written then, and the stream
  // waits for no more than the steps before: INVALID_ARGUMENT as there, and for too many rows; FAILED_PRECONDITION: the
  // stream captures a graph; UNAVAILABLE: the device is lost to this process.
  absl::Status StepAsync(Client* client, const Batch& batch, const StepOptions& options, CUstream_st* stream,
                         Client::StepDone done);

 private:
  CudaResults(const devices::cuda::Api& api, const devices::cuda::Hardware& hardware, uint32_t rows)
      : api_(api), hardware_(hardware), rows_(rows) {}
  absl::Status Open();
  // The memory: tokens, log probabilities, then the word by which streams wait.
  uint64_t bytes() const { return uint64_t{rows_} * (sizeof(int32_t) + sizeof(float)); }

  struct StepResult {
    std::vector<RowResult> results;
    Client::StepDone done;
  };
  // A step whose value is not written, because it or one before it is not over.
  struct Unwritten {
    uint32_t value;
    bool is_over = false;
    std::optional<StepResult> result = std::nullopt;  // absent where it was refused
  };
  // The step of `value` is over; `answer` is absent where it was refused. Writes what can be written now.
  void End(uint32_t value, std::optional<StepResult> result) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Write(const Unwritten& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const devices::cuda::Api api_;
  const devices::cuda::Hardware hardware_;
  const uint32_t rows_;
  devices::cuda::ContextHandle context_ = nullptr;
  devices::cuda::StreamHandle stream_ = nullptr;  // of the writes
  devices::cuda::DevicePointer memory_ = 0;
  std::byte* staging_ = nullptr;                             // pinned
  uint32_t value_ = 0;                                       // that was expected last
  absl::Mutex mutex_;                                        // held over a write, and no callback
  std::deque<Unwritten> unwritten_ ABSL_GUARDED_BY(mutex_);  // in the order of their values
};

}  // namespace sortition::client
