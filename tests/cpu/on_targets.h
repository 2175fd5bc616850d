// Runs checks of a row on each target that this processor has.
#pragma once

#include <gtest/gtest.h>

#include "kernels/cpu/edit.h"
#include "kernels/cpu/read.h"
#include "kernels/cpu/sample_row.h"
#include "kernels/law/reference.h"

namespace sortition::kernels::cpu::testing {

// Calls check(kernels, row, scratch) with the request's row after its edits.
template <typename Check>
void OnAllTargets(const RowRequest& request, Check check) {
  for (const Target* target : RunnableTargets()) {
    SCOPED_TRACE(target->name);
    Scratch scratch;
    RowOutput answer;
    RowView raw = LayRow(request, RowCopy(), &scratch);
    ASSERT_TRUE(ReadRow(target->kernels, request, &scratch, &raw, &answer));
    RowView row;
    ASSERT_TRUE(ChangeRow(target->kernels, request, raw, &scratch, &row, &answer));
    check(target->kernels, row, &scratch);
  }
}

// Samples the row with the kernels of counting(target), and expects the reference's answer. Calls check(answer) then.
template <typename Counting, typename Check>
void ExpectReference(const RowRequest& request, Counting counting, Check check) {
  const RowOutput expected = law::SampleRowReference(request);
  for (const Target* target : RunnableTargets()) {
    SCOPED_TRACE(target->name);
    const Target counted = counting(*target);
    Scratch scratch;
    RowOutput answer;
    SampleRow(counted, request, &scratch, &answer);
    ASSERT_EQ(answer, expected);
    check(answer);
  }
}

}  // namespace sortition::kernels::cpu::testing
