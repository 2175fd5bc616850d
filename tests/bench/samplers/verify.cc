// Nine rows, one after the other, as a device's thread takes them.
#include "tests/bench/samplers/verify.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "kernels/cpu/sample_row.h"
#include "tests/bench/suite.h"

namespace sortition::bench {
namespace {

constexpr uint32_t kDrafts = 8;
constexpr uint32_t kListed = 16;  // tokens that the drafter gives a probability

class Verifying {
 public:
  explicit Verifying(const Logits& logits) : logits_(logits), rows_(logits.count()) {
    law::Compile(UsualOptions(), &parameters_);
    for (size_t row = 0; row < rows_; ++row) {
      const uint32_t draft = Draw(row, kernels::RowRequest::kNoToken);
      drafts_.push_back(draft);
      std::vector<uint32_t>& listed = listed_.emplace_back();
      for (uint32_t i = 0; i < kListed; ++i) listed.push_back((draft + i * 997) % logits.vocabulary());
      std::ranges::sort(listed);
      // One half is the draft's.
      std::vector<uint32_t>& bits = bits_.emplace_back();
      for (const uint32_t token : listed) {
        bits.push_back(std::bit_cast<uint32_t>(token == draft ? 0.5f : 0.5f / float(kListed - 1)));
      }
    }
  }

  uint32_t Draw(size_t row, uint32_t likely) {
    kernels::RowRequest request = MakeRequest(row);
    request.likely = likely;
    kernels::cpu::SampleRow(request, &scratch_, &answer_);
    return answer_.token;
  }

  // Each row draws its draft, so every row is needed.
  void Verify(size_t first) {
    uint32_t accepted = 0;
    for (size_t row = first; row < first + kDrafts; ++row) {
      const uint32_t draft = drafts_[row % rows_];
      accepted += Draw(row, draft) == draft;
    }
    accepted += Draw(first + kDrafts, kernels::RowRequest::kNoToken) != 0;
    asm volatile("" ::"r"(accepted));
  }

  // The same drafts by their probabilities. A row is needed while its draft may be accepted, so every row is.
  void VerifyBlock(size_t first) {
    uint64_t survival = kernels::RowRequest::kCertainSurvival;
    uint32_t ends = 0;
    for (size_t row = first; row < first + kDrafts; ++row) {
      kernels::RowRequest request = MakeRequest(row);
      request.task = kernels::RowTask::kVerify;
      request.given = drafts_[row % rows_];
      request.draft.form = kernels::DraftDistribution::Form::kSparse;
      request.draft.sparse_tokens = listed_[row % rows_];
      request.draft.sparse_bits = bits_[row % rows_];
      request.survival = survival;
      kernels::cpu::SampleRow(request, &scratch_, &answer_);
      ends += answer_.accepted;
      survival = std::max<uint64_t>(answer_.survival, 1);
    }
    ends += Draw(first + kDrafts, kernels::RowRequest::kNoToken) != 0;
    asm volatile("" ::"r"(ends));
  }

 private:
  kernels::RowRequest MakeRequest(size_t row) const {
    kernels::RowRequest request;
    request.logits = logits_.row(row % rows_);
    request.live_vocabulary = logits_.vocabulary();
    request.parameters = &parameters_;
    request.noise = {.seed = 1234, .position = uint32_t(row % rows_), .stream = 0};
    return request;
  }

  const Logits& logits_;
  const size_t rows_;
  kernels::RowParameters parameters_;
  std::vector<uint32_t> drafts_;
  std::vector<std::vector<uint32_t>> listed_;
  std::vector<std::vector<uint32_t>> bits_;  // of listed tokens' probabilities
  kernels::cpu::Scratch scratch_;
  kernels::RowOutput answer_;
};

}  // namespace

void MeasureVerify(const Logits& logits, uint32_t rounds, Report* report) {
  Verifying verifying(logits);
  Schedule schedule;
  schedule.inputs = logits.count();
  schedule.rounds = rounds;
  schedule.prepare = [&](size_t row) {
    for (size_t i = row; i <= row + kDrafts; ++i) Warm(logits, i % logits.count());
  };
  const std::vector<double> medians =
      MeasureInterleaved({{"token_f32",
                           [&](size_t row) {
                             const uint32_t token = verifying.Draw(row, kernels::RowRequest::kNoToken);
                             asm volatile("" ::"r"(token));
                           }},
                          {"verify_8", [&](size_t row) { verifying.Verify(row); }},
                          {"block_verify_8", [&](size_t row) { verifying.VerifyBlock(row); }}},
                         schedule);
  report->Add({"verify_8", medians[1], "us", medians[0]});
  report->Add({"block_verify_8", medians[2], "us", medians[1]});
}

}  // namespace sortition::bench
