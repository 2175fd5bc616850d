// Local sequences whose rows lie in the memory of a CUDA device: sampled there, with the same tokens and bits.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/local/local_text.h"
#include "devices/cuda/lane.h"
#include "sortition/batch.h"
#include "sortition/local_sequence.h"

namespace sortition::client {

// Thread-safe; batches take their turns.
class LocalCuda {
 public:
  // The device of that number in the driver's order, in its primary context, which CUDA's runtime uses, too. Blocks for
  // as long as the driver takes to load the kernels. NOT_FOUND: no driver, no such device; FAILED_PRECONDITION: a
  // driver that is too old, a build without CUDA kernels.
  static absl::StatusOr<std::unique_ptr<LocalCuda>> Create(int device);
  static absl::StatusOr<std::unique_ptr<LocalCuda>> CreateOn(std::shared_ptr<devices::cuda::Context> context);

  // As LocalSequence::Step for each row, `rows[i]` for `sequences[i]`: logits in the device's memory, masks and drafts
  // in the host's. The kernels begin after the work already queued on the caller's stream (null: the default stream),
  // and their answers are awaited. Rows that begin at multiples of 16 bytes are read in place; others are moved first,
  // within the device.
  //
  // An error concerns all rows, and leaves the sequences as they were. INVALID_ARGUMENT: memory that is not the
  // device's, a sequence that is named twice; FAILED_PRECONDITION: the stream captures a graph; UNAVAILABLE: the device
  // is lost to this process.
  absl::StatusOr<std::vector<RowResult>> Step(v1::DType dtype, std::span<LocalSequence* const> sequences,
                                              std::span<const Row> rows, CUstream_st* stream,
                                              v1::DType draft_dtype = v1::DTYPE_F32);

 private:
  LocalCuda(std::shared_ptr<devices::cuda::Context> context, std::unique_ptr<devices::cuda::Lane> lane);
  // A row of the step that the host has not refused, and the device's next requests for it.
  struct Begun {
    uint32_t index = 0;
    LocalText::Requests requests;
  };
  absl::Status Answer(std::span<LocalSequence* const> sequences, std::vector<Begun>* begun)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Check(std::span<LocalSequence* const> sequences, std::span<const Row> rows) const;

  const std::shared_ptr<devices::cuda::Context> context_;
  absl::Mutex mutex_;
  const std::unique_ptr<devices::cuda::Lane> lane_ ABSL_PT_GUARDED_BY(mutex_);
};

}  // namespace sortition::client
