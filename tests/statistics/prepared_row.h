// One row, read and filtered once, from which many draws are made with the CPU kernel's own stages.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/edit.h"
#include "kernels/cpu/filter.h"
#include "kernels/cpu/race.h"
#include "kernels/cpu/read.h"
#include "kernels/cpu/target.h"
#include "kernels/cpu/verify.h"
#include "kernels/law/parameters.h"
#include "kernels/law/row_law.h"
#include "kernels/row.h"

namespace sortition::kernels::cpu {

// Not copyable: its parts refer to each other. Not thread-safe.
class PreparedRow {
 public:
  PreparedRow(std::vector<float> logits, const law::SamplingParameters& options, std::vector<uint32_t> allowed = {})
      : logits_(std::move(logits)), allowed_(std::move(allowed)) {
    law::Compile(options, &parameters_);
    request_.logits = logits_.data();
    request_.live_vocabulary = uint32_t(logits_.size());
    request_.parameters = &parameters_;
    request_.has_allowed_tokens = !allowed_.empty();
    request_.allowed_tokens = allowed_;
    RowOutput answer;
    RowView raw = LayRow(request_, {}, &scratch_);
    SORTITION_CHECK(ReadRow(kernels_, request_, &scratch_, &raw, &answer));
    SORTITION_CHECK(ChangeRow(kernels_, request_, raw, &scratch_, &row_, &answer));
    scale_ = MakeRowScale(parameters_, row_.max_key);
    kept_ = Filter(kernels_, request_, row_, scale_, &scratch_);
  }
  PreparedRow(const PreparedRow&) = delete;
  PreparedRow& operator=(const PreparedRow&) = delete;

  uint32_t Draw(const NoiseKey& noise) {
    return cpu::Draw(kernels_, row_, scale_, kept_, law::ToDrawKey(noise), std::nullopt, &scratch_);
  }
  // Verifies `draft`; the token that comes out. Counts it in `*accepted` if it is the draft.
  uint32_t Verify(const NoiseKey& noise, uint32_t given, const DraftDistribution& draft, uint64_t* accepted = nullptr) {
    RowOutput answer;
    cpu::Verify(kernels_, MakeRequest(noise, given, draft), row_, scale_, kept_, CandidateOf(given), &scratch_,
                &answer);
    if (accepted != nullptr) *accepted += answer.accepted;
    return answer.token;
  }
  RowOutput VerifyBlock(const NoiseKey& noise, uint32_t given, const DraftDistribution& draft, uint64_t survival) {
    RowRequest request = MakeRequest(noise, given, draft);
    request.survival = survival;
    std::vector<Candidate> support;
    for (const uint32_t token : draft.sparse_tokens) support.push_back(CandidateOf(token));
    RowOutput answer;
    cpu::VerifyBlock(kernels_, request, row_, scale_, kept_, CandidateOf(given), support, &scratch_, &answer);
    return answer;
  }

  RowOutput VerifyRounds(const NoiseKey& noise, std::span<const uint32_t> drafts, const DraftDistribution& draft) {
    RowRequest request = MakeRequest(noise, drafts[0], draft);
    request.rivals = drafts.subspan(1);
    std::vector<Candidate> support;
    for (const uint32_t token : draft.sparse_tokens) support.push_back(CandidateOf(token));
    RowOutput answer;
    cpu::VerifyRounds(kernels_, request, row_, scale_, kept_, support, &scratch_, &answer);
    return answer;
  }

  const RowRequest& request() const { return request_; }
  // True if the filters keep a token of these bits.
  bool Keeps(uint32_t bits, uint32_t token) const { return Candidate::Of(law::Key(bits), token) >= kept_.last; }

 private:
  Candidate CandidateOf(uint32_t token) const {
    return Candidate::Of(law::Key(law::CanonicalBits(logits_[token])), token);
  }
  RowRequest MakeRequest(const NoiseKey& noise, uint32_t given, const DraftDistribution& draft) const {
    RowRequest request = request_;
    request.noise = noise;
    request.task = RowTask::kVerify;
    request.given = given;
    request.draft = draft;
    return request;
  }

  const Kernels& kernels_ = BestTarget().kernels;
  std::vector<float> logits_;
  std::vector<uint32_t> allowed_;
  RowParameters parameters_;
  RowRequest request_;
  Scratch scratch_;
  RowView row_;
  RowScale scale_;
  Kept kept_;
};

}  // namespace sortition::kernels::cpu
