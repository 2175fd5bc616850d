// Decides which answers are kept and which are forgotten.
#include "service/shard/kept_answers.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "absl/types/span.h"

namespace sortition::service {
namespace {

// Estimate of the structures' memory for one answer.
constexpr uint64_t kOverheadBytes = 512;

}  // namespace

uint64_t HashAsk(const v1::StepRow& row) {
  const auto tokens = [](const auto& field) { return absl::MakeConstSpan(field.data(), field.size()); };
  return absl::HashOf(row.position(), row.draw_salt(), row.has_score(), row.has_verify_draft(), row.has_verify_tree(),
                      tokens(row.score().tokens()), tokens(row.verify_draft().draft_tokens()),
                      row.verify_draft().mode(), tokens(row.verify_tree().draft_tokens()),
                      tokens(row.verify_tree().parents()), row.verify_tree().mode(),
                      row.verify_tree().draft_sampling());
}

HeldAnswer::HeldAnswer(RowAnswer row) : answer(std::move(row)), bytes(kOverheadBytes) {
  for (const v1::RowResult& part : answer.parts) bytes += part.SpaceUsedLong();
}

KeptAnswer::KeptAnswer(const v1::StepRow& asked, SharedAnswer result, uint32_t rank_count)
    : step_id(asked.step_id()), ask(HashAsk(asked)), answer(std::move(result)), ranks(rank_count) {}

bool KeptAnswer::IsOf(uint64_t asked_step, uint64_t asked_hash, uint32_t index) const {
  return step_id == asked_step && ask == asked_hash && std::ranges::find(closed, index) == closed.end();
}

KeptAnswers::KeptAnswers(const Limits& limits) : max_bytes_(limits.max_shard_answer_bytes), ttl_(limits.sequence_ttl) {}

void KeptAnswers::Put(const SequenceKey& key, KeptAnswer answer, absl::Time now) {
  if (const auto former = entries_.find(key); former != entries_.end()) Drop(former);
  const uint64_t bytes = answer.answer->bytes;
  auto& owner = *tenants_.try_emplace(key.tenant).first;
  const auto place = owner.second.by_use.insert(owner.second.by_use.end(), key);
  entries_.emplace(key, Entry{std::move(answer), bytes, now, place});
  SetBytes(&owner, owner.second.bytes + bytes);
  for (uint64_t left = owner.second.bytes; left > kMostKeptOfTenant;) {
    const auto longest_unused = entries_.find(owner.second.by_use.front());
    left -= longest_unused->second.bytes;
    Drop(longest_unused);  // with the last one the tenant goes, too
  }
  while (bytes_ > max_bytes_) {
    const Tenant& largest = tenants_.find(by_bytes_.rbegin()->second)->second;
    Drop(entries_.find(largest.by_use.front()));
  }
}

const KeptAnswer* KeptAnswers::Find(const SequenceKey& key) const {
  const auto it = entries_.find(key);
  return it == entries_.end() ? nullptr : &it->second.answer;
}

SharedAnswer KeptAnswers::Find(const SequenceKey& key, uint64_t step_id, uint64_t ask, uint32_t index, absl::Time now) {
  const auto it = entries_.find(key);
  if (it == entries_.end() || !it->second.answer.IsOf(step_id, ask, index)) return nullptr;
  it->second.used = now;
  std::list<SequenceKey>& by_use = tenants_.find(key.tenant)->second.by_use;
  by_use.splice(by_use.end(), by_use, it->second.place);
  return it->second.answer.answer;
}

bool KeptAnswers::Close(const SequenceKey& key, uint32_t index) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return false;
  std::vector<uint32_t>& closed = it->second.answer.closed;
  if (std::ranges::find(closed, index) == closed.end()) closed.push_back(index);
  if (closed.size() == it->second.answer.ranks) Drop(it);
  return true;
}

void KeptAnswers::Expire(absl::Time now) {
  std::vector<Entries::iterator> expired;
  for (const auto& [name, owner] : tenants_) {
    for (const SequenceKey& key : owner.by_use) {
      const auto entry = entries_.find(key);
      if (entry->second.used > now - ttl_) break;
      expired.push_back(entry);
    }
  }
  for (const Entries::iterator entry : expired) Drop(entry);
}

void KeptAnswers::Forget(const std::string& tenant) {
  const auto owner = tenants_.find(tenant);
  if (owner == tenants_.end()) return;
  SetBytes(&*owner, 0);
  for (const SequenceKey& key : owner->second.by_use) entries_.erase(key);
  tenants_.erase(owner);
}

void KeptAnswers::SetBytes(Tenants::pointer owner, uint64_t bytes) {
  by_bytes_.erase({owner->second.bytes, owner->first});
  bytes_ += bytes - owner->second.bytes;
  owner->second.bytes = bytes;
  if (bytes > 0) by_bytes_.emplace(bytes, owner->first);
}

void KeptAnswers::Drop(Entries::iterator entry) {
  const auto owner = tenants_.find(entry->first.tenant);
  SetBytes(&*owner, owner->second.bytes - entry->second.bytes);
  owner->second.by_use.erase(entry->second.place);
  if (owner->second.by_use.empty()) tenants_.erase(owner);
  entries_.erase(entry);
}

}  // namespace sortition::service
