// Parts of a step's rows from Python: drafts (sortition.Drafts), tokens to be scored, banned tokens, salts.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/python/native/tensor.h"
#include "sortition/batch.h"

namespace sortition::python {

// Contains references to itself: may be moved, not copied. To be destroyed under the GIL.
class Tasks {
 public:
  // Reads the lists of sortition.step.row_tasks, with an entry for each of `count` rows, which may be None; each of the
  // lists may be None as a whole. Raises TypeError or ValueError for tasks that are invalid for any row. The service
  // refuses tasks that are invalid for the sequence.
  Tasks(nanobind::tuple lists, size_t count);
  Tasks() = default;  // every row draws
  Tasks(Tasks&&) = default;

  // Numbers of rows of logits, and of masks, that each row takes; empty: one each.
  const std::vector<size_t>& positions() const { return positions_; }
  const std::vector<size_t>& masks() const { return masks_; }
  v1::DType draft_dtype() const { return draft_dtype_; }
  // Raises ValueError if drafters' probabilities do not have `width` tokens.
  void CheckWidth(uint32_t width) const;
  // Returns row `index` without its sequence, logits and mask. It refers to this object.
  client::Row RowOf(size_t index) const { return tasks_.empty() ? client::Row() : tasks_[index].row; }

 private:
  struct Task {
    std::vector<uint32_t> tokens;
    std::vector<int32_t> parents;
    std::vector<v1::SparseProbabilities> sparse;
    client::Drafts drafts;
    std::vector<std::vector<uint32_t>> requested;  // one a scored token
    std::vector<std::vector<uint32_t>> banned;     // one a position, or one for all
    client::Row row;                               // refers to the others
  };
  void ReadDrafts(nanobind::handle drafts, size_t index);
  void ReadProbabilities(nanobind::handle probabilities, size_t index);

  std::vector<Task> tasks_;  // empty: all rows draw, without bans and salts
  std::vector<size_t> positions_;
  std::vector<size_t> masks_;
  v1::DType draft_dtype_ = v1::DTYPE_F32;
  std::vector<Tensor> keep_;
};

}  // namespace sortition::python
