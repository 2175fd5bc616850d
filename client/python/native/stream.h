// Steps of local sequences that are queued on a CUDA stream and collected later.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/local/cuda_stream.h"
#include "client/python/native/local.h"

namespace sortition::python {

void BindStream(nanobind::module_& module);

// The rows of a client::CudaStream, with the handles of their sequences. Thread-safe. Called without the GIL.
class StreamRows {
 public:
  // A step; after Collect, also its results.
  struct Step {
    client::QueuedStep queued;
    std::vector<std::shared_ptr<const LocalHandle>> handles;  // of the rows that draw
    uint32_t count = 0;                                       // rows of logits
    bool is_collected = false;
    absl::Status status;
    std::vector<std::optional<client::RowResult>> results;
  };

  StreamRows(std::unique_ptr<client::CudaStream> stream, uint32_t rows) : stream_(std::move(stream)), handles_(rows) {}
  // Blocks until the device has done all its work. Steps that were not collected are lost to their sequences.
  ~StreamRows();

  absl::Status Put(uint32_t row, std::shared_ptr<const LocalHandle> handle);
  absl::Status Clear(uint32_t row);
  absl::StatusOr<std::shared_ptr<Step>> Queue(const client::StreamStep& step, CUstream_st* stream);
  absl::StatusOr<bool> IsDone(const Step& step) const;
  // Blocks until a step is done. Collects it, and those queued before it, unless they were collected.
  void Collect(const Step& step);
  // Collects all steps and empties all rows. Everything that is queued later is FAILED_PRECONDITION.
  void Close();

 private:
  absl::Status CheckOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRow(uint32_t row) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(uint32_t row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<client::CudaStream> stream_;
  mutable absl::Mutex mutex_;
  std::vector<std::shared_ptr<const LocalHandle>> handles_ ABSL_GUARDED_BY(mutex_);  // by row; null: empty
  std::deque<std::shared_ptr<Step>> under_way_ ABSL_GUARDED_BY(mutex_);
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sortition::python
