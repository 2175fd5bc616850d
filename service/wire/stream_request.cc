// Checks of single messages.
#include "service/wire/stream_request.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "service/checks.h"
#include "service/wire/encode_result.h"
#include "service/wire/strictness.h"

namespace sortition::service {

std::optional<Refusal> CheckFrame(const Frame& frame, const Limits& limits) {
  if (auto refusal = CheckByteCount(frame.bytes, Bounds(limits).max_message_bytes(), "message")) return refusal;
  if (frame.scan.may_have_unknown) {
    if (auto refusal = FindUnknownBesideRows(frame.message)) return refusal;
  }
  if (!frame.scan.set_twice.empty()) {
    const std::optional<uint32_t> placed = FindLastPlaced(frame.message.step());
    for (const SetTwice& twice : frame.scan.set_twice) {
      if (!twice.row || (twice.is_task && twice.row < placed)) return twice.refusal;
    }
  }
  if (frame.message.has_step() || frame.message.has_upload_mask() || frame.payloads.empty()) return std::nullopt;
  return Refusal{Reason::kContradiction, "payloads[0]", "", "nothing refers to this payload"};
}

std::optional<Refusal> CheckHello(const v1::Hello& hello) {
  if (auto refusal = CheckName(hello.worker_session(), "hello.worker_session")) return refusal;
  return CheckByteCount(hello.client().size(), Bounds::max_name_bytes(), "hello.client");
}

std::optional<Refusal> CheckClose(const v1::CloseSequence& close) {
  if (auto refusal = CheckName(close.request_id(), "close.request_id")) return refusal;
  // An index is one less than the number of shards that it needs.
  auto refusal = CheckRange(uint64_t{close.shard_index()} + 1, 1, Bounds::max_shards(), "close.shard_index");
  if (refusal) refusal->message = absl::StrCat("there is no shard ", close.shard_index());
  return refusal;
}

std::variant<OpenRequest, Refusal> ParseFork(const v1::ForkSequence& fork, const Limits& limits, Entropy* entropy) {
  auto parsed = ParseOpen(fork.child(), limits, "fork.child", entropy);
  if (const auto* child = std::get_if<OpenRequest>(&parsed); child != nullptr && child->history) {
    return Refusal{Reason::kContradiction, "fork.child.history", "", "the history is the parent's"};
  }
  return parsed;
}

std::optional<Refusal> CheckBringAnswer(const v1::BringAnswer& bring) {
  if (auto refusal = CheckName(bring.asked().request_id(), "bring_answer.asked.request_id")) return refusal;
  const v1::RowResult& result = bring.result();
  const Bound most = Bounds::max_answer_bytes();
  if (auto refusal = CheckByteCount(result.ByteSizeLong(), most, "bring_answer.result")) return refusal;
  const v1::StepRow& asked = bring.asked();
  const bool verifies = asked.has_verify_draft() || asked.has_verify_tree();
  const bool is_draw = !verifies && !asked.has_score();
  const int positions = result.score().positions_size() + result.verify().positions_size();
  const uint32_t most_positions = verifies ? kMaxDraftTokens + 1 : kMaxScoreTokens;
  if (auto refusal = CheckCount(static_cast<uint64_t>(positions), most_positions, "bring_answer.result.positions")) {
    return refusal;
  }
  const bool is_of_task = (result.has_draw() && is_draw) ||
                          (result.has_score() && asked.has_score() && positions > 0) ||
                          (result.has_verify() && verifies && positions > 0);
  if (is_of_task && !Continues(result) && result.step_id() == asked.step_id()) return std::nullopt;
  return Refusal{Reason::kContradiction, "bring_answer.result", "", "is not a whole answer of the step"};
}

std::optional<Refusal> CheckUploadMask(const v1::UploadMask& upload, const Limits& limits) {
  const Bound most = Bounds(limits).max_vocabulary();
  if (auto refusal = CheckRange(upload.vocabulary_size(), 1, most, "upload_mask.vocabulary_size")) return refusal;
  return CheckRange<uint32_t>(upload.mask().rows(), 1, 1, "upload_mask.mask.rows");
}

}  // namespace sortition::service
