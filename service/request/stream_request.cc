// Checks of single messages.
#include "service/request/stream_request.h"

#include "absl/strings/str_cat.h"
#include "service/request/checks.h"
#include "service/result/split_results.h"

namespace sortition::service {

std::optional<Refusal> CheckHello(const v1::Hello& hello) {
  if (auto refusal = CheckName(hello.worker_session(), "hello.worker_session")) return refusal;
  return CheckByteCount(hello.client().size(), kMaxNameBytes, "hello.client");
}

std::optional<Refusal> CheckBringAnswer(const v1::BringAnswer& bring) {
  if (auto refusal = CheckName(bring.asked().request_id(), "bring_answer.asked.request_id")) return refusal;
  const v1::RowResult& result = bring.result();
  if (auto refusal = CheckByteCount(result.ByteSizeLong(), kAnswerBytes, "bring_answer.result")) return refusal;
  const bool answers = (result.has_draw() || result.has_score() || result.has_verify()) && !Continues(result) &&
                       result.step_id() == bring.asked().step_id();
  if (answers) return std::nullopt;
  return Refusal{Reason::kContradiction, "bring_answer.result", "", "is not a whole answer of the step"};
}

std::optional<Refusal> CheckUploadMask(const v1::UploadMask& upload, const Limits& limits) {
  if (auto refusal =
          CheckRange<uint32_t>(upload.vocabulary_size(), 1, limits.max_vocabulary, "upload_mask.vocabulary_size")) {
    return refusal;
  }
  return CheckRange<uint32_t>(upload.mask().rows(), 1, 1, "upload_mask.mask.rows");
}

}  // namespace sortition::service
