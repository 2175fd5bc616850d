// Entries change hands on the host, which waits for each chunk.
#include "devices/cuda/edit_cache.h"

#include <algorithm>
#include <span>
#include <utility>

#include "kernels/check.h"
#include "kernels/cuda/layout.h"

namespace sortition::devices::cuda {

using kernels::EditOrigin;
using kernels::LogitEdit;
using kernels::RowRequest;
using kernels::cuda::EditPath;

namespace {

// Room to grow by a quarter before the whole list is uploaded again.
uint32_t CapacityFor(size_t edits) {
  constexpr size_t kStep = 64;
  return uint32_t((edits + edits / 4 + kStep) / kStep * kStep);
}

// Returns the last `changes` changed tokens with their edits now; kEditGone marks a token that has none any more.
std::vector<LogitEdit> ChangesOf(const RowRequest& request, uint64_t changes) {
  const std::span<const uint32_t> last = request.edit_origin.changed.last(changes);
  std::vector<uint32_t> tokens(last.begin(), last.end());
  std::ranges::sort(tokens);
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  std::vector<LogitEdit> edits;
  edits.reserve(tokens.size());
  for (const uint32_t token : tokens) {
    const auto at = std::ranges::lower_bound(request.edits, token, {}, &LogitEdit::token);
    const bool has_one = at != request.edits.end() && at->token == token;
    edits.push_back(has_one ? *at : LogitEdit{.token = token, .flags = kernels::cuda::kEditGone});
  }
  return edits;
}

}  // namespace

EditCache::~EditCache() {
  const CurrentContext current(*context_);
  SORTITION_CHECK(taken_.empty());
  DropIdle(nullptr);
}

uint64_t EditCache::bytes() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

std::optional<EditCache::Entry> EditCache::Take(uint64_t list) {
  absl::MutexLock lock(&mutex_);
  if (!taken_.insert(list).second) return std::nullopt;
  const auto found = by_list_.find(list);
  if (found == by_list_.end()) return Entry{.list = list};
  const Entry entry = *found->second;
  idle_.erase(found->second);
  by_list_.erase(found);
  return entry;
}

bool EditCache::Allocate(uint32_t capacity, StreamHandle stream, Entry* entry) {
  absl::MutexLock lock(&mutex_);
  if (entry->memory != 0) Free(*entry, stream);
  *entry = {.list = entry->list};
  Entry larger = {.list = entry->list, .capacity = capacity};
  while (bytes_ + larger.bytes() > most_bytes_) {
    if (idle_.empty() || idle_.back().used + kIdleChunks > chunks_) return false;
    Forget(std::prev(idle_.end()), stream);
  }
  if (context_->api().MemAllocAsync(&larger.memory, larger.bytes(), stream) != Result::kSuccess) return false;
  bytes_ += larger.bytes();
  *entry = larger;
  return true;
}

void EditCache::Return(const Entry& entry, uint64_t chunk, StreamHandle stream) {
  absl::MutexLock lock(&mutex_);
  taken_.erase(entry.list);
  if (entry.memory == 0) return;
  if (chunk <= dropped_) return Free(entry, stream);
  idle_.push_front(entry);
  idle_.front().used = chunk;
  by_list_[entry.list] = idle_.begin();
}

void EditCache::Drop(const Entry& entry, StreamHandle stream) {
  absl::MutexLock lock(&mutex_);
  taken_.erase(entry.list);
  if (entry.memory != 0) Free(entry, stream);
}

void EditCache::DropIdle(StreamHandle stream) {
  absl::MutexLock lock(&mutex_);
  dropped_ = chunks_;
  while (!idle_.empty()) Forget(idle_.begin(), stream);
}

void EditCache::Free(const Entry& entry, StreamHandle stream) {
  context_->api().MemFreeAsync(entry.memory, stream);
  bytes_ -= entry.bytes();
}

void EditCache::Forget(Idle::iterator idle, StreamHandle stream) {
  Free(*idle, stream);
  by_list_.erase(idle->list);
  idle_.erase(idle);
}

EditCache::Lease::Lease(EditCache* cache, StreamHandle stream) : cache_(cache), stream_(stream) {
  if (cache_ == nullptr) return;
  absl::MutexLock lock(&cache_->mutex_);
  number_ = ++cache_->chunks_;
}

EditCache::Lease::~Lease() {
  if (cache_ == nullptr || is_kept_) return;
  for (const auto& [list, used] : used_) cache_->Drop(used.next.value_or(used.entry), stream_);
  cache_->DropIdle(stream_);
}

void EditCache::Lease::Keep() {
  if (cache_ == nullptr) return;
  for (const auto& [list, used] : used_) cache_->Return(used.next.value_or(used.entry), number_, stream_);
  is_kept_ = true;
}

EditCache::Lease::Used* EditCache::Lease::Find(uint64_t list) {
  if (const auto found = used_.find(list); found != used_.end()) return &found->second;
  std::optional<Entry> entry = cache_->Take(list);
  return entry ? &used_.emplace(list, Used{*entry, {}}).first->second : nullptr;
}

EditPath EditCache::Lease::PathOf(const RowRequest& request) {
  last_ = nullptr;
  const EditOrigin& origin = request.edit_origin;
  if (cache_ == nullptr || origin.list == 0 || request.edits.size() < kLeastEdits) return {};
  Used* const used = Find(origin.list);
  if (used == nullptr) return {};
  const Entry& entry = used->entry;
  const bool is_behind = entry.count != 0 && entry.version <= origin.version;
  const uint64_t changes = origin.version - entry.version + origin.ahead;
  const bool keeps = origin.ahead == 0 && !used->next && (is_behind || entry.count == 0);
  const bool fits = entry.capacity >= request.edits.size();
  if (!is_behind || changes > origin.changed.size() || (keeps && !fits && !used->is_read)) {
    return keeps ? Whole(request, used) : EditPath{};
  }
  used->is_read = true;
  EditPath path = {.is_merged = true, .from = entry.address(entry.half), .from_count = entry.count};
  if (changes == 0) return path;
  path.changes = changes_.emplace_back(ChangesOf(request, changes));
  if (keeps && fits) path.to = Write(request, used);
  return path;
}

EditPath EditCache::Lease::Whole(const RowRequest& request, Used* used) {
  if (used->entry.capacity < request.edits.size()) {
    // An earlier row of the chunk still reads the old memory.
    if (used->is_read || is_full_) return {};
    is_full_ = !cache_->Allocate(CapacityFor(request.edits.size()), stream_, &used->entry);
    if (is_full_) return {};
  }
  return {.is_merged = true, .changes = request.edits, .to = Write(request, used)};
}

DevicePointer EditCache::Lease::Write(const RowRequest& request, Used* used) {
  Entry next = used->entry;
  next.half = 1 - next.half;
  next.version = request.edit_origin.version;
  next.count = uint32_t(request.edits.size());
  used->next = next;
  last_ = used;
  return next.address(next.half);
}

void EditCache::Lease::TakeBack() {
  if (last_ != nullptr) last_->next.reset();
  last_ = nullptr;
}

}  // namespace sortition::devices::cuda
