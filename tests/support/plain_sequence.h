// The plain form of a sequence: the whole history, and everything computed from it anew for every step by the law's
// reference. Tests compare the service with it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "kernels/row.h"
#include "sortition/v1/sampling.pb.h"

namespace sortition::testing {

class PlainSequence {
 public:
  // `open` as it was sent, with its seed and its whole history, if it has any. Only parameters that are built.
  explicit PlainSequence(const v1::OpenSequence& open);

  uint32_t position() const { return static_cast<uint32_t>(tokens_.size()); }
  uint32_t prompt_length() const { return prompt_length_; }
  const std::vector<uint32_t>& tokens() const { return tokens_; }
  uint64_t hash() const;

  // Additions of one step to the parameters.
  struct Row {
    kernels::DType dtype = kernels::DType::kF32;
    std::string_view logits;  // a tensor row as on the wire
    uint32_t draw_salt = 0;
    std::vector<bool> mask = {};                        // allowed ids; empty: none
    std::optional<std::vector<uint32_t>> allowed = {};  // the sparse form
    kernels::RowTask task = kernels::RowTask::kDraw;
    uint32_t given = 0;
    kernels::DraftDistribution draft = {};
    std::optional<uint64_t> sampler_state = {};  // absent: the first step's
    uint64_t survival = kernels::RowRequest::kNoBlock;
    std::vector<uint32_t> rivals = {};
  };
  // Returns the output of the law's reference for a row at `position`.
  kernels::RowOutput Answer(const Row& row, uint32_t position) const;
  // The answer that a step at `position` is due, as a message; `position` is also the history's length unless the
  // sequence is stateless. The history stays as it is.
  v1::DrawResult Draw(const Row& row, uint32_t position) const;
  v1::DrawResult Draw(const Row& row) const { return Draw(row, position()); }
  // An answer of a sequence with these options as a message.
  v1::DrawResult Encode(const kernels::RowOutput& answer) const;

  void Append(uint32_t token) { tokens_.push_back(token); }
  void TruncateTo(uint32_t position) {
    tokens_.resize(position);
    prompt_length_ = std::min(prompt_length_, position);
  }

 private:
  const v1::OpenSequence open_;
  uint32_t prompt_length_ = 0;
  std::vector<uint32_t> tokens_;
};

}  // namespace sortition::testing
