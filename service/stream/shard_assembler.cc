// Shards to whole rows, and a whole row's answer to all of its shards.
#include "service/stream/shard_assembler.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/law/compact.h"
#include "service/checks.h"
#include "service/stream/step_in_flight.h"
#include "service/text/judge_row.h"
#include "service/text/row_ask.h"
#include "service/wire/read_compact_rows.h"

namespace sortition::service {
namespace {

// A stream's message in the table. Only the thread that has taken a row out of the table touches that row.
class StreamShards final : public ShardMessage {
 public:
  // `rows`: of shard 0; none of other shards.
  StreamShards(std::shared_ptr<StepMessage> message, std::vector<FirstShardRow> rows)
      : message_(std::move(message)), rows_(std::move(rows)) {}

  const v1::Step& step() const override { return message_->step(); }
  const StepShape& shape() const override { return message_->shape(); }
  uint64_t stream() const override { return message_->stream().owner.stream; }

  void Answer(StepAnswers answers) override {
    for (const AnswerNote& note : answers.notes()) Drop(note.row);
    message_->Answer(std::move(answers));
  }
  void Drop(uint32_t row) override {
    if (rows_.empty() || rows_[row].run == nullptr) return;
    rows_[row].run->Abort();
    rows_[row].run.reset();
  }
  void Charge(uint64_t answer_bytes) override { message_->ChargeLists(answer_bytes); }

  const std::shared_ptr<StepMessage>& message() const { return message_; }
  FirstShardRow Take(uint32_t row) { return std::exchange(rows_[row], {}); }

 private:
  const std::shared_ptr<StepMessage> message_;
  std::vector<FirstShardRow> rows_;
};

// Gives the answers of whole rows to the messages of all shards, and keeps them for ranks that lose theirs. Holds the
// messages, whose bytes the rows refer to.
class SharedAnswers final : public ResultSink {
 public:
  SharedAnswers(Engine* engine, std::shared_ptr<StepMessage> first) : engine_(*engine), first_(std::move(first)) {}

  // Called before the row is answered.
  void SetOthers(uint32_t row, std::vector<RowShard> others) { others_[row] = std::move(others); }

  void Answer(StepAnswers answers) override {
    const ShardShape& shard = *first_->shape().shard;
    ShardAnswers to_others;
    for (RowAnswer& row : answers.Rows()) {
      const uint32_t index = row.note.row;
      const bool is_kept = shard.epoch != 0 && !row.note.refused;
      const auto others = others_.find(index);
      if (!is_kept && others == others_.end()) continue;
      const auto answer = std::make_shared<const HeldAnswer>(std::move(row));
      // Kept before the answer leaves, so that a rank that loses it finds it.
      if (is_kept) {
        for (const OwedAnswer& owed : engine_.shards().Keep(first_->stream().worker(), first_->row(index), answer,
                                                            shard.count, ShardTable::Source::kComputed)) {
          to_others.Add(owed);
        }
      }
      if (others == others_.end()) continue;
      for (const RowShard& other : others->second) to_others.Add(OwedAnswer(other, answer));
    }
    to_others.Send();
    first_->Answer(std::move(answers));
  }

 private:
  Engine& engine_;
  const std::shared_ptr<StepMessage> first_;
  absl::flat_hash_map<uint32_t, std::vector<RowShard>> others_;  // by the row of shard 0; fixed once it runs
};

// Refuses fields that only shard 0 may set.
std::optional<Refusal> CheckOtherShard(const v1::StepRow& row, uint32_t index) {
  const std::pair<bool, const char*> of_first[] = {
      {row.has_truncate_to(), "truncate_to"},
      {!row.append_tokens().empty(), "append_tokens"},
      {row.has_mask(), "mask"},
      {!row.checkpoint().empty(), "checkpoint"},
      {row.verify_draft().has_draft_row(), "verify_draft.draft_row"},
      {!row.verify_draft().masks().empty(), "verify_draft.masks"},
      {row.verify_tree().has_draft_row(), "verify_tree.draft_row"},
      {!row.verify_tree().masks().empty(), "verify_tree.masks"},
  };
  for (const auto& [is_set, name] : of_first) {
    if (!is_set) continue;
    return Refusal{Reason::kContradiction, absl::StrCat("step.rows[", index, "].", name), "", "comes with shard 0"};
  }
  if (row.step_id() == 0) return MissingField(absl::StrCat("step.rows[", index, "].step_id"));
  if (!row.compact().empty() && row.has_tensor_row()) {
    return Refusal{Reason::kContradiction, absl::StrCat("step.rows[", index, "].tensor_row"), "", "the row is compact"};
  }
  return std::nullopt;
}

// Refuses lists that are longer than those of any row that shard 0 may bring.
std::optional<Refusal> CheckLists(const RowAsk& ask, const Limits& limits) {
  if (ask.task == RowAsk::Task::kDraw) return std::nullopt;
  const bool is_score = ask.task == RowAsk::Task::kScore;
  const std::string task = absl::StrCat("step.rows[", ask.row, "].",
                                        is_score                                ? "score"
                                        : ask.task == RowAsk::Task::kVerifyTree ? "verify_tree"
                                                                                : "verify_draft");
  const std::string tokens = absl::StrCat(task, is_score ? ".tokens" : ".draft_tokens");
  const Bound most = is_score ? Bounds::max_score_tokens() : Bounds::max_draft_tokens();
  if (auto refusal = CheckCount(ask.tokens.size(), most, tokens)) return refusal;
  if (auto refusal = CheckCount(ask.parents.size(), most, task + ".parents")) return refusal;
  if (auto refusal = CheckCount(ask.requested.size(), most, task + ".requested")) return refusal;
  for (size_t i = 0; i < ask.requested.size(); ++i) {
    const std::string field = absl::StrCat(task, ".requested[", i, "].tokens");
    if (auto refusal = CheckCount(ask.requested[i].size(), Bounds::max_top_logprobs(), field)) return refusal;
  }
  const std::string sparse = task + ".sparse_probabilities";
  if (auto refusal = CheckCount(ask.sparse.size(), most, sparse)) return refusal;
  for (size_t i = 0; i < ask.sparse.size(); ++i) {
    const SparseAsk& list = ask.sparse[i];
    const Bound listed = Bounds(limits).max_listed_tokens();
    if (auto refusal = CheckCount(list.tokens.size(), listed, absl::StrCat(sparse, "[", i, "].tokens"))) return refusal;
    const std::string field = absl::StrCat(sparse, "[", i, "].probabilities");
    if (auto refusal = CheckCount(list.probabilities.size(), listed, field)) return refusal;
  }
  return std::nullopt;
}

// Returns true if the worker opens the sequence again and repeats its shard; no other rank has to know.
bool IsMendedByOpening(Reason reason) {
  switch (reason) {
    case Reason::kHistoryRequired:
    case Reason::kStaleStep:
    case Reason::kStepConflict:
    case Reason::kStepInFlight:
    case Reason::kUnknownSequence:
      return true;
    default:
      return false;
  }
}

std::optional<Refusal> CheckTensorRows(const ShardTable::WholeRow& shards, uint32_t positions) {
  for (const RowShard& shard : shards) {
    const StepShape& shape = shard.message->shape();
    if (shard.message->FirstTensorRow(shard.row) + positions <= shape.tensor_rows) continue;
    return Refusal{Reason::kOutOfRange, absl::StrCat("step.rows[", shard.row, "].tensor_row"),
                   absl::StrCat("< ", shape.tensor_rows),
                   absl::StrCat("the tensor of shard ", shape.shard->index, " has no such row")};
  }
  return std::nullopt;
}

bool IsCompact(const RowShard& shard) { return !shard.asked().compact().empty(); }

// Returns the price of reading a row's compact shards and of making one row of them.
uint64_t MergeCost(const ShardTable::WholeRow& shards) {
  uint64_t cost = price::kRow;
  for (const RowShard& shard : shards) {
    cost += price::kPosition * static_cast<uint64_t>(shard.asked().compact_size());
    cost += price::kMergedToken * CompactTokensOf(shard.asked());
  }
  return cost;
}

// Gives the row the statement that its shards make together. A refusal names the shard.
std::optional<Refusal> MergeCompact(const ShardTable::WholeRow& shards, const Limits& limits, SequenceRow* run) {
  const uint32_t positions = run->plan().positions();
  std::vector<std::vector<kernels::StatedRow>> of_position(positions);
  for (auto& position : of_position) position.reserve(shards.size());
  for (const RowShard& shard : shards) {
    std::vector<kernels::StatedRow> rows;
    if (shard.is_first()) {
      rows = run->plan().compact;
    } else {
      const auto& message = *static_cast<const StreamShards&>(*shard.message).message();
      auto read = ReadCompactRows(shard.asked(), shard.row, positions, shard.message->shape(), message.pairs(),
                                  run->spec(), limits);
      if (auto* refusal = std::get_if<Refusal>(&read)) {
        absl::StrAppend(&refusal->message, ", in shard ", shard.message->shard().index);
        return std::move(*refusal);
      }
      rows = std::get<std::vector<kernels::StatedRow>>(std::move(read));
    }
    for (uint32_t i = 0; i < positions; ++i) of_position[i].push_back(std::move(rows[i]));
  }
  std::vector<kernels::StatedRow> merged;
  for (auto& position : of_position) merged.push_back(law::MergeShards(std::exchange(position, {})));
  run->SetCompact(std::move(merged));
  return std::nullopt;
}

// Returns the refusal after which every rank sends its shard of the row whole.
Refusal RequireWholeShards(const RowPlan& plan, std::string why) {
  Refusal refusal{Reason::kRowRequired, absl::StrCat("step.rows[", plan.row, "].compact"), "", std::move(why)};
  for (uint32_t i = 0; i < plan.positions(); ++i) refusal.required.push_back({i, {}});
  return refusal;
}

void SetLogits(const ShardTable::WholeRow& shards, uint32_t live_vocabulary, uint32_t position,
               devices::DeviceRow* row) {
  for (const RowShard& shard : shards) {
    const StepShape& shape = shard.message->shape();
    if (live_vocabulary <= shape.shard->first_token) continue;  // all of it is padding
    const PayloadView& logits = static_cast<const StreamShards&>(*shard.message).message()->logits();
    const uint64_t bytes = uint64_t{std::min(shape.width, live_vocabulary - shape.shard->first_token)} *
                           kernels::ElementBytes(shape.dtype);
    const auto part = logits.Slice((shard.message->FirstTensorRow(shard.row) + position) * shape.row_stride, bytes);
    row->segments.insert(row->segments.end(), part.begin(), part.end());
    row->may_change |= logits.may_change();
  }
}

// Returns the bytes of the shortest of the shards' messages. Each of them gets the answers.
uint64_t LeastSent(const std::vector<ShardTable::WholeRow>& rows) {
  uint64_t least = std::numeric_limits<uint32_t>::max();
  for (const ShardTable::WholeRow& shards : rows) {
    for (const RowShard& shard : shards) {
      least = std::min(least, static_cast<const StreamShards&>(*shard.message).message()->sent_bytes());
    }
  }
  return least;
}

std::vector<std::string> SequencesOf(const StepMessage& message) {
  std::vector<std::string> request_ids;
  for (const v1::StepRow& row : message.step().rows()) request_ids.push_back(row.request_id());
  return request_ids;
}

// The rows of one message of shard 0 that have become whole together.
struct StartedRows {
  std::shared_ptr<StreamShards> first;
  std::shared_ptr<SharedAnswers> sink;
  std::shared_ptr<StepInFlight> step;
};

}  // namespace

absl::flat_hash_set<absl::string_view> FindNamedTwice(const v1::Step& step) {
  absl::flat_hash_set<absl::string_view> named, twice;
  named.reserve(static_cast<size_t>(step.rows_size()));
  for (const v1::StepRow& row : step.rows()) {
    if (!named.insert(row.request_id()).second) twice.insert(row.request_id());
  }
  return twice;
}

Refusal DuplicateRow(uint32_t index) {
  return {Reason::kDuplicateRow, absl::StrCat("step.rows[", index, "].request_id"), "1 row",
          "the step has several rows for this sequence; none of them is served"};
}

SharedAnswer ShardAssembler::FindKept(const StepMessage& message, uint32_t row) const {
  const ShardShape& shard = *message.shape().shard;
  if (shard.epoch == 0) return nullptr;
  return engine_.shards().Find(stream_->worker(), message.row(row), shard.index);
}

void ShardAssembler::AnswerRepeated(const std::shared_ptr<StepMessage>& message, StepAnswers repeated,
                                    StepAnswers* held) {
  const ShardShape& shard = *message->shape().shard;
  if (shard.epoch == 0) return held->Add(std::move(repeated));
  for (RowAnswer& row : repeated.Rows()) {
    const v1::StepRow& asked = message->row(row.note.row);
    auto owed = engine_.shards().Keep(stream_->worker(), asked, std::make_shared<const HeldAnswer>(std::move(row)),
                                      shard.count, ShardTable::Source::kComputed);
    std::ranges::move(owed, std::back_inserter(owed_));
  }
  message->Answer(std::move(repeated));
}

void ShardAssembler::AddFirst(const std::shared_ptr<StepMessage>& message,
                              std::vector<std::unique_ptr<SequenceRow>> runs, StepAnswers now) {
  std::vector<FirstShardRow> rows(message->rows());
  std::vector<uint32_t> waiting;
  StepAnswers settled;
  for (RowAnswer& row : now.Rows()) {
    const uint32_t index = row.note.row;
    const bool settles = row.note.refused && IsMendedByOpening(*row.note.refused);
    (settles ? settled : rows[index].held).Add(std::move(row), index);
  }
  for (uint32_t index = 0; index < rows.size(); ++index) {
    rows[index].run = std::move(runs[index]);
    if (rows[index].run != nullptr || !rows[index].held.empty()) waiting.push_back(index);
  }
  if (!settled.empty()) message->Answer(std::move(settled));
  Add(std::make_shared<StreamShards>(message, std::move(rows)), waiting, *message);
}

void ShardAssembler::AddOther(const std::shared_ptr<StepMessage>& message) {
  const auto twice = FindNamedTwice(message->step());
  const uint64_t parsed = message->step().SpaceUsedLong();
  if (parsed > message->bytes()) message->ChargeLists(parsed - message->bytes());
  Bill bill(message->sent_bytes());
  const auto check = [&](uint32_t index, const v1::StepRow& row) -> std::optional<Refusal> {
    if (const Refusal* const refusal = message->FindSetTwice(index)) return *refusal;
    if (auto refusal = message->FindUnknownInRow(index)) return refusal;
    if (auto refusal = CheckName(row.request_id(), absl::StrCat("step.rows[", index, "].request_id"))) return refusal;
    if (twice.contains(row.request_id())) return DuplicateRow(index);
    if (auto refusal = CheckOtherShard(row, index)) return refusal;
    const RowAsk ask = ToAsk(row, index);
    if (auto refusal = CheckLists(ask, engine_.limits())) return refusal;
    bill.BeginRow();
    if (!bill.Take(JudgeCost(ask))) return bill.TooMuch(absl::StrCat("step.rows[", index, "]"));
    return std::nullopt;
  };
  StepAnswers refused;
  std::vector<uint32_t> rows;
  for (uint32_t index = 0; index < message->rows(); ++index) {
    const v1::StepRow& row = message->row(index);
    if (const auto refusal = check(index, row)) {
      refused.Refuse({index, row.step_id()}, *refusal);
    } else {
      rows.push_back(index);
    }
  }
  engine_.Spend(&account_, bill.spent());
  if (!refused.empty()) message->Answer(std::move(refused));
  Add(std::make_shared<StreamShards>(message, std::vector<FirstShardRow>()), rows, *message);
}

void ShardAssembler::Add(const std::shared_ptr<ShardMessage>& message, const std::vector<uint32_t>& rows,
                         const StepMessage& step) {
  const absl::Time deadline = step.arrived() + std::min(step.shape().timeout, engine_.limits().shard_wait);
  ShardTable::Added added = engine_.shards().Add(stream_->worker(), message, rows, deadline);
  bill_ = Bill(LeastSent(added.complete));
  std::ranges::move(added.kept, std::back_inserter(owed_));
  std::ranges::move(added.complete, std::back_inserter(whole_));
  if (has_pieces()) TakePiece();
  // Shards that came between the notice and here would wait for shards that do not come any more.
  const Refusal draining = StreamContext::Draining();
  if (shutting_down_.load()) Withdraw(&draining);
}

void ShardAssembler::AddBrought(const v1::StepRow& asked, RowAnswer answer) {
  auto owed = engine_.shards().Keep(stream_->worker(), asked, std::make_shared<const HeldAnswer>(std::move(answer)), 0,
                                    ShardTable::Source::kBrought);
  bill_ = Bill();
  std::ranges::move(owed, std::back_inserter(owed_));
  if (has_pieces()) TakePiece();
}

// The shard that completes a row may be another stream's than the one that opened the sequence.
void ShardAssembler::TakePiece() {
  std::vector<StartedRows> started;
  bill_.BeginPiece();
  ShardAnswers answers;
  for (; !owed_.empty() && !bill_.piece_is_full(); owed_.pop_front()) {
    const OwedAnswer& owed = owed_.front();
    if (owed.shard.message->stream() == stream_->owner.stream && stream_->closed()) {
      owed.shard.message->Drop(owed.shard.row);
      continue;
    }
    bill_.Add(price::kShardAnswer + price::kAnswerByte * owed.answer->bytes);
    answers.Add(owed);
  }
  answers.Send();
  for (; !whole_.empty() && !bill_.piece_is_full(); whole_.pop_front()) {
    const ShardTable::WholeRow& shards = whole_.front();
    const RowShard& of_first = *std::ranges::find_if(shards, &RowShard::is_first);
    const uint32_t index = of_first.row;
    const auto first = std::static_pointer_cast<StreamShards>(of_first.message);
    const std::shared_ptr<StepMessage>& message = first->message();
    auto of_message = std::ranges::find(started, first, &StartedRows::first);
    if (of_message == started.end()) {
      auto sink = std::make_shared<SharedAnswers>(&engine_, message);
      auto step = std::make_shared<StepInFlight>(message, sink, &engine_.batcher(), &engine_.checkpoint_key(), true);
      of_message = started.insert(started.end(), {first, std::move(sink), std::move(step)});
    }
    SharedAnswers& sink = *of_message->sink;
    std::vector<RowShard> others;
    for (const RowShard& shard : shards) {
      if (shard.message != first) others.push_back(shard);
    }
    sink.SetOthers(index, std::move(others));
    FirstShardRow row = first->Take(index);
    const auto compact = std::ranges::count_if(shards, IsCompact);
    if (row.run == nullptr || compact != 0) bill_.Add(price::kShardAnswer * shards.size());
    if (row.run == nullptr) bill_.Add(price::kAnswerByte * row.held.results().SpaceUsedLong() * shards.size());
    if (row.run == nullptr) {
      sink.Answer(std::move(row.held));
      continue;
    }
    const auto refuse = [&](const Refusal& refusal) {
      row.run->Abort();
      StepAnswers refused;
      refused.Refuse({index, message->row(index).step_id()}, refusal);
      sink.Answer(std::move(refused));
    };
    if (compact != 0) {
      bill_.BeginRow();
      if (static_cast<size_t>(compact) < shards.size()) {
        refuse(RequireWholeShards(row.run->plan(), "other shards of the row are whole"));
      } else if (!bill_.Take(MergeCost(shards))) {
        refuse(RequireWholeShards(row.run->plan(), "its shards ask for more work than one message may"));
      } else if (const auto refusal = MergeCompact(shards, engine_.limits(), row.run.get())) {
        refuse(*refusal);
      } else {
        StepAnswers answer;
        AnswerCompactRow(*message, engine_.checkpoint_key(), row.run.get(), &bill_, &answer);
        engine_.observer().CompactRows(CountCompact(answer, 1));
        sink.Answer(std::move(answer));
      }
      continue;
    }
    if (const auto refusal = CheckTensorRows(shards, row.run->plan().positions())) {
      refuse(*refusal);
      continue;
    }
    const uint32_t live_vocabulary = row.run->spec().live_vocabulary;
    of_message->step->AddRow(std::move(*row.run), [&](uint32_t position, devices::DeviceRow* to) {
      SetLogits(shards, live_vocabulary, position, to);
    });
  }
  for (const StartedRows& of_message : started) {
    std::vector<QueuedRow> queued = of_message.step->TakeRows();
    if (queued.empty()) continue;
    const std::shared_ptr<StepMessage>& message = of_message.first->message();
    message->Attach(of_message.step);
    const auto refusal = engine_.batcher().Submit(of_message.step, std::move(queued));
    if (refusal) of_message.sink->Answer(of_message.step->RefuseRows(*refusal));
  }
  engine_.Spend(&account_, bill_.piece_work());
  if (has_pieces()) stream_->pause = engine_.ledger().PauseAfter(bill_.piece_work());
}

void ShardAssembler::Cancel(const StepMessage& message) {
  if (!message.shape().shard) return;
  const auto is_of_message = [&](const RowShard& shard) { return &shard.message->step() == &message.step(); };
  engine_.shards().Cancel(stream_->worker(), SequencesOf(message), is_of_message,
                          {Reason::kStepCancelled, "", "", "the step was cancelled before all of its shards came"});
}

void ShardAssembler::ShutDown() {
  const Refusal draining = StreamContext::Draining();
  if (!shutting_down_.exchange(true)) Withdraw(&draining);
}

void ShardAssembler::Withdraw(const Refusal* refusal) {
  const auto is_own = [&](const RowShard& shard) { return shard.message->stream() == stream_->owner.stream; };
  for (const auto& step : stream_->Steps()) {
    if (step->shape().shard) engine_.shards().Withdraw(stream_->worker(), SequencesOf(*step), is_own, refusal);
  }
}

}  // namespace sortition::service
