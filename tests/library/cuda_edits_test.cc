// libsortition's edits on a CUDA device: set, changed in place, with uploads of the changes alone.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/library/cuda_library.h"
#include "tests/support/scale.h"

namespace sortition {
namespace {

using kernels::RowOutput;
using kernels::RowParameters;

TEST_F(CudaLibrary, SetEditsApplies) {
  MakeRows();
  const auto sampler = Create(Limits());
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  SetRows(sampler.get());
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  for (int step = 1; step < 6; ++step) {
    std::vector<kernels::RowRequest> requests = Requests();
    std::vector<kernels::LogitEdit> edits;
    for (int i = 0; i < step; ++i) edits.push_back({.token = uint32_t(37 * i), .bias = BiasBits(float(step))});
    requests[2].edits = edits;
    ASSERT_TRUE(sampler->SetEdits(2, edits).ok());
    EXPECT_EQ(sampler->Sample(kStream).code, StatusCode::kFailedPrecondition);
    ASSERT_TRUE(sampler->Upload(kStream).ok());
    ASSERT_TRUE(sampler->Sample(kStream).ok());
    ExpectRight(sampler.get(), requests);
  }
}

// Rows whose edits change a little at a time, and sometimes as a whole, are sampled as if the whole list had been set.
// The upload is as long as the changes.
TEST_F(CudaLibrary, ChangeEditsAppliesInPlace) {
  constexpr uint32_t kChanged = 3;
  constexpr uint32_t kTokens = 900;
  constexpr uint32_t kMost = 700;
  const auto sampler = Create({.rows = kChanged, .vocabulary = kTokens, .edits = kMost, .top = kTokens});
  MakeRows();
  batch_.rows = kChanged;
  batch_.vocabulary = kTokens;
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  RowParameters parameters;
  ASSERT_TRUE(Compile({.parameters = {.temperature = 0.9f, .top_k = 300, .repetition_penalty = 1.3f},
                       .processed_logprob = true,
                       .processed_top = 300},
                      &parameters)
                  .ok());
  std::map<uint32_t, kernels::LogitEdit> models[kChanged];
  std::mt19937_64 random(2026);
  const auto change_of = [&](uint32_t token) {
    kernels::LogitEdit edit = {.token = token};
    if (random() % 4 == 0) return edit;  // removes the token's edit
    edit.flags = uint32_t(random() % 8 == 0 ? kernels::LogitEdit::kBanned : kernels::LogitEdit::kRepeated);
    edit.penalty = law::PenaltyBits(0.1f, 0.2f, 1 + uint32_t(random() % 9));
    return edit;
  };
  const auto apply = [&](uint32_t row, const std::vector<kernels::LogitEdit>& changes) {
    for (const kernels::LogitEdit& change : changes) {
      models[row][change.token] = change;
      if (!kernels::cuda::EditChanges(change)) models[row].erase(change.token);
    }
  };
  uint64_t uploads_checked = 0;
  const auto steps = int(testing::Scaled(200));
  for (int step = 0; step < steps; ++step) {
    size_t changed = 0;
    size_t changed_rows = 0;
    bool is_small = step > 0;
    for (uint32_t row = 0; row < kChanged; ++row) {
      if (step == 0) {
        ASSERT_TRUE(sampler->SetRow(row, parameters, {.seed = 5, .stream = row}).ok());
      }
      const uint64_t kind = step == 0 ? 1 : random() % 16;
      size_t count = random() % 4;
      if (kind <= 1) count = 300 + random() % 300;
      std::set<uint32_t> tokens;
      while (tokens.size() < count) tokens.insert(uint32_t(random() % kTokens));
      std::vector<kernels::LogitEdit> changes;
      for (const uint32_t token : tokens) changes.push_back(change_of(token));
      if (kind == 0 || step == 0) {
        models[row].clear();
        apply(row, changes);
        ASSERT_TRUE(sampler->SetEdits(row, changes).ok());
      } else {
        // In two parts; the second replaces edits of the first.
        const std::vector<kernels::LogitEdit> first(changes.begin(), changes.begin() + ptrdiff_t(count / 2));
        const auto before = models[row];
        apply(row, first);
        apply(row, changes);
        if (models[row].size() > kMost - 2) {
          models[row] = before;
          continue;
        }
        ASSERT_TRUE(sampler->ChangeEdits(row, first).ok());
        ASSERT_TRUE(sampler->ChangeEdits(row, changes).ok());
      }
      is_small = is_small && kind > 1;
      changed += count;
      changed_rows += count != 0;
    }
    const uint64_t before = driver_.uploaded_bytes();
    const uint64_t copies = driver_.calls("MemcpyHtoDAsync");
    ASSERT_TRUE(sampler->Upload(kStream).ok());
    EXPECT_LE(driver_.calls("MemcpyHtoDAsync") - copies, 2u);
    if (is_small) {
      ++uploads_checked;
      EXPECT_EQ(driver_.uploaded_bytes() - before, sizeof(kernels::cuda::RowInput) * kChanged +
                                                       sizeof(kernels::cuda::EditMerge) * changed_rows +
                                                       sizeof(kernels::LogitEdit) * changed);
    }
    ASSERT_TRUE(sampler->Sample(kStream).ok());
    std::vector<RowOutput> answers(kChanged);
    ASSERT_TRUE(sampler->Download(kStream, answers).ok());
    for (uint32_t row = 0; row < kChanged; ++row) {
      std::vector<kernels::LogitEdit> edits;
      for (const auto& [token, edit] : models[row]) edits.push_back(edit);
      kernels::RowRequest request;
      request.logits = logits_ + batch_.row_bytes * row;
      request.dtype = batch_.dtype;
      request.live_vocabulary = kTokens;
      request.parameters = &parameters;
      request.noise = {.seed = 5, .stream = row};
      request.edits = edits;
      ASSERT_EQ(answers[row], law::SampleRowReference(request)) << "step " << step << ", row " << row;
    }
  }
  EXPECT_GE(uploads_checked, uint64_t(steps) / 2);
}

// Changes whose upload failed are made with the next upload.
TEST_F(CudaLibrary, ChangesSurviveFailedUpload) {
  MakeRows();
  const auto sampler = Create(Limits());
  ASSERT_TRUE(sampler->Bind(batch_).ok());
  SetRows(sampler.get());
  ASSERT_TRUE(sampler->Upload(kStream).ok());
  std::vector<kernels::RowRequest> requests = Requests();
  std::vector<kernels::LogitEdit> edits(requests[2].edits.begin(), requests[2].edits.end());
  for (const char* const function : {"MemcpyHtoDAsync", "LaunchKernel", "EventRecord"}) {
    const uint32_t token = edits.empty() ? 0 : edits.back().token + 1;
    edits.push_back({.token = token, .bias = BiasBits(3)});
    ASSERT_TRUE(sampler->ChangeEdits(2, {&edits.back(), 1}).ok());
    driver_.Fail(function, devices::cuda::Result::kOutOfMemory);
    EXPECT_EQ(sampler->Upload(kStream).code, StatusCode::kResourceExhausted) << function;
    EXPECT_EQ(sampler->Sample(kStream).code, StatusCode::kFailedPrecondition);
    ASSERT_TRUE(sampler->Upload(kStream).ok());
    ASSERT_TRUE(sampler->Sample(kStream).ok());
    requests[2].edits = edits;
    ExpectRight(sampler.get(), requests);
  }
}

}  // namespace
}  // namespace sortition
