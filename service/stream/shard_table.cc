// Which slices fit together, and which are missing.
#include "service/stream/shard_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "service/request/position_request.h"
#include "service/stream/step_in_flight.h"

namespace sortition::service {
namespace {

Refusal Contradicts(absl::string_view field, std::string message) {
  return Refusal{Reason::kContradiction, absl::StrCat("step.", field), "", std::move(message)};
}

uint32_t End(const StepShard& shard) { return shard.first_token() + shard.shape.width; }

// Whether both name the same rows of the same sequences. Which row of its own tensor each is may differ.
bool SameRows(const v1::Step& a, const v1::Step& b) {
  return std::equal(a.rows().begin(), a.rows().end(), b.rows().begin(), b.rows().end(),
                    [](const v1::StepRow& x, const v1::StepRow& y) {
                      return x.request_id() == y.request_id() && x.step_id() == y.step_id() &&
                             x.position() == y.position() && TensorRowsOf(x) == TensorRowsOf(y);
                    });
}

std::optional<Refusal> CheckFits(const StepShard& shard, const StepShard& other) {
  const ShardShape& mine = *shard.shape.shard;
  const ShardShape& theirs = *other.shape.shard;
  if (mine.count != theirs.count) return Contradicts("logits.shard.count", "another slice of this step has another");
  if (shard.shape.vocabulary != other.shape.vocabulary) {
    return Contradicts("logits.shard.total_vocabulary_size", "another slice of this step has another");
  }
  if (shard.shape.dtype != other.shape.dtype) {
    return Contradicts("logits.dtype", "another slice of this step has another");
  }
  if (mine.index == theirs.index) return Contradicts("logits.shard.index", "this slice has come already");
  if (shard.first_token() < End(other) && other.first_token() < End(shard)) {
    return Contradicts("logits.shard.first_token", absl::StrCat("overlaps slice ", theirs.index));
  }
  if (!SameRows(shard.frame->message.step(), other.frame->message.step())) {
    return Contradicts("rows", absl::StrCat("are not those of slice ", theirs.index));
  }
  return std::nullopt;
}

// All slices have come and none overlaps another: a gap shows in the sum.
std::optional<Refusal> CheckCovers(const std::vector<StepShard>& shards) {
  uint64_t covered = 0;
  for (const StepShard& shard : shards) covered += shard.shape.width;
  const uint32_t total = shards.front().shape.vocabulary;
  if (covered == total) return std::nullopt;
  return Refusal{Reason::kSizeMismatch, "step.logits.shard.total_vocabulary_size", absl::StrCat(covered),
                 absl::StrCat("the slices have ", covered, " of ", total, " tokens")};
}

Refusal Missing(const std::vector<StepShard>& shards) {
  const uint32_t count = shards.front().shape.shard->count;
  std::vector<uint32_t> missing;
  for (uint32_t index = 0; index < count; ++index) {
    const auto is_it = [&](const StepShard& shard) { return shard.shape.shard->index == index; };
    if (std::ranges::none_of(shards, is_it)) missing.push_back(index);
  }
  return Refusal{Reason::kDeadlinePassed, "step.logits.shard", "",
                 absl::StrCat("of ", count, " slices these have not come: ", absl::StrJoin(missing, ", "))};
}

void RefuseAll(const std::vector<StepShard>& shards, const Refusal& refusal) {
  for (const StepShard& shard : shards) {
    if (shard.step != nullptr) shard.step->AbortRows();
  }
  for (const StepShard& shard : shards) {
    shard.owner->RefuseShard(shard.batch_id(), refusal, shard.rows(), shard.frame->bytes);
  }
}

}  // namespace

ShardTable::Added ShardTable::Add(const Key& key, StepShard shard, absl::Time deadline) {
  const uint32_t count = shard.shape.shard->count;
  std::vector<StepShard> complete;
  {
    absl::MutexLock lock(&mutex_);
    const auto [it, is_first] = assemblies_.try_emplace(key, Assembly{deadline, {}});
    std::vector<StepShard>& shards = it->second.shards;
    for (const StepShard& other : shards) {
      if (auto refusal = CheckFits(shard, other)) return *std::move(refusal);
    }
    const auto place = std::ranges::upper_bound(shards, shard.first_token(), {}, &StepShard::first_token);
    shards.insert(place, std::move(shard));
    if (shards.size() < count) return std::monostate();
    complete = std::move(shards);
    assemblies_.erase(it);
  }
  const std::optional<Refusal> refusal = CheckCovers(complete);
  if (!refusal) return complete;
  RefuseAll(complete, *refusal);
  return std::monostate();
}

void ShardTable::Expire(absl::Time now) {
  std::vector<Assembly> expired;
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = assemblies_.begin(); it != assemblies_.end();) {
      if (it->second.deadline > now) {
        ++it;
        continue;
      }
      expired.push_back(std::move(it->second));
      it = assemblies_.erase(it);
    }
  }
  for (const Assembly& assembly : expired) RefuseAll(assembly.shards, Missing(assembly.shards));
}

void ShardTable::Withdraw(const ShardOwner* owner) {
  std::vector<StepShard> withdrawn;
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = assemblies_.begin(); it != assemblies_.end();) {
      std::vector<StepShard>& shards = it->second.shards;
      const auto own = std::stable_partition(shards.begin(), shards.end(),
                                             [&](const StepShard& shard) { return shard.owner.get() != owner; });
      std::move(own, shards.end(), std::back_inserter(withdrawn));
      shards.erase(own, shards.end());
      it = shards.empty() ? assemblies_.erase(it) : std::next(it);
    }
  }
  for (const StepShard& shard : withdrawn) {
    if (shard.step != nullptr) shard.step->AbortRows();
  }
}

size_t ShardTable::waiting() const {
  absl::MutexLock lock(&mutex_);
  return assemblies_.size();
}

}  // namespace sortition::service
