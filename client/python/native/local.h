// Sequences that are sampled in this process, as Python holds them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/local/cuda_stream.h"
#include "client/local/local_cuda.h"
#include "nanobind/nanobind.h"
#include "sortition/local_sequence.h"

namespace sortition::python {

// A sequence with a lock: steps run without the GIL, so two threads of Python may use it at the same time.
class LocalHandle : public std::enable_shared_from_this<LocalHandle> {
 public:
  LocalHandle(std::unique_ptr<client::LocalSequence> handle, std::string request_id);

  const std::string& request_id() const { return request_id_; }
  uint32_t vocabulary_size() const { return vocabulary_size_; }

  // Runs `use`, which must not touch Python, under the lock. Called with the GIL, which it releases.
  template <typename Use>
  auto With(Use use) const {
    nanobind::gil_scoped_release released;
    absl::MutexLock lock(&mutex_);
    return use(*handle_);
  }
  // Runs `rewrite` as With does. FAILED_PRECONDITION: the sequence is in a row of a CudaStream.
  template <typename Rewrite>
  absl::Status Change(Rewrite rewrite) const {
    nanobind::gil_scoped_release released;
    absl::MutexLock lock(&mutex_);
    const absl::Status status = CheckFree();
    return status.ok() ? rewrite(*handle_) : status;
  }

  // The next functions are called without the GIL.

  // As client::LocalSequence::Step.
  client::RowResult Step(v1::DType dtype, const client::Row& row, const client::LocalStepOptions& options) const;
  // As client::LocalCuda::Step, for distinct handles.
  static absl::StatusOr<std::vector<client::RowResult>> StepOn(client::LocalCuda* cuda, v1::DType dtype,
                                                               const std::vector<const LocalHandle*>& handles,
                                                               const std::vector<client::Row>& rows,
                                                               CUstream_st* stream, v1::DType draft_dtype);
  // Puts the sequence into a row of a stream, as client::CudaStream::Put, until Leave.
  absl::Status PutOn(client::CudaStream* stream, uint32_t row) const;
  void Leave() const;

  // Locks handles during its life, in one order, which avoids deadlock. They are distinct.
  class Lock {
   public:
    explicit Lock(std::vector<const LocalHandle*> handles);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    std::vector<const LocalHandle*> handles_;
  };

 private:
  absl::Status CheckFree() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string request_id_;
  const uint32_t vocabulary_size_;
  mutable absl::Mutex mutex_;
  const std::shared_ptr<client::LocalSequence> handle_;  // used under mutex_
  mutable bool is_on_stream_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sortition::python
