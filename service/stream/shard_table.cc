// Which slices fit together, which are missing, and which answers are kept.
#include "service/stream/shard_table.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "service/request/position_request.h"
#include "service/stream/step_in_flight.h"

namespace sortition::service {
namespace {

// Of the table's own structures for one kept answer, about.
constexpr uint64_t kKeptOverheadBytes = 512;

using Refused = std::vector<std::pair<RowSlice, Refusal>>;

SequenceKey KeyOf(const ShardTable::Worker& worker, const std::string& request_id) {
  return SequenceKey{worker.name_space, worker.session, request_id};
}

// What all ranks say alike of a step beside its id.
uint64_t AskOf(const v1::StepRow& row) {
  const auto tokens = [](const auto& field) { return absl::MakeConstSpan(field.data(), field.size()); };
  return absl::HashOf(row.position(), row.draw_salt(), row.has_score(), row.has_verify_chain(), row.has_verify_tree(),
                      tokens(row.score().tokens()), tokens(row.verify_chain().draft_tokens()),
                      row.verify_chain().mode(), tokens(row.verify_tree().draft_tokens()),
                      tokens(row.verify_tree().parents()), row.verify_tree().mode());
}

Refusal Contradicts(absl::string_view field, std::string message) {
  return Refusal{Reason::kContradiction, absl::StrCat("step.", field), "", std::move(message)};
}

std::optional<Refusal> CheckFits(const RowSlice& slice, const RowSlice& other) {
  const StepShape& mine = slice.message->shape();
  const StepShape& theirs = other.message->shape();
  if (mine.shard->count != theirs.shard->count) {
    return Contradicts("logits.shard.count", "another slice of this row has another");
  }
  if (mine.vocabulary != theirs.vocabulary) {
    return Contradicts("logits.shard.total_vocabulary_size", "another slice of this row has another");
  }
  if (mine.dtype != theirs.dtype) return Contradicts("logits.dtype", "another slice of this row has another");
  if (mine.shard->first_token < other.message->end_token() && theirs.shard->first_token < slice.message->end_token()) {
    return Contradicts("logits.shard.first_token", absl::StrCat("overlaps slice ", theirs.shard->index));
  }
  const v1::StepRow& row = slice.asked();
  const auto differs = [&](absl::string_view field) {
    return Contradicts(absl::StrCat("rows[", slice.row, "]", field),
                       absl::StrCat("is not that of slice ", theirs.shard->index));
  };
  if (row.position() != other.asked().position()) return differs(".position");
  if (TensorRowsOf(row) != TensorRowsOf(other.asked())) return differs("");
  return std::nullopt;
}

// All slices have come and none overlaps another: a gap shows in the sum.
std::optional<Refusal> CheckCovers(const ShardTable::WholeRow& slices) {
  uint64_t covered = 0;
  for (const RowSlice& slice : slices) covered += slice.message->shape().width;
  const uint32_t total = slices.front().message->shape().vocabulary;
  if (covered == total) return std::nullopt;
  return Refusal{Reason::kSizeMismatch, "step.logits.shard.total_vocabulary_size", absl::StrCat(covered),
                 absl::StrCat("the slices have ", covered, " of ", total, " tokens")};
}

Refusal Missing(const std::vector<RowSlice>& slices) {
  const uint32_t count = slices.front().message->shard().count;
  std::vector<uint32_t> missing;
  for (uint32_t index = 0; index < count; ++index) {
    const auto is_it = [&](const RowSlice& slice) { return slice.message->shard().index == index; };
    if (std::ranges::none_of(slices, is_it)) missing.push_back(index);
  }
  return Refusal{Reason::kDeadlinePassed, "step.logits.shard", "",
                 absl::StrCat("of ", count, " slices these have not come: ", absl::StrJoin(missing, ", "))};
}

// What becomes of a slice and of one of the same index that waits already: the stream's own later word holds, and that
// of the rank's later stream.
std::optional<Refusal> CheckReplaces(const RowSlice& slice, const RowSlice& former, Refused* refused) {
  if (slice.message->owner() == former.message->owner()) {
    refused->emplace_back(former, Refusal{Reason::kStepCancelled, "", "", "the slice was sent again"});
    return std::nullopt;
  }
  const uint64_t epoch = slice.message->shard().epoch;
  const uint64_t former_epoch = former.message->shard().epoch;
  if (epoch == former_epoch) return Contradicts("logits.shard.index", "this slice has come already");
  const auto superseded = [](uint64_t by) {
    return Refusal{Reason::kSuperseded, "step.logits.shard.epoch", absl::StrCat("> ", by),
                   "a later stream has sent this slice"};
  };
  if (epoch < former_epoch) return superseded(former_epoch);
  refused->emplace_back(former, superseded(epoch));
  return std::nullopt;
}

}  // namespace

ShardTable::ShardTable(const Limits& limits, const Clock* clock) : answer_ttl_(limits.sequence_ttl), clock_(*clock) {}

std::vector<ShardTable::WholeRow> ShardTable::Add(const Worker& worker, const std::shared_ptr<SliceMessage>& message,
                                                  std::span<const uint32_t> rows, absl::Time deadline) {
  const ShardShape& shard = message->shard();
  std::vector<WholeRow> complete;
  SliceAnswers answers;
  Refused refused;
  {
    absl::MutexLock lock(&mutex_);
    for (const uint32_t row : rows) {
      const RowSlice slice{message, row};
      const SequenceKey key = KeyOf(worker, slice.asked().request_id());
      // Of ranks that do not number their streams an id may name another step after a while.
      const Kept* const kept = shard.epoch == 0 ? nullptr : FindKept(key, slice.asked(), shard.index);
      if (kept != nullptr) {
        for (const v1::RowResult& part : kept->results) answers.Add(slice, part);
        continue;
      }
      const auto sequence = waiting_.try_emplace(key).first;
      const auto it = sequence->second.try_emplace(slice.asked().step_id(), Assembly{deadline, {}}).first;
      it->second.deadline = std::min(it->second.deadline, deadline);
      if (!AddSlice(&it->second, slice, &refused)) continue;
      complete.push_back(std::move(it->second.slices));
      sequence->second.erase(it);
      if (sequence->second.empty()) waiting_.erase(sequence);
    }
  }
  std::erase_if(complete, [&](const WholeRow& slices) {
    const std::optional<Refusal> refusal = CheckCovers(slices);
    if (refusal) {
      for (const RowSlice& slice : slices) refused.emplace_back(slice, *refusal);
    }
    return refusal.has_value();
  });
  for (const auto& [slice, refusal] : refused) answers.Refuse(slice, refusal);
  answers.Send();
  return complete;
}

bool ShardTable::AddSlice(Assembly* assembly, const RowSlice& slice, Refused* refused) {
  const ShardShape& shard = slice.message->shard();
  std::vector<RowSlice>& slices = assembly->slices;
  const auto is_same = [&](const RowSlice& other) { return other.message->shard().index == shard.index; };
  for (const RowSlice& other : slices) {
    if (is_same(other)) continue;
    if (auto refusal = CheckFits(slice, other)) {
      refused->emplace_back(slice, *std::move(refusal));
      return false;
    }
  }
  const auto former = std::ranges::find_if(slices, is_same);
  if (former != slices.end()) {
    if (auto refusal = CheckReplaces(slice, *former, refused)) {
      refused->emplace_back(slice, *std::move(refusal));
      return false;
    }
    slices.erase(former);
  }
  const auto first_token = [](const RowSlice& other) { return other.message->shard().first_token; };
  slices.insert(std::ranges::upper_bound(slices, shard.first_token, {}, first_token), slice);
  return slices.size() == shard.count;
}

const ShardTable::Kept* ShardTable::FindKept(const SequenceKey& key, const v1::StepRow& asked, uint32_t index) {
  const auto it = kept_.find(key);
  if (it == kept_.end() || !Answers(it->second, asked, index)) return nullptr;
  it->second.used = clock_.Now();
  by_use_.splice(by_use_.end(), by_use_, it->second.place);
  return &it->second;
}

bool ShardTable::Answers(const Kept& kept, const v1::StepRow& asked, uint32_t index) {
  return kept.step_id == asked.step_id() && kept.ask == AskOf(asked) &&
         std::ranges::find(kept.closed, index) == kept.closed.end();
}

void ShardTable::Keep(const Worker& worker, const v1::StepRow& asked, std::vector<v1::RowResult> results,
                      uint32_t ranks, Source source) {
  SliceAnswers answers;
  {
    absl::MutexLock lock(&mutex_);
    const SequenceKey key = KeyOf(worker, asked.request_id());
    Kept kept;
    if (const auto former = kept_.find(key); source == Source::kBrought && former != kept_.end()) {
      if (former->second.step_id >= asked.step_id()) return;
      kept.closed = former->second.closed;
    }
    Drop(key);
    kept.step_id = asked.step_id();
    kept.ask = AskOf(asked);
    kept.results = std::move(results);
    kept.ranks = ranks;
    kept.bytes = kKeptOverheadBytes;
    for (const v1::RowResult& part : kept.results) kept.bytes += part.ByteSizeLong();
    kept.used = clock_.Now();
    kept.place = by_use_.insert(by_use_.end(), key);
    kept_bytes_ += kept.bytes;
    const auto is_answered = [&](const RowSlice& slice) {
      return Answers(kept, slice.asked(), slice.message->shard().index);
    };
    for (const RowSlice& slice : TakeWaiting(key, is_answered)) {
      for (const v1::RowResult& part : kept.results) answers.Add(slice, part);
    }
    kept_.emplace(key, std::move(kept));
    DropOld();
  }
  answers.Send();
}

std::vector<v1::RowResult> ShardTable::Find(const Worker& worker, const v1::StepRow& asked, uint32_t index) {
  absl::MutexLock lock(&mutex_);
  const Kept* const kept = FindKept(KeyOf(worker, asked.request_id()), asked, index);
  return kept == nullptr ? std::vector<v1::RowResult>() : kept->results;
}

void ShardTable::Close(const Worker& worker, const std::string& request_id, uint32_t index) {
  absl::MutexLock lock(&mutex_);
  const SequenceKey key = KeyOf(worker, request_id);
  const auto it = kept_.find(key);
  if (it == kept_.end()) return;
  std::vector<uint32_t>& closed = it->second.closed;
  if (std::ranges::find(closed, index) == closed.end()) closed.push_back(index);
  if (closed.size() == it->second.ranks) Drop(key);
}

void ShardTable::Drop(const SequenceKey& key) {
  const auto it = kept_.find(key);
  if (it == kept_.end()) return;
  kept_bytes_ -= it->second.bytes;
  by_use_.erase(it->second.place);
  kept_.erase(it);
}

void ShardTable::DropOld() {
  const absl::Time oldest = clock_.Now() - answer_ttl_;
  while (!by_use_.empty()) {
    const SequenceKey key = by_use_.front();
    if (kept_bytes_ <= kMaxShardAnswerBytes && kept_.at(key).used > oldest) return;
    Drop(key);
  }
}

std::vector<RowSlice> ShardTable::TakeWaiting(const SequenceKey& key, Wanted is_wanted) {
  std::vector<RowSlice> taken;
  const auto sequence = waiting_.find(key);
  if (sequence == waiting_.end()) return taken;
  Assemblies& assemblies = sequence->second;
  for (auto it = assemblies.begin(); it != assemblies.end();) {
    std::vector<RowSlice>& slices = it->second.slices;
    const auto first = std::stable_partition(slices.begin(), slices.end(), std::not_fn(is_wanted));
    taken.insert(taken.end(), first, slices.end());
    slices.erase(first, slices.end());
    it = slices.empty() ? assemblies.erase(it) : std::next(it);
  }
  if (sequence->second.empty()) waiting_.erase(sequence);
  return taken;
}

std::vector<RowSlice> ShardTable::TakeWaiting(Wanted is_wanted) {
  std::vector<SequenceKey> keys;
  for (const auto& [key, assemblies] : waiting_) keys.push_back(key);
  std::vector<RowSlice> taken;
  for (const SequenceKey& key : keys) {
    for (RowSlice& slice : TakeWaiting(key, is_wanted)) taken.push_back(std::move(slice));
  }
  return taken;
}

void ShardTable::Expire() {
  SliceAnswers answers;
  std::vector<Assembly> expired;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_.Now();
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      Assemblies& assemblies = it->second;
      for (auto assembly = assemblies.begin(); assembly != assemblies.end();) {
        const bool is_over = assembly->second.deadline <= now;
        if (is_over) expired.push_back(std::move(assembly->second));
        assembly = is_over ? assemblies.erase(assembly) : std::next(assembly);
      }
      const auto sequence = it++;
      if (assemblies.empty()) waiting_.erase(sequence);
    }
    DropOld();
  }
  for (const Assembly& assembly : expired) {
    const Refusal missing = Missing(assembly.slices);
    for (const RowSlice& slice : assembly.slices) answers.Refuse(slice, missing);
  }
  answers.Send();
}

void ShardTable::Withdraw(const SliceOwner* owner, const Refusal* refusal) {
  std::vector<RowSlice> withdrawn;
  {
    absl::MutexLock lock(&mutex_);
    withdrawn = TakeWaiting([&](const RowSlice& slice) { return slice.message->owner() == owner; });
  }
  SliceAnswers answers;
  for (const RowSlice& slice : withdrawn) {
    if (refusal != nullptr) {
      answers.Refuse(slice, *refusal);
    } else if (slice.message->step() != nullptr) {
      slice.message->step()->AbortRow(slice.row);
    }
  }
  answers.Send();
}

size_t ShardTable::waiting() const {
  absl::MutexLock lock(&mutex_);
  size_t rows = 0;
  for (const auto& [key, assemblies] : waiting_) rows += assemblies.size();
  return rows;
}

size_t ShardTable::kept() const {
  absl::MutexLock lock(&mutex_);
  return kept_.size();
}

}  // namespace sortition::service
