// The kernel that advances sequences, against a map of counts.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cuda/emulated_sequences.h"
#include "tests/support/scale.h"

namespace sortition::testing::sequence_kernel_test {
namespace {

using kernels::LogitEdit;
using kernels::RowFault;

TEST(SequenceKernel, CountsAsTheLawDoes) {
  CountedSequences sequences;
  const uint64_t steps = std::max<uint64_t>(40, Scaled(100));
  for (uint64_t step = 0; step < steps; ++step) ASSERT_EQ(sequences.Step(), "") << "step " << step;
}

TEST(SequenceKernel, ErrorsMakeLaterDrawsVoid) {
  EmulatedSequences sequences;
  for (uint32_t row = 0; row < kSequenceRows; ++row) sequences.Start(row, 1, 0, row == 1 ? 2 : kMostSequenceEdits);
  for (uint32_t step = 0; step < 5; ++step) {
    for (uint32_t row = 0; row < kSequenceRows; ++row) {
      sequences.Draw(row, 10 + step, row == 0 && step == 2 ? RowFault::kNaN : RowFault::kNone);
    }
    sequences.Launch(true);
    EXPECT_EQ(sequences.token(2), int32_t(10 + step));
    EXPECT_EQ(sequences.output(0).error, step < 2 ? RowFault::kNone : RowFault::kNaN);
    EXPECT_EQ(sequences.token(0), step > 2 ? -1 : int32_t(10 + step));
    // The list has room for two tokens. The third one is drawn, and ends the sequence.
    EXPECT_EQ(sequences.output(1).error, step < 3 ? RowFault::kNone : RowFault::kTooManyEdits);
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
  EmulatedSequences sequences;
  sequences.Start(0, 1, 0, kMostSequenceEdits);
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
}  // namespace sortition::testing::sequence_kernel_test
