// The kernel that advances sequences, against a map of counts.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "kernels/cuda/layout.h"
#include "kernels/law/parameters.h"
#include "tests/cuda/emulated_kernels.h"
#include "tests/support/scale.h"

namespace sortition::testing {
namespace {

using kernels::LogitEdit;
using kernels::RowError;
using kernels::cuda::RawOutput;
using kernels::cuda::RowInput;
using kernels::cuda::Sequence;

constexpr uint32_t kRows = 3;
constexpr uint32_t kMost = 700;
constexpr uint32_t kTokens = 5000;

// Rows with sequences, in memory that the kernel may touch.
class Sequences {
 public:
  Sequences() : edits_(kRows * kMost), sequences_(kRows), inputs_(kRows), outputs_(kRows), tokens_(kRows) {
    view_.sequences = sequences_.data();
    view_.inputs = inputs_.data();
    view_.outputs = outputs_.data();
    view_.tokens = tokens_.data();
    for (RowInput& input : inputs_) input.vocabulary = kTokens;
  }

  void Start(uint32_t row, float frequency, float presence, uint32_t most) {
    sequences_[row] = {.edits = &edits_[row * kMost],
                       .minus_frequency = -double(frequency),
                       .presence = double(presence),
                       .most_edits = most,
                       .position = 5,
                       .counts = 1};
  }
  void Draw(uint32_t row, uint32_t token, RowError error = RowError::kNone) {
    outputs_[row].error = error;
    outputs_[row].error_token = outputs_[row].token = token;
    tokens_[row] = int32_t(token);
  }
  void Launch(bool follows_draw) {
    const auto range = [](auto& items) {
      return MemoryRange{reinterpret_cast<uint64_t>(items.data()), items.size() * sizeof(items[0]), false, true};
    };
    std::vector<MemoryRange> memory = {range(edits_), range(sequences_), range(inputs_), range(outputs_),
                                       range(tokens_)};
    view_.follows_draw = follows_draw;
    RunEmulatedAdvance(view_, kRows, ++seed_, &memory);
  }

  const RowInput& input(uint32_t row) const { return inputs_[row]; }
  RowInput* input_of(uint32_t row) { return &inputs_[row]; }
  const RawOutput& output(uint32_t row) const { return outputs_[row]; }
  int32_t token(uint32_t row) const { return tokens_[row]; }

 private:
  std::vector<LogitEdit> edits_;
  std::vector<Sequence> sequences_;
  std::vector<RowInput> inputs_;
  std::vector<RawOutput> outputs_;
  std::vector<int32_t> tokens_;
  kernels::cuda::SequenceView view_;
  uint64_t seed_ = 0;
};

TEST(SequenceKernel, CountsAsTheLawDoes) {
  std::mt19937_64 random(3);
  Sequences sequences;
  std::map<uint32_t, uint32_t> counts[2];
  const float frequencies[] = {0.1f, -99.37f};
  const float presences[] = {-0.1f, 1e-20f};
  for (uint32_t row = 0; row < 2; ++row) sequences.Start(row, frequencies[row], presences[row], kMost);
  const auto steps = uint32_t(std::max<uint64_t>(40, Scaled(100)));
  for (uint32_t step = 0; step < steps; ++step) {
    for (uint32_t row = 0; row < 2; ++row) {
      const auto token = uint32_t(row == 0 ? random() % 300 : random() % kTokens);
      sequences.Draw(row, token);
      ++counts[row][token];
    }
    sequences.Launch(true);
    for (uint32_t row = 0; row < 2; ++row) {
      ASSERT_EQ(sequences.input(row).edit_count, counts[row].size()) << "step " << step;
      ASSERT_EQ(sequences.input(row).position, 5 + step + 1);
      const LogitEdit* edit = sequences.input(row).edits;
      for (const auto& [token, count] : counts[row]) {
        ASSERT_EQ(edit->token, token);
        ASSERT_EQ(edit->flags, LogitEdit::kRepeated | count << kernels::cuda::kDrawnShift);
        ASSERT_EQ(edit->penalty, law::PenaltyBits(frequencies[row], presences[row], count));
        ++edit;
      }
    }
  }
  EXPECT_EQ(sequences.input(2).edits, nullptr) << "a row without a sequence";
}

TEST(SequenceKernel, ErrorsMakeLaterDrawsVoid) {
  Sequences sequences;
  for (uint32_t row = 0; row < kRows; ++row) sequences.Start(row, 1, 0, row == 1 ? 2 : kMost);
  for (uint32_t step = 0; step < 5; ++step) {
    for (uint32_t row = 0; row < kRows; ++row) {
      sequences.Draw(row, 10 + step, row == 0 && step == 2 ? RowError::kNaN : RowError::kNone);
    }
    sequences.Launch(true);
    EXPECT_EQ(sequences.token(2), int32_t(10 + step));
    EXPECT_EQ(sequences.output(0).error, step < 2 ? RowError::kNone : RowError::kNaN);
    EXPECT_EQ(sequences.token(0), step > 2 ? -1 : int32_t(10 + step));
    // The list has room for two tokens. The third one is drawn, and ends the sequence.
    EXPECT_EQ(sequences.output(1).error, step < 3 ? RowError::kNone : RowError::kTooManyEdits);
    EXPECT_EQ(sequences.token(1), step < 3 ? int32_t(10 + step) : -1);
  }
  EXPECT_EQ(sequences.output(0).error_token, 12u);
  EXPECT_EQ(sequences.output(1).error_token, 12u);
  EXPECT_EQ(sequences.input(0).edit_count, 2u);
  EXPECT_EQ(sequences.input(0).position, 7u);
  EXPECT_EQ(sequences.input(2).position, 10u);
}

// An upload leaves the host's view of a row in its input. Edits of padding are not shown.
TEST(SequenceKernel, InputsFollowSequences) {
  Sequences sequences;
  sequences.Start(0, 1, 0, kMost);
  for (const uint32_t token : {7u, 900u, 3u}) {
    sequences.Draw(0, token);
    sequences.Launch(true);
  }
  const LogitEdit* const edits = sequences.input(0).edits;
  *sequences.input_of(0) = {.vocabulary = 100, .edit_count = 50};
  sequences.Launch(false);
  EXPECT_EQ(sequences.input(0).edits, edits);
  EXPECT_EQ(sequences.input(0).edit_count, 2u);
  EXPECT_EQ(sequences.input(0).position, 8u);
}

}  // namespace
}  // namespace sortition::testing
