// Tokens and log probabilities in a CUDA device's memory, for work that is queued before they are known.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "client/cpp/client.h"
#include "client/cpp/cuda_answers.h"

namespace sortition::python {

void BindAnswers(nanobind::module_& module);

// sortition.CudaAnswers, without what Python has of it: of one step at a time. Thread-safe.
class AnswersMemory {
 public:
  explicit AnswersMemory(std::unique_ptr<client::CudaAnswers> answers) : answers_(std::move(answers)) {}

  const client::CudaAnswers& get() const { return *answers_; }
  // As client::CudaAnswers::StepAsync; FAILED_PRECONDITION while another step is not over. `done` calls EndStep, and
  // keeps this. Without the GIL.
  absl::Status StepAsync(client::Client* client, const client::Batch& batch, const client::StepOptions& options,
                         uint64_t stream, client::Client::StepDone done);
  void EndStep() { is_under_way_ = false; }

 private:
  const std::unique_ptr<client::CudaAnswers> answers_;
  std::atomic<bool> is_under_way_ = false;
};

// sortition.CudaAnswers.
struct CudaAnswers {
  int device;
  std::shared_ptr<AnswersMemory> memory;
};

}  // namespace sortition::python
