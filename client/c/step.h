// A step: the caller's batch as the C++ classes take it, and results as the caller takes them.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/c/objects.h"

namespace sortition::c {

// A batch, with the data that its rows refer to and the caller does not own. May be moved, not copied.
struct StepInput {
  struct Task {
    client::Drafts drafts;
    std::vector<v1::SparseProbabilities> sparse;
  };
  client::Batch batch;  // rows of local sequences have no `sequence`
  std::vector<std::shared_ptr<Sequence>> sequences;
  std::vector<std::unique_ptr<Task>> tasks;  // of rows with drafts
  // The lists of each row with banned tokens; the first list of a row is not empty.
  std::vector<std::unique_ptr<std::vector<std::vector<uint32_t>>>> bans;
};

// Reads the caller's structs. All rows are of local sequences, or none is.
absl::StatusOr<StepInput> ReadBatch(const sortition_batch* given, bool local);

// Returns the results as structs, which the caller frees.
sortition_results* MakeResults(std::vector<client::RowResult> results);

}  // namespace sortition::c
