// Tokens and log probabilities in a CUDA device's memory, for work that is queued before they are known.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "client/cpp/cuda/cuda_results.h"
#include "sortition/client.h"

namespace sortition::python {

void BindCudaResults(nanobind::module_& module);

// The memory of a sortition.CudaResults, used by one step at a time. Thread-safe.
class ResultsMemory {
 public:
  explicit ResultsMemory(std::unique_ptr<client::CudaResults> results) : results_(std::move(results)) {}

  const client::CudaResults& get() const { return *results_; }
  // As client::CudaResults::StepAsync, and FAILED_PRECONDITION while another step uses the memory. `done` must call
  // EndStep and keep this object alive until then. Called without the GIL.
  absl::Status StepAsync(client::Client* client, const client::Batch& batch, const client::StepOptions& options,
                         uint64_t stream, client::Client::StepDone done);
  void EndStep() { is_under_way_ = false; }

 private:
  const std::unique_ptr<client::CudaResults> results_;
  std::atomic<bool> is_under_way_ = false;
};

// sortition.CudaResults.
struct CudaResults {
  int device;
  std::shared_ptr<ResultsMemory> memory;
};

}  // namespace sortition::python
