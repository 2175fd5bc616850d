// Tokens and log probabilities of steps in the memory of a CUDA device, for work that is queued before they are known.
// The next forward pass reads the tokens there, and no thread of the worker waits for a step.
//
// With CudaReady, a step is a series of calls that return at once: launch the forward pass; CudaReady::Raise;
// CudaResults::StepAsync; launch the next forward pass.
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
#include "devices/cuda/context.h"
#include "devices/cuda/hardware.h"
#include "sortition/batch.h"
#include "sortition/client.h"

namespace sortition::client {

// Holds the results of one step. The next step's results overwrite them when they arrive: with CudaReady, after the
// work that writes that step's logits. A step that fails earlier is written directly after the step before it, so that
// work queued behind that step may read -1.
//
// Steps are written in their order: results that arrive before an earlier step's wait for these, so that no stream
// continues too early. One thread at a time may call StepAsync. Results may arrive at the same time, on any thread.
//
// The results are written by the host, so that it does not matter who computed them: the same device, another server or
// the client's fallback. Their bits are those of the client's results.
class CudaResults {
 public:
  // Makes room for steps of up to `rows` rows, at least 1. `device` and errors as for CudaRows::Create.
  static absl::StatusOr<std::unique_ptr<CudaResults>> Create(int device, uint32_t rows);
  static absl::StatusOr<std::unique_ptr<CudaResults>> CreateOn(const devices::cuda::Api& api,
                                                               const devices::cuda::Hardware& hardware, uint32_t rows);
  // Blocks until the device has done all work of its primary context, some of which may use the memory. All steps must
  // have ended.
  ~CudaResults();
  CudaResults(const CudaResults&) = delete;
  CudaResults& operator=(const CudaResults&) = delete;

  uint32_t rows() const { return rows_; }
  // Device address of the drawn tokens, by row of the batch; -1 if the row failed or was no draw.
  const int32_t* tokens() const;
  // Device address of their log probabilities: raw if requested, otherwise processed if requested, otherwise 0.
  const float* logprobs() const;

  // Calls Client::StepAsync with a batch of at most rows() rows. Work queued on `stream` after this call begins once
  // the results are in the memory, directly before `done` is called. The stream belongs to the device's primary
  // context; null is the default stream.
  //
  // `done` runs on the thread that brings the last of the results that this step waits for, maybe one of another
  // client. It may step again. It may destroy this object if no work of the device waits for another step. It is also
  // called if the device is lost.
  //
  // If the status is not OK, `done` is not called, no results are written, and the stream waits only for the steps
  // before. INVALID_ARGUMENT as in Client::StepAsync, and for too many rows; FAILED_PRECONDITION: the stream captures a
  // graph; UNAVAILABLE: the device is lost to this process.
  absl::Status StepAsync(Client* client, const Batch& batch, const StepOptions& options, CUstream_st* stream,
                         Client::StepDone done);

 private:
  CudaResults(const devices::cuda::Api& api, const devices::cuda::Hardware& hardware, uint32_t rows)
      : api_(api), hardware_(hardware), rows_(rows) {}
  absl::Status Open();
  // Size of tokens and log probabilities. The word for which streams wait lies behind them.
  uint64_t bytes() const { return uint64_t{rows_} * (sizeof(int32_t) + sizeof(float)); }

  struct StepResult {
    std::vector<RowResult> results;
    Client::StepDone done;
  };
  // A step whose value is not written, because it or an earlier one has not ended.
  struct Unwritten {
    uint32_t value;
    bool is_over = false;
    std::optional<StepResult> result = std::nullopt;  // absent if it was refused
  };
  // Ends the step of `value`; `result` is absent if it was refused. Writes the results that can be written now.
  void End(uint32_t value, std::optional<StepResult> result) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Write(const Unwritten& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const devices::cuda::Api api_;
  const devices::cuda::Hardware hardware_;
  const uint32_t rows_;
  devices::cuda::ContextHandle context_ = nullptr;
  devices::cuda::StreamHandle stream_ = nullptr;  // of the writes
  devices::cuda::DevicePointer memory_ = 0;
  std::byte* staging_ = nullptr;                             // pinned
  uint32_t value_ = 0;                                       // value of the last step
  absl::Mutex mutex_;                                        // held during a write, but not during a callback
  std::deque<Unwritten> unwritten_ ABSL_GUARDED_BY(mutex_);  // in the order of their values
};

}  // namespace sortition::client
