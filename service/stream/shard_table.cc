// Which slices fit together, and which are missing.
#include "service/stream/shard_table.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "service/request/position_request.h"
#include "service/stream/step_in_flight.h"

namespace sortition::service {
namespace {

using Refused = std::vector<std::pair<RowSlice, Refusal>>;

SequenceKey KeyOf(const ShardTable::Worker& worker, const std::string& request_id) {
  return SequenceKey{worker.tenant, worker.session, request_id};
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

ShardTable::ShardTable(const Limits& limits, const Clock* clock) : clock_(*clock), kept_(limits) {}

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
      const KeptAnswer* const kept =
          shard.epoch == 0 ? nullptr : kept_.Find(key, slice.asked(), shard.index, clock_.Now());
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

void ShardTable::Keep(const Worker& worker, const v1::StepRow& asked, std::vector<v1::RowResult> results,
                      uint32_t ranks, Source source) {
  SliceAnswers answers;
  {
    absl::MutexLock lock(&mutex_);
    const SequenceKey key = KeyOf(worker, asked.request_id());
    KeptAnswer answer(asked, std::move(results), ranks);
    if (source == Source::kBrought) {
      if (const KeptAnswer* const former = kept_.Find(key)) {
        if (former->step_id >= asked.step_id()) return;
        answer.closed = former->closed;
      }
    }
    const auto is_answered = [&](const RowSlice& slice) {
      return answer.IsOf(slice.asked(), slice.message->shard().index);
    };
    for (const RowSlice& slice : TakeWaiting(key, is_answered)) {
      for (const v1::RowResult& part : answer.results) answers.Add(slice, part);
    }
    kept_.Put(key, std::move(answer), clock_.Now());
  }
  answers.Send();
}

std::vector<v1::RowResult> ShardTable::Find(const Worker& worker, const v1::StepRow& asked, uint32_t index) {
  absl::MutexLock lock(&mutex_);
  const KeptAnswer* const kept = kept_.Find(KeyOf(worker, asked.request_id()), asked, index, clock_.Now());
  return kept == nullptr ? std::vector<v1::RowResult>() : kept->results;
}

void ShardTable::Close(const Worker& worker, const std::string& request_id, uint32_t index) {
  absl::MutexLock lock(&mutex_);
  kept_.Close(KeyOf(worker, request_id), index);
}

void ShardTable::Forget(const std::string& tenant) {
  absl::MutexLock lock(&mutex_);
  kept_.Forget(tenant);
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
    kept_.Expire(now);
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
