// Sequences that the kernel advances, without a GPU, and the counts that it has to make.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/layout.h"
#include "kernels/law/parameters.h"
#include "tests/cuda/emulated_kernels.h"

namespace sortition::testing {

inline constexpr uint32_t kSequenceRows = 3;
inline constexpr uint32_t kMostSequenceEdits = 700;
inline constexpr uint32_t kSequenceTokens = 5000;

// Rows with sequences, in memory that the kernel may touch.
class EmulatedSequences {
 public:
  EmulatedSequences()
      : edits_(kSequenceRows * kMostSequenceEdits),
        sequences_(kSequenceRows),
        inputs_(kSequenceRows),
        outputs_(kSequenceRows),
        tokens_(kSequenceRows) {
    view_.sequences = sequences_.data();
    view_.inputs = inputs_.data();
    view_.outputs = outputs_.data();
    view_.tokens = tokens_.data();
    memory_ = {RangeOf(edits_, false), RangeOf(sequences_), RangeOf(inputs_), RangeOf(outputs_), RangeOf(tokens_)};
    for (kernels::cuda::RowInput& input : inputs_) input.vocabulary = kSequenceTokens;
  }

  void Start(uint32_t row, float frequency, float presence, uint32_t most) {
    sequences_[row] = {.edits = &edits_[row * kMostSequenceEdits],
                       .minus_frequency = -double(frequency),
                       .presence = double(presence),
                       .most_edits = most,
                       .position = 5,
                       .counts = 1};
  }
  void Draw(uint32_t row, uint32_t token, kernels::RowFault error = kernels::RowFault::kNone) {
    outputs_[row].error = error;
    outputs_[row].error_token = outputs_[row].token = token;
    tokens_[row] = int32_t(token);
  }
  void Launch(bool follows_draw) {
    view_.follows_draw = follows_draw;
    RunEmulatedAdvance(view_, kSequenceRows, ++seed_, &memory_);
  }

  const kernels::cuda::RowInput& input(uint32_t row) const { return inputs_[row]; }
  kernels::cuda::RowInput* input_of(uint32_t row) { return &inputs_[row]; }
  const kernels::cuda::RawOutput& output(uint32_t row) const { return outputs_[row]; }
  int32_t token(uint32_t row) const { return tokens_[row]; }
  // True if a row's input names edits that there are.
  bool HasEdits(uint32_t row) const {
    const uint64_t offset = reinterpret_cast<uint64_t>(inputs_[row].edits) - reinterpret_cast<uint64_t>(edits_.data());
    const uint64_t bytes = sizeof(edits_[0]) * inputs_[row].edit_count;
    const uint64_t room = sizeof(edits_[0]) * edits_.size();
    return offset % sizeof(edits_[0]) == 0 && offset < room && bytes <= room - offset;
  }

 private:
  template <typename Items>
  static MemoryRange RangeOf(const Items& items, bool is_written = true) {
    return {reinterpret_cast<uint64_t>(items.data()), items.size() * sizeof(items[0]), false, is_written};
  }

  std::vector<kernels::LogitEdit> edits_;
  std::vector<kernels::cuda::DeviceSequence> sequences_;
  std::vector<kernels::cuda::RowInput> inputs_;
  std::vector<kernels::cuda::RawOutput> outputs_;
  std::vector<int32_t> tokens_;
  kernels::cuda::SequenceView view_;
  std::vector<MemoryRange> memory_;
  uint64_t seed_ = 0;
};

// Two rows that draw random tokens, and a map of each one's counts. The third row has no sequence.
class CountedSequences {
 public:
  CountedSequences() {
    for (uint32_t row = 0; row < 2; ++row) {
      sequences_.Start(row, kFrequencies[row], kPresences[row], kMostSequenceEdits);
    }
  }

  // Draws a token in each row and advances them. Returns the first difference from the law; empty if there is none.
  std::string Step() {
    for (uint32_t row = 0; row < 2; ++row) {
      const auto token = uint32_t(random_() % (row == 0 ? 300 : kSequenceTokens));
      sequences_.Draw(row, token);
      ++counts_[row][token];
    }
    sequences_.Launch(true);
    ++steps_;
    for (uint32_t row = 0; row < 2; ++row) {
      const kernels::cuda::RowInput& input = sequences_.input(row);
      if (input.edit_count != counts_[row].size()) return "the number of edits";
      if (!sequences_.HasEdits(row)) return "where the edits are";
      if (input.position != 5 + steps_) return "the position";
      const kernels::LogitEdit* edit = input.edits;
      for (const auto& [token, count] : counts_[row]) {
        if (edit->token != token) return "a token";
        if (edit->flags != (kernels::LogitEdit::kRepeated | count << kernels::cuda::kDrawnShift)) return "a count";
        if (edit->penalty != law::PenaltyBits(kFrequencies[row], kPresences[row], count)) return "a penalty";
        ++edit;
      }
    }
    return sequences_.input(2).edits == nullptr ? "" : "a row without a sequence";
  }

 private:
  static constexpr float kFrequencies[] = {0.1f, -99.37f};
  static constexpr float kPresences[] = {-0.1f, 1e-20f};
  std::mt19937_64 random_{3};
  EmulatedSequences sequences_;
  std::map<uint32_t, uint32_t> counts_[2];
  uint32_t steps_ = 0;
};

}  // namespace sortition::testing
