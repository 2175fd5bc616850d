// Words that say when the logits of a step are written, for steps that are sent earlier (client::Batch::ready).
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/cuda/cuda_ready.h"
#include "sortition/batch.h"
#include "sortition/client.h"

namespace sortition::python {

void BindReady(nanobind::module_& module);

// sortition.Ready: a counter in memory of a client, which Python raises. Used under the GIL; the word itself is also
// read by other threads and the server. Its memory lives until the last step that names it has ended.
class Ready {
 public:
  explicit Ready(client::Client::RowMemory memory);

  bool shared() const { return memory_.shared; }
  uint32_t Expect() { return ++expected_; }
  bool IsSet(uint32_t value) const { return Word(value).IsSet(); }
  // Raises ValueError if an earlier value is not set, because a later value includes the earlier ones.
  void Set(uint32_t value);
  client::ReadyWord Word(uint32_t value) const;

 private:
  const client::Client::RowMemory memory_;
  uint32_t expected_;  // the last value that was handed out
};

// sortition.ReadyWord: one value of a Ready.
struct ReadyWord {
  std::shared_ptr<Ready> ready;
  uint32_t value;
};

// sortition.CudaReady. Thread-safe.
class CudaReady {
 public:
  CudaReady(int device, bool shared, std::unique_ptr<client::CudaReady> ready)
      : device_(device), shared_(shared), ready_(std::move(ready)) {}

  int device() const { return device_; }
  bool shared() const { return shared_; }
  // As client::CudaReady::Raise, and INVALID_ARGUMENT if another stream has raised the word. Called without the GIL.
  absl::StatusOr<client::ReadyWord> Raise(uint64_t stream);

 private:
  const int device_;
  const bool shared_;
  absl::Mutex mutex_;
  const std::unique_ptr<client::CudaReady> ready_ ABSL_PT_GUARDED_BY(mutex_);
  std::optional<uint64_t> stream_ ABSL_GUARDED_BY(mutex_);  // the stream that raises the word
};

// Make the objects for Python, whose last reference may be dropped on any thread.
std::shared_ptr<Ready> MakeReady(client::Client::RowMemory memory);
// Raises sortition.Error.
std::shared_ptr<CudaReady> MakeCudaReady(int device, client::Client::RowMemory memory);

// The `ready` of a step: None, a ReadyWord or a CudaReady. Keeps the word's memory.
class Readiness {
 public:
  // Raises TypeError.
  static Readiness Read(nanobind::handle ready);

  bool is_given() const { return word_.has_value() || cuda_ != nullptr; }
  // Names the word in the batch, having `stream` raise it if it is a stream's. Without the GIL.
  absl::Status Apply(uint64_t stream, client::Batch* batch) const;

 private:
  std::optional<ReadyWord> word_;
  std::shared_ptr<CudaReady> cuda_;
};

}  // namespace sortition::python
