// Slices of rows: to the table where they meet, and from there as whole rows to the batcher.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "service/engine.h"
#include "service/request/checks.h"
#include "service/result/encode.h"
#include "service/result/split_results.h"
#include "service/stream/session_impl.h"

namespace sortition::service {

// A message of slices other than 0: nothing is known of its rows but their names.
void Session::Impl::OnSlices(StepShape shape, Frame frame, absl::Time now) {
  const absl::Time deadline = now + std::min(shape.timeout, engine_.limits().shard_wait);
  const auto message = std::make_shared<SliceMessage>(std::move(shape), std::move(frame), shared_from_this());
  absl::flat_hash_map<absl::string_view, int> uses;
  for (const v1::StepRow& row : message->message().rows()) ++uses[row.request_id()];
  SliceAnswers answers;
  std::vector<uint32_t> rows;
  for (uint32_t index = 0; index < static_cast<uint32_t>(message->message().rows_size()); ++index) {
    const v1::StepRow& row = message->row(index);
    const std::string field = absl::StrCat("step.rows[", index, "].request_id");
    if (auto refusal = CheckName(row.request_id(), field)) {
      answers.Refuse({message, index}, *refusal);
    } else if (uses[row.request_id()] > 1) {
      answers.Refuse({message, index}, DuplicateRow(index));
    } else {
      rows.push_back(index);
    }
  }
  answers.Send();
  AddSlices(message, rows, deadline);
}

void Session::Impl::AddSlices(const std::shared_ptr<SliceMessage>& message, const std::vector<uint32_t>& rows,
                              absl::Time deadline) {
  SubmitRows(engine_.shards().Add(worker(), message, rows, deadline));
  // What came between the notice and here would wait for slices that do not come any more.
  if (shutting_down_.load()) RefuseWaitingSlices();
}

void Session::Impl::SubmitRows(std::vector<ShardTable::WholeRow> rows) {
  // By the step that they are rows of: several, if a rank cuts its messages in another way.
  std::vector<std::pair<std::shared_ptr<StepInFlight>, std::vector<uint32_t>>> steps;
  for (const ShardTable::WholeRow& slices : rows) {
    const auto is_first = [](const RowSlice& slice) { return slice.message->step() != nullptr; };
    const RowSlice& first = *std::ranges::find_if(slices, is_first);
    const std::shared_ptr<StepInFlight>& step = first.message->step();
    if (!step->SetSlices(slices)) continue;
    auto of_step = std::ranges::find(steps, step, [](const auto& entry) { return entry.first; });
    if (of_step == steps.end()) of_step = steps.emplace(steps.end(), step, std::vector<uint32_t>());
    of_step->second.push_back(first.row);
  }
  for (auto& [step, indexes] : steps) {
    std::vector<QueuedRow> queued;
    for (const uint32_t index : indexes) {
      for (QueuedRow& row : step->TakeRow(index)) queued.push_back(std::move(row));
    }
    if (auto refusal = engine_.batcher().Submit(step, std::move(queued))) step->RefuseRows(indexes, *refusal);
  }
}

void Session::Impl::RefuseWaitingSlices() {
  const Refusal draining = Draining();
  engine_.shards().Withdraw(this, &draining);
}

std::optional<Refusal> Session::Impl::OnBringAnswer(v1::BringAnswer bring) {
  if (auto refusal = client_->Charge(0, frame_bytes_, "bring_answer")) return refusal;
  if (auto refusal = CheckName(bring.asked().request_id(), "bring_answer.asked.request_id")) return refusal;
  if (bring.result().ByteSizeLong() > kAnswerBytes) {
    return Refusal{Reason::kTooMany, "bring_answer.result", absl::StrCat("<= ", kAnswerBytes, " bytes"),
                   absl::StrCat("has ", bring.result().ByteSizeLong(), " bytes")};
  }
  const v1::RowResult& result = bring.result();
  const bool answers = (result.has_draw() || result.has_score() || result.has_verify()) && !Continues(result) &&
                       result.step_id() == bring.asked().step_id();
  if (!answers) return Refusal{Reason::kContradiction, "bring_answer.result", "", "is not a whole answer of the step"};
  std::vector<v1::RowResult> parts(1);
  parts[0] = std::move(*bring.mutable_result());
  engine_.shards().Keep(worker(), bring.asked(), std::move(parts), 0, ShardTable::Source::kBrought);
  return std::nullopt;
}

void Session::Impl::KeepAnswer(const v1::StepRow& asked, std::vector<v1::RowResult> results, uint32_t ranks) {
  engine_.shards().Keep(worker(), asked, std::move(results), ranks, ShardTable::Source::kComputed);
}

bool Session::Impl::IsDraining() const {
  absl::MutexLock lock(&mutex_);
  return draining_;
}

void Session::Impl::AnswerSlices(v1::StepResults results, uint64_t bytes, bool last) {
  for (const v1::RowResult& row : results.rows()) {
    if (row.has_error()) engine_.observer().Refused(static_cast<Reason>(row.error().reason()), 1);
  }
  const SentRelease release{AnsweredRows(results), last ? bytes : 0};
  v1::StreamResponse response;
  *response.mutable_results() = std::move(results);
  Send(std::move(response), release);
}

}  // namespace sortition::service
