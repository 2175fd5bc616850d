// How many rows of a message still wait for their answers.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::service {

// Thread-safe.
class UnansweredRows {
 public:
  explicit UnansweredRows(uint32_t rows) : rows_(rows) {}

  // Hands answers to `send`, in messages of bounded size; with the last row's one it is said that no more follow.
  void Answer(v1::StepResults results, absl::FunctionRef<void(v1::StepResults message, bool last)> send);

 private:
  std::atomic<uint32_t> rows_;
};

}  // namespace sortition::service
