// Puts the parts of answers together.
#include "service/wire/step_answers.h"

#include <iterator>
#include <string>

#include "google/protobuf/unknown_field_set.h"
#include "kernels/check.h"
#include "kernels/stage.h"
#include "service/arena_message.h"
#include "service/text/make_receipts.h"
#include "service/text/row.h"
#include "service/wire/encode.h"

namespace sortition::service {
namespace {

// Memory for the answers of rows that are plain draws. Others take more blocks of the same size.
constexpr size_t kArenaBytes = 512;
constexpr size_t kArenaRowBytes = 256;

google::protobuf::ArenaOptions OptionsFor(size_t rows) {
  google::protobuf::ArenaOptions options;
  options.start_block_size = kArenaBytes + kArenaRowBytes * rows;
  options.max_block_size = options.start_block_size;
  return options;
}

void SetCheckpoint(std::string checkpoint, v1::RowResult* result) {
  if (result->has_draw()) {
    result->mutable_draw()->set_checkpoint(std::move(checkpoint));
  } else if (result->has_verify()) {
    result->mutable_verify()->set_checkpoint(std::move(checkpoint));
  } else {
    result->mutable_score()->set_checkpoint(std::move(checkpoint));
  }
}

// Returns the state of the samplers after the last of the result's tokens, sealed.
std::string SealedState(const AnswerParts& parts) {
  CheckpointOwner owner = parts.owner;
  owner.identity = parts.spec.digest();
  return parts.key.Seal(owner, CheckpointAfter(parts.plan, parts.result));
}

}  // namespace

v1::RowResult Encoded(const v1::RowResult& result) {
  v1::RowResult encoded;
  google::protobuf::UnknownFieldSet& fields = *encoded.GetReflection()->MutableUnknownFields(&encoded);
  SORTITION_CHECK(fields.ParseFromString(result.SerializeAsString()));
  fields.DeleteByNumber(v1::RowResult::kRowFieldNumber);
  return encoded;
}

StepAnswers::StepAnswers(size_t rows)
    : arena_(std::make_unique<google::protobuf::Arena>(OptionsFor(rows))),
      in_arena_(NewInArena<v1::StepResults>(arena_.get())) {
  in_arena_->mutable_rows()->Reserve(static_cast<int>(rows));
  notes_.reserve(rows);
}

void StepAnswers::Add(const AnswerParts& parts) {
  const auto& [result, plan, spec, receipts, key, owner] = parts;
  auto& rows = *results().mutable_rows();
  const int first = rows.size();
  EncodeResult(result, plan, spec, {plan.row, plan.intent.step_id}, &rows);
  AnswerNote& note = notes_.emplace_back();
  note.row = plan.row;
  if (plan.kind != RowPlan::Kind::kScore) {
    note.tokens = static_cast<uint32_t>(result.outputs.size());
    note.phase = result.PhaseOf(result.outputs.size() - 1);
  }
  if (receipts != nullptr && plan.kind != RowPlan::Kind::kScore) {
    const std::string records = receipts->Add(MakeReceipts(result, plan, spec));
    if (!records.empty()) EncodeReceipts(records, &rows);
  }
  note.parts = static_cast<uint32_t>(rows.size() - first);
  if (kernels::KeepsSamplerState(spec.parameters.chain)) SetCheckpoint(SealedState(parts), rows.Mutable(first));
}

void StepAnswers::Refuse(RowPlace place, const Refusal& refusal) {
  v1::RowResult& result = *results().add_rows();
  result.set_row(place.row);
  result.set_step_id(place.step_id);
  EncodeError(refusal, result.mutable_error());
  AnswerNote& note = notes_.emplace_back();
  note.row = place.row;
  note.refused = refusal.reason;
  note.field = refusal.field;
  if (!refusal.required.empty()) note.required = refusal.required[0].why.reason;
}

void StepAnswers::Add(RowAnswer answer, uint32_t row) {
  answer.note.row = row;
  answer.note.parts = static_cast<uint32_t>(answer.parts.size());
  for (v1::RowResult& part : answer.parts) {
    part.set_row(row);
    *results().add_rows() = std::move(part);
  }
  notes_.push_back(std::move(answer.note));
}

void StepAnswers::Add(StepAnswers other) {
  results().mutable_rows()->MergeFrom(other.results().rows());
  notes_.insert(notes_.end(), std::make_move_iterator(other.notes_.begin()),
                std::make_move_iterator(other.notes_.end()));
}

std::vector<RowAnswer> StepAnswers::Rows() {
  std::vector<RowAnswer> rows;
  auto part = results().rows().begin();
  for (const AnswerNote& note : notes_) {
    RowAnswer& row = rows.emplace_back();
    row.note = note;
    for (uint32_t i = 0; i < note.parts; ++i, ++part) row.parts.push_back(Encoded(*part));
  }
  return rows;
}

std::vector<std::pair<v1::StepResults, uint32_t>> StepAnswers::Split() {
  std::vector<std::pair<v1::StepResults, uint32_t>> messages;
  uint64_t bytes = kMaxAnswerBytes;
  auto part = results().mutable_rows()->begin();
  for (const AnswerNote& note : notes_) {
    for (uint32_t i = 0; i < note.parts; ++i, ++part) {
      const uint64_t more = part->ByteSizeLong();
      if (bytes + more > kMaxAnswerBytes) {
        messages.emplace_back().first.set_batch_id(results().batch_id());
        bytes = 0;
      }
      bytes += more;
      *messages.back().first.add_rows() = std::move(*part);
    }
    ++messages.back().second;
  }
  return messages;
}

}  // namespace sortition::service
