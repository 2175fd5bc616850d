// Converts tasks and results field by field.
#include "client/cpp/row_message.h"

#include <algorithm>
#include <utility>

namespace sortition::client {
namespace {

void DescribeTree(const Drafts& drafts, v1::VerifyTree* tree) {
  tree->mutable_draft_tokens()->Assign(drafts.tokens.begin(), drafts.tokens.end());
  tree->mutable_parents()->Assign(drafts.parents.begin(), drafts.parents.end());
  tree->set_mode(drafts.mode);
  tree->set_return_probabilities(drafts.return_probabilities);
  if (drafts.sampling != v1::DRAFT_SAMPLING_UNSPECIFIED) tree->set_draft_sampling(drafts.sampling);
  for (const v1::SparseProbabilities& sparse : drafts.sparse_probabilities) *tree->add_sparse_probabilities() = sparse;
}

void DescribeSequence(const Drafts& drafts, v1::VerifyDraft* message) {
  message->mutable_draft_tokens()->Assign(drafts.tokens.begin(), drafts.tokens.end());
  message->set_mode(drafts.mode);
  message->set_return_probabilities(drafts.return_probabilities);
  for (const v1::SparseProbabilities& sparse : drafts.sparse_probabilities) {
    *message->add_sparse_probabilities() = sparse;
  }
}

// Adds the mask of the next position.
v1::RowMask* AddMask(const Row& row, v1::StepRow* message) {
  if (row.drafts == nullptr) return message->mutable_mask();
  return row.drafts->parents.empty() ? message->mutable_verify_draft()->add_masks()
                                     : message->mutable_verify_tree()->add_masks();
}

bool BansAny(const Row& row) {
  return std::ranges::any_of(row.banned_tokens, [](const std::vector<uint32_t>& list) { return !list.empty(); });
}

void AppendPositions(google::protobuf::RepeatedPtrField<v1::Position>* part,
                     google::protobuf::RepeatedPtrField<v1::Position>* whole) {
  for (v1::Position& position : *part) {
    if (whole->empty() || whole->rbegin()->index() != position.index()) {
      *whole->Add() = std::move(position);
      continue;
    }
    v1::Position& last = *whole->rbegin();
    last.mutable_kept_tokens()->MergeFrom(position.kept_tokens());
    last.mutable_probabilities()->append(position.probabilities());
  }
}

}  // namespace

bool AppendPart(v1::RowResult part, v1::RowResult* whole) {
  if (whole->kind_case() == v1::RowResult::KIND_NOT_SET) {
    *whole = std::move(part);
    return true;
  }
  if (whole->kind_case() != part.kind_case()) return false;
  whole->mutable_receipts()->append(part.receipts());
  switch (part.kind_case()) {
    case v1::RowResult::kDraw:
      whole->mutable_draw()->mutable_kept_tokens()->MergeFrom(part.draw().kept_tokens());
      return true;
    case v1::RowResult::kScore:
      AppendPositions(part.mutable_score()->mutable_positions(), whole->mutable_score()->mutable_positions());
      return true;
    case v1::RowResult::kVerify:
      AppendPositions(part.mutable_verify()->mutable_positions(), whole->mutable_verify()->mutable_positions());
      return true;
    default:
      return false;
  }
}

void DescribeTask(const Row& row, v1::StepRow* message) {
  if (row.draw_salt != 0) message->set_draw_salt(row.draw_salt);
  if (!row.scored.empty()) {
    message->mutable_score()->mutable_tokens()->Assign(row.scored.begin(), row.scored.end());
    for (const std::vector<uint32_t>& ids : row.scored_requests) {
      message->mutable_score()->add_requested()->mutable_tokens()->Assign(ids.begin(), ids.end());
    }
    message->mutable_score()->set_race(row.score_race);
  } else if (row.drafts != nullptr && !row.drafts->parents.empty()) {
    DescribeTree(*row.drafts, message->mutable_verify_tree());
  } else if (row.drafts != nullptr) {
    DescribeSequence(*row.drafts, message->mutable_verify_draft());
  }
}

void NameTensors(const Row& row, TensorRows* taken, v1::StepRow* message) {
  const size_t masks = BansAny(row) ? row.banned_tokens.size() : row.masks();
  for (size_t i = 0; i < masks; ++i) {
    v1::RowMask& mask = *AddMask(row, message);
    if (row.allowed_bits != nullptr) mask.set_mask_row(taken->masks++);
    if (i >= row.banned_tokens.size()) continue;
    mask.mutable_banned_tokens()->Assign(row.banned_tokens[i].begin(), row.banned_tokens[i].end());
  }
  if (row.drafts == nullptr || row.drafts->probabilities == nullptr) return;
  if (row.drafts->parents.empty()) {
    message->mutable_verify_draft()->set_draft_row(taken->drafts);
  } else {
    message->mutable_verify_tree()->set_draft_row(taken->drafts);
  }
  taken->drafts += static_cast<uint32_t>(row.drafts->distributions());
}

RowResult ToRowResult(v1::RowResult&& result) {
  switch (result.kind_case()) {
    case v1::RowResult::kVerify:
      result.mutable_verify()->clear_continues();
      return std::move(*result.mutable_verify());
    case v1::RowResult::kScore:
      result.mutable_score()->clear_continues();
      return std::move(*result.mutable_score());
    default:
      result.mutable_draw()->clear_continues();
      return std::move(*result.mutable_draw());
  }
}

RowResult ToRowResult(const v1::RowResult& result) {
  RowResult copy;
  switch (result.kind_case()) {
    case v1::RowResult::kVerify:
      copy.emplace<v1::VerifyResult>(result.verify()).clear_continues();
      break;
    case v1::RowResult::kScore:
      copy.emplace<v1::ScoreResult>(result.score()).clear_continues();
      break;
    default:
      std::get<v1::DrawResult>(copy) = result.draw();
      std::get<v1::DrawResult>(copy).clear_continues();
  }
  return copy;
}

}  // namespace sortition::client
