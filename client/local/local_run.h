// One step of a local sequence, of any kind: judged, laid out and answered by the service's own code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "kernels/row.h"
#include "service/refusal.h"
#include "service/row/row.h"
#include "service/sequence/sequence_state.h"
#include "sortition/batch.h"
#include "sortition/local_sequence.h"

namespace sortition::client {

// Converts a refusal of the service's code to the client's error.
RowError ToRowError(const service::Refusal& refusal);

// State of a sequence before a step.
struct LocalPlace {
  uint32_t position = 0;
  uint64_t sampler_state = 0;
  service::SequenceState* state = nullptr;  // null: no option looks at the history
};

// Not thread-safe. Refers to the data of the row.
class LocalRun {
 public:
  using Requests = std::vector<kernels::RowRequest>;

  // The state is the same afterwards, and nothing is lent that it would have to get back.
  static std::variant<std::unique_ptr<LocalRun>, service::Refusal> Begin(
      std::shared_ptr<const service::SequenceSpec> spec, const LocalPlace& place, v1::DType dtype, const Row& row,
      const LocalStepOptions& options);

  // Returns the first requests to the kernels; they refer to this object.
  Requests First();
  // Takes the answers to the last requests, in their order, and returns what follows from them: nothing at the end.
  Requests Continue(std::span<kernels::RowOutput> answers);
  // After the end; once.
  std::variant<service::RowResult, service::Refusal> Finish() { return run_.Commit(); }

  // Converts the result to that of a server's complete answer.
  RowResult Encode(const service::RowResult& result) const;

  const service::RowPlan& plan() const { return run_.plan(); }

 private:
  LocalRun(service::RowRun run, v1::DType dtype, const Row& row, const LocalStepOptions& options);
  kernels::RowRequest RequestAt(uint32_t index) const;

  service::RowRun run_;
  const kernels::DType dtype_;
  const std::byte* const logits_;
  const kernels::DType draft_dtype_;
  const std::byte* const probabilities_;
  std::vector<uint32_t> asked_;  // positions of the last requests
};

}  // namespace sortition::client
