// Nine rows, one after the other, as a device's thread takes them.
#include "tests/bench/samplers/verify.h"

#include <vector>

#include "kernels/cpu/sample_row.h"
#include "kernels/law/parameters.h"
#include "tests/bench/interleaved.h"

namespace sortition::bench {
namespace {

constexpr uint32_t kDrafts = 8;

class Verifying {
 public:
  Verifying(const Logits& logits, size_t rows, uint32_t vocabulary)
      : logits_(logits), rows_(rows), vocabulary_(vocabulary) {
    law::Compile({.temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .min_p = 0.05f}, &parameters_);
    for (size_t row = 0; row < rows; ++row) drafts_.push_back(Draw(row, kernels::RowRequest::kNoToken));
  }

  uint32_t Draw(size_t row, uint32_t likely) {
    kernels::RowRequest request;
    request.logits = logits_.row(row % rows_);
    request.live_vocabulary = vocabulary_;
    request.parameters = &parameters_;
    request.noise = {.seed = 1234, .position = uint32_t(row % rows_), .stream = 0};
    request.likely = likely;
    kernels::cpu::SampleRow(request, &scratch_, &answer_);
    return answer_.token;
  }

  // The drafts are what their rows draw, so every row is needed.
  void Verify(size_t first) {
    uint32_t accepted = 0;
    for (size_t row = first; row < first + kDrafts; ++row) {
      const uint32_t draft = drafts_[row % rows_];
      accepted += Draw(row, draft) == draft;
    }
    accepted += Draw(first + kDrafts, kernels::RowRequest::kNoToken) != 0;
    asm volatile("" ::"r"(accepted));
  }

 private:
  const Logits& logits_;
  const size_t rows_;
  const uint32_t vocabulary_;
  kernels::RowParameters parameters_;
  std::vector<uint32_t> drafts_;
  kernels::cpu::Scratch scratch_;
  kernels::RowOutput answer_;
};

}  // namespace

void MeasureVerify(const Logits& logits, uint32_t vocabulary, uint32_t rounds, Report* report) {
  constexpr size_t kRows = 64;
  Verifying verifying(logits, kRows, vocabulary);
  Schedule schedule;
  schedule.inputs = kRows;
  schedule.rounds = rounds;
  schedule.prepare = [&](size_t row) {
    for (size_t i = row; i <= row + kDrafts; ++i) Warm(logits, i % kRows);
  };
  const std::vector<double> medians = MeasureInterleaved({{"token_f32",
                                                           [&](size_t row) {
                                                             const uint32_t token =
                                                                 verifying.Draw(row, kernels::RowRequest::kNoToken);
                                                             asm volatile("" ::"r"(token));
                                                           }},
                                                          {"verify_8", [&](size_t row) { verifying.Verify(row); }}},
                                                         schedule);
  report->Add({"verify_8", medians[1], "us", medians[0]});
}

}  // namespace sortition::bench
