// Decides which shards fit together, and which are missing.
#include "service/shard/shard_table.h"

#include <algorithm>
#include <bitset>
#include <functional>
#include <iterator>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace sortition::service {
namespace {

// The most missing shards that a refusal names.
constexpr size_t kMostNamed = 8;
// The most memory of answers that wait for the others of their messages.
constexpr uint64_t kMostGathered = kMaxAnswerBytes;

using Refused = std::vector<std::pair<RowShard, Refusal>>;

SequenceKey MakeKey(const ShardTable::Worker& worker, const std::string& request_id) {
  return SequenceKey{worker.tenant, worker.session, request_id};
}

Refusal Contradicts(absl::string_view field, std::string message) {
  return Refusal{Reason::kContradiction, absl::StrCat("step.", field), "", std::move(message)};
}

// Returns true if a field of two shards contradicts. Both have the same value, or one that is not shard 0 lacks it.
bool Contradict(const RowShard& shard, bool is_set, const RowShard& other, bool is_others, bool are_alike) {
  if (is_set && is_others) return !are_alike;
  return (is_set && other.is_first()) || (is_others && shard.is_first());
}

// Returns the field of the row that contradicts the other shard's, with a point before it; null if none does.
const char* FindDifference(const RowShard& shard, const RowShard& other) {
  const v1::StepRow& row = shard.asked();
  const v1::StepRow& others = other.asked();
  const auto contradict = [&](bool is_set, bool is_others, bool are_alike) {
    return Contradict(shard, is_set, other, is_others, are_alike);
  };
  if (row.position() != others.position()) return ".position";
  if (row.draw_salt() != others.draw_salt()) return ".draw_salt";
  if (contradict(row.has_history_hash(), others.has_history_hash(), row.history_hash() == others.history_hash())) {
    return ".history_hash";
  }
  if (shard.ask != other.ask) return "";
  if (row.has_verify_draft()) {
    const v1::VerifyDraft& drafts = row.verify_draft();
    const v1::VerifyDraft& theirs = others.verify_draft();
    if (contradict(drafts.has_return_probabilities(), theirs.has_return_probabilities(),
                   drafts.return_probabilities() == theirs.return_probabilities())) {
      return ".verify_draft.return_probabilities";
    }
    if (contradict(!drafts.sparse_probabilities().empty(), !theirs.sparse_probabilities().empty(),
                   shard.sparse == other.sparse)) {
      return ".verify_draft.sparse_probabilities";
    }
  }
  if (row.has_verify_tree() &&
      contradict(row.verify_tree().has_return_probabilities(), others.verify_tree().has_return_probabilities(),
                 row.verify_tree().return_probabilities() == others.verify_tree().return_probabilities())) {
    return ".verify_tree.return_probabilities";
  }
  return nullptr;
}

// RowShard::fields is below it.
constexpr uint32_t kFieldSets = 64;

std::optional<Refusal> CheckFits(const RowShard& shard, const RowShard& other) {
  const StepShape& mine = shard.message->shape();
  const StepShape& theirs = other.message->shape();
  if (mine.shard->count != theirs.shard->count) {
    return Contradicts("logits.shard.count", "another shard of this row has another");
  }
  if (mine.vocabulary != theirs.vocabulary) {
    return Contradicts("logits.shard.total_vocabulary_size", "another shard of this row has another");
  }
  if (mine.dtype != theirs.dtype) return Contradicts("logits.dtype", "another shard of this row has another");
  const auto not_alike = [&] { return absl::StrCat("is not that of shard ", other.index); };
  const v1::Step& step = shard.message->step();
  const v1::Step& their_step = other.message->step();
  if (Contradict(shard, step.has_priority(), other, their_step.has_priority(),
                 step.priority() == their_step.priority())) {
    return Contradicts("priority", not_alike());
  }
  if (const char* const field = FindDifference(shard, other)) {
    return Contradicts(absl::StrCat("rows[", shard.row, "]", field), not_alike());
  }
  return std::nullopt;
}

// All shards have come and none overlaps another: a gap shows in the sum.
std::optional<Refusal> CheckCovers(const ShardTable::WholeRow& shards) {
  uint64_t covered = 0;
  for (const RowShard& shard : shards) covered += shard.message->shape().width;
  const uint32_t total = shards.front().message->shape().vocabulary;
  if (covered == total) return std::nullopt;
  return Refusal{Reason::kSizeMismatch, "step.logits.shard.total_vocabulary_size", absl::StrCat(covered),
                 absl::StrCat("the shards have ", covered, " of ", total, " tokens")};
}

Refusal Missing(const std::vector<RowShard>& shards, const Limits& limits) {
  const uint32_t count = shards.front().message->shard().count;
  std::vector<bool> came(count);
  for (const RowShard& shard : shards) came[shard.index] = true;
  std::vector<uint32_t> named;
  for (uint32_t index = 0; index < count && named.size() < kMostNamed; ++index) {
    if (!came[index]) named.push_back(index);
  }
  const auto missing = static_cast<size_t>(std::ranges::count(came, false));
  const std::string beyond = missing > named.size() ? absl::StrCat(", and ", missing - named.size(), " others") : "";
  const bool by_timeout = std::ranges::any_of(
      shards, [&](const RowShard& shard) { return shard.message->shape().timeout < limits.shard_wait; });
  return Refusal{Reason::kDeadlinePassed, "step.logits.shard",
                 by_timeout ? "step.timeout" : Bounds(limits).shard_wait().Text(),
                 absl::StrCat("of ", count, " shards these have not come: ", absl::StrJoin(named, ", "), beyond)};
}

// Decides between a shard and `former`, which waits and has the same index. On one stream the later shard replaces the
// earlier; between two streams of a rank, the later stream's shard does.
std::optional<Refusal> CheckReplaces(const RowShard& shard, const RowShard& former, Refused* refused) {
  if (shard.message->stream() == former.message->stream()) {
    refused->emplace_back(former, Refusal{Reason::kStepCancelled, "", "", "the shard was sent again"});
    return std::nullopt;
  }
  const uint64_t epoch = shard.message->shard().epoch;
  const uint64_t former_epoch = former.message->shard().epoch;
  if (epoch == former_epoch) return Contradicts("logits.shard.index", "this shard has come already");
  const auto superseded = [](uint64_t by) {
    return Refusal{Reason::kSuperseded, "step.logits.shard.epoch", absl::StrCat("> ", by),
                   "a later stream has sent this shard"};
  };
  if (epoch < former_epoch) return superseded(former_epoch);
  refused->emplace_back(former, superseded(epoch));
  return std::nullopt;
}

}  // namespace

RowShard::RowShard(std::shared_ptr<ShardMessage> of, uint32_t row_index)
    : message(std::move(of)),
      row(row_index),
      index(message->shard().index),
      first_token(message->shard().first_token),
      end_token(first_token + message->shape().width),
      ask(HashAsk(asked())),
      sparse(0) {
  const v1::VerifyDraft& drafts = asked().verify_draft();
  const bool has[] = {index == 0,
                      message->step().has_priority(),
                      asked().has_history_hash(),
                      drafts.has_return_probabilities(),
                      !drafts.sparse_probabilities().empty(),
                      asked().verify_tree().has_return_probabilities()};
  static_assert(1u << std::size(has) == kFieldSets);
  fields = 0;
  for (const bool field : has) fields = 2 * fields + field;
  const auto values = [](const auto& field) { return absl::MakeConstSpan(field.data(), field.size()); };
  for (const v1::SparseProbabilities& list : drafts.sparse_probabilities()) {
    sparse = absl::HashOf(sparse, values(list.tokens()), values(list.probabilities()));
  }
}

StepAnswers& ShardAnswers::Of(const RowShard& shard) {
  const auto [place, is_new] = places_.try_emplace(shard.message.get(), messages_.size());
  if (is_new) messages_.emplace_back(shard.message, StepAnswers());
  return messages_[place->second].second;
}

void ShardAnswers::Refuse(const RowShard& shard, const Refusal& refusal) {
  Of(shard).Refuse({shard.row, shard.asked().step_id()}, refusal);
}

void ShardAnswers::Add(const OwedAnswer& owed) {
  Of(owed.shard).Add(owed.answer->answer, owed.shard.row);
  bytes_ += owed.answer->bytes;
  if (bytes_ >= kMostGathered) Send();
}

void ShardAnswers::Send() {
  bytes_ = 0;
  places_.clear();
  for (auto& [message, answers] : std::exchange(messages_, {})) message->Answer(std::move(answers));
}

ShardTable::ShardTable(const Limits& limits, const Clock* clock) : limits_(limits), clock_(*clock), kept_(limits) {}

ShardTable::Added ShardTable::Add(const Worker& worker, const std::shared_ptr<ShardMessage>& message,
                                  std::span<const uint32_t> rows, absl::Time deadline) {
  const ShardShape& part = message->shard();
  std::vector<RowShard> shards;
  for (const uint32_t row : rows) shards.emplace_back(message, row);
  Added added;
  Refused refused;
  {
    absl::MutexLock lock(&mutex_);
    for (const RowShard& shard : shards) {
      const SequenceKey key = MakeKey(worker, shard.asked().request_id());
      // Without an epoch a step id may be used again for another step.
      if (part.epoch != 0) {
        if (auto kept = kept_.Find(key, shard.asked().step_id(), shard.ask, part.index, clock_.Now())) {
          added.kept.emplace_back(shard, std::move(kept));
          continue;
        }
      }
      const auto [row, is_new] = waiting_.try_emplace({key, shard.asked().step_id()});
      Assembly& assembly = row->second;
      if (is_new) {
        assembly.deadline = deadlines_.emplace(deadline, &row->first);
      } else if (deadline < assembly.deadline->first) {
        auto place = deadlines_.extract(assembly.deadline);
        place.key() = deadline;
        assembly.deadline = deadlines_.insert(std::move(place));
      }
      if (!AddShard(&assembly.shards, shard, &refused)) continue;
      added.complete.push_back(std::move(assembly.shards));
      Erase(row);
    }
  }
  std::erase_if(added.complete, [&](const WholeRow& shards) {
    const std::optional<Refusal> refusal = CheckCovers(shards);
    if (refusal) {
      for (const RowShard& shard : shards) refused.emplace_back(shard, *refusal);
    }
    return refusal.has_value();
  });
  ShardAnswers answers;
  for (const auto& [shard, refusal] : refused) answers.Refuse(shard, refusal);
  answers.Send();
  return added;
}

bool ShardTable::AddShard(std::vector<RowShard>* others, const RowShard& shard, Refused* refused) {
  std::vector<RowShard>& shards = *others;
  const auto refuse = [&](Refusal why) {
    refused->emplace_back(shard, std::move(why));
    return false;
  };
  std::bitset<kFieldSets> compared;
  auto former = shards.end();
  for (auto other = shards.begin(); other != shards.end(); ++other) {
    if (other->index == shard.index) {
      former = other;
      continue;
    }
    if (!compared[other->fields]) {
      compared.set(other->fields);
      if (auto why = CheckFits(shard, *other)) return refuse(*std::move(why));
    }
    if (shard.first_token < other->end_token && other->first_token < shard.end_token) {
      return refuse(Contradicts("logits.shard.first_token", absl::StrCat("overlaps shard ", other->index)));
    }
  }
  if (former != shards.end()) {
    if (auto why = CheckReplaces(shard, *former, refused)) return refuse(*std::move(why));
    shards.erase(former);
  }
  shards.insert(std::ranges::upper_bound(shards, shard.first_token, {}, &RowShard::first_token), shard);
  return shards.size() == shard.message->shard().count;
}

std::vector<OwedAnswer> ShardTable::Keep(const Worker& worker, const v1::StepRow& asked, SharedAnswer answer,
                                         uint32_t ranks, Source source) {
  const SequenceKey key = MakeKey(worker, asked.request_id());
  KeptAnswer kept(asked, answer, ranks);
  std::vector<RowShard> answered;
  {
    absl::MutexLock lock(&mutex_);
    if (source == Source::kBrought) {
      if (const KeptAnswer* const former = kept_.Find(key)) {
        if (former->step_id >= asked.step_id()) return {};
        kept.closed = former->closed;
      }
    }
    const auto is_answered = [&](const RowShard& shard) {
      return kept.IsOf(shard.asked().step_id(), shard.ask, shard.index);
    };
    answered = TakeWaiting(key, is_answered, Extent::kShards);
    kept_.Put(key, std::move(kept), clock_.Now());
  }
  std::vector<OwedAnswer> owed;
  owed.reserve(answered.size());
  for (RowShard& shard : answered) owed.emplace_back(std::move(shard), answer);
  return owed;
}

SharedAnswer ShardTable::Find(const Worker& worker, const v1::StepRow& asked, uint32_t index) {
  const SequenceKey key = MakeKey(worker, asked.request_id());
  const uint64_t ask = HashAsk(asked);
  absl::MutexLock lock(&mutex_);
  return kept_.Find(key, asked.step_id(), ask, index, clock_.Now());
}

bool ShardTable::Close(const Worker& worker, const std::string& request_id, uint32_t index) {
  absl::MutexLock lock(&mutex_);
  return kept_.Close(MakeKey(worker, request_id), index);
}

void ShardTable::Forget(const std::string& tenant) {
  absl::MutexLock lock(&mutex_);
  kept_.Forget(tenant);
}

ShardTable::Waiting::iterator ShardTable::Erase(Waiting::iterator row) {
  deadlines_.erase(row->second.deadline);
  return waiting_.erase(row);
}

std::vector<RowShard> ShardTable::TakeWaiting(const SequenceKey& key, Wanted is_wanted, Extent extent) {
  const auto is_first = [&](const RowShard& shard) { return shard.is_first() && is_wanted(shard); };
  std::vector<RowShard> taken;
  auto row = waiting_.lower_bound({key, 0});
  while (row != waiting_.end() && row->first.first == key) {
    std::vector<RowShard>& shards = row->second.shards;
    const bool takes_all = extent == Extent::kRows && std::ranges::any_of(shards, is_first);
    const auto first =
        takes_all ? shards.begin() : std::stable_partition(shards.begin(), shards.end(), std::not_fn(is_wanted));
    taken.insert(taken.end(), first, shards.end());
    shards.erase(first, shards.end());
    row = shards.empty() ? Erase(row) : std::next(row);
  }
  return taken;
}

void ShardTable::Expire() {
  std::vector<std::vector<RowShard>> expired;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_.Now();
    size_t shards = 0;
    while (shards < kMostExpired && !deadlines_.empty() && deadlines_.begin()->first <= now) {
      const auto row = waiting_.find(*deadlines_.begin()->second);
      shards += row->second.shards.size();
      expired.push_back(std::move(row->second.shards));
      Erase(row);
    }
    kept_.Expire(now);
  }
  ShardAnswers answers;
  for (const std::vector<RowShard>& shards : expired) {
    const Refusal missing = Missing(shards, limits_);
    for (const RowShard& shard : shards) answers.Refuse(shard, missing);
  }
  answers.Send();
}

void ShardTable::Remove(const Worker& worker, std::span<const std::string> request_ids, Wanted is_wanted, Extent extent,
                        const Refusal* refusal) {
  std::vector<RowShard> removed;
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& request_id : request_ids) {
      std::ranges::move(TakeWaiting(MakeKey(worker, request_id), is_wanted, extent), std::back_inserter(removed));
    }
  }
  ShardAnswers answers;
  for (const RowShard& shard : removed) {
    if (refusal != nullptr) {
      answers.Refuse(shard, *refusal);
    } else {
      shard.message->Drop(shard.row);
    }
  }
  answers.Send();
}

size_t ShardTable::waiting() const {
  absl::MutexLock lock(&mutex_);
  return waiting_.size();
}

size_t ShardTable::kept() const {
  absl::MutexLock lock(&mutex_);
  return kept_.size();
}

uint64_t ShardTable::kept_bytes() const {
  absl::MutexLock lock(&mutex_);
  return kept_.bytes();
}

}  // namespace sortition::service
